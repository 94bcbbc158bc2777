// All steps of a GRU for few rows.
//
// The products of the inputs are computed before, by torch. A step multiplies the states by a matrix that lies
// in blocks of 64 bytes of columns, so that it is read in order, and then computes the gates.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "operators.h"

namespace {

using operators::fits, operators::Tensor;

constexpr int64_t BYTES = 64; // of the columns of a block

template <class T> struct Real;
template <> struct Real<float> {
  using Bits = int32_t;
  static constexpr int64_t TERMS = 7, MANTISSA = 23, BIAS = 127;
  static constexpr float LOW = -87.0f, HIGH = 88.0f, LN2 = 0.693359375f, REST = -2.12194440e-4f;
};
template <> struct Real<double> {
  using Bits = int64_t;
  static constexpr int64_t TERMS = 13, MANTISSA = 52, BIAS = 1023;
  static constexpr double LOW = -708.0, HIGH = 709.0, LN2 = 0.693145751953125,
                          REST = 1.42860682030941723212e-6;
};

// e^x - 1, with the relative accuracy that a hyperbolic tangent of small numbers needs: x is
// n ln 2 and a rest of at most ln 2 / 2, of which the Taylor series is taken.
template <class T> inline T growth(T of) {
  using R = Real<T>;
  T x = of < R::LOW ? R::LOW : of; // NaN stays
  x = x > R::HIGH ? R::HIGH : x;
  const T n = std::rint(x * T(1.44269504088896340736));
  const T rest = (x - n * R::LN2) - n * R::REST;
  T sum = 1;
  for (int64_t k = R::TERMS; k > 1; k--)
    sum = sum * rest * (T(1) / T(k)) + T(1);
  const auto bits = typename R::Bits(int32_t(n) + int32_t(R::BIAS)) << R::MANTISSA;
  T scale;
  std::memcpy(&scale, &bits, sizeof scale);
  const T small = sum * rest; // by itself, since the compiler may reorder the sum below
  const T grown = n == T(0) ? small : scale * small + (scale - T(1));
  return of > R::HIGH ? std::numeric_limits<T>::infinity() : grown; // a gate that is shut is 0
}

template <class T> inline T sigmoid(T x) { return T(1) / (T(2) + growth(-x)); }
template <class T> inline T tangent(T x) {
  const T y = growth(2 * x);
  return y == std::numeric_limits<T>::infinity() ? T(1) : y / (y + T(2));
}

// `sums` [ROWS, columns] are the products of the rows of h with the blocks of u.
template <class T, int64_t ROWS>
void multiply(const T *h, const T *u, T *sums, int64_t size, int64_t columns) {
  typedef T Vector __attribute__((vector_size(32)));
  constexpr int64_t LANES = 32 / sizeof(T), WIDTH = BYTES / sizeof(T);
  for (int64_t first = 0; first < columns; first += WIDTH) {
    Vector sum[ROWS][2] = {};
    for (int64_t k = 0; k < size; k++, u += WIDTH) {
      Vector left, right;
      std::memcpy(&left, u, sizeof left);
      std::memcpy(&right, u + LANES, sizeof right);
#pragma GCC unroll 4
      for (int64_t r = 0; r < ROWS; r++) {
        sum[r][0] += h[r * size + k] * left;
        sum[r][1] += h[r * size + k] * right;
      }
    }
#pragma GCC unroll 4
    for (int64_t r = 0; r < ROWS; r++)
      std::memcpy(sums + r * columns + first, sum[r], sizeof sum[r]);
  }
}

template <class T>
void gates(const T *__restrict x, const T *__restrict sums, const T *__restrict d,
           const T *__restrict h, T *__restrict out, int64_t size) {
  for (int64_t i = 0; i < size; i++) {
    const T r = sigmoid(x[i] + sums[i] + d[i]);
    const T z = sigmoid(x[size + i] + sums[size + i] + d[size + i]);
    const T n = tangent(x[2 * size + i] + r * (sums[2 * size + i] + d[2 * size + i]));
    out[i] = n + z * (h[i] - n);
  }
}

template <class T>
void steps(const T *x, const T *u, const T *d, const T *h, T *out, T *sums, int64_t steps,
           int64_t rows, int64_t size, int64_t columns) {
  for (int64_t t = 0; t < steps; t++) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4)
      multiply<T, 4>(h + r * size, u, sums + r * columns, size, columns);
    for (; r < rows; r++)
      multiply<T, 1>(h + r * size, u, sums + r * columns, size, columns);
    for (r = 0; r < rows; r++)
      gates(x + r * 3 * size, sums + r * columns, d, h + r * size, out + r * size, size);
    h = out;
    out += rows * size;
    x += rows * 3 * size;
  }
}

// Columns of the transpose of u [count, size] in blocks, filled up with zeros.
template <class T>
std::vector<T> blocks(const T *u, int64_t count, int64_t size, int64_t columns) {
  constexpr int64_t WIDTH = BYTES / sizeof(T);
  std::vector<T> made(columns * size);
  for (int64_t first = 0; first < count; first += WIDTH)
    for (int64_t i = 0; i < std::min(WIDTH, count - first); i++)
      for (int64_t k = 0; k < size; k++)
        made[first * size + k * WIDTH + i] = u[(first + i) * size + k];
  return made;
}

// x weight^T + bias, contiguous; in the type of x also where autocast is on.
Tensor linear(const Tensor &x, const Tensor &weight, const Tensor &bias) {
  using torch::stable::detail::from, torch::stable::detail::to;
  std::array<StableIValue, 3> stack = {from(x), from(weight), from(std::optional(bias))};
  STABLE_TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::linear", "", stack.data(), TORCH_ABI_VERSION));
  return operators::contiguous(operators::of(to<Tensor>(stack[0]), x.scalar_type()));
}

Tensor gru(const Tensor &x, const Tensor &w, const Tensor &u, const Tensor &b, const Tensor &d,
           const Tensor &h) {
  REQUIRE(x.dim() == 3 && h.dim() == 2);
  const int64_t count = x.size(0), rows = x.size(1), size = h.size(1), gates = 3 * size;
  const auto type = x.scalar_type();
  REQUIRE(count > 0 && fits(h, {rows, size}, type) && fits(w, {gates, x.size(2)}, type));
  REQUIRE(fits(u, {gates, size}, type) && fits(b, {gates}, type) && fits(d, {gates}, type));
  const Tensor inputs = linear(x, w, b), states = operators::contiguous(u),
               biases = operators::contiguous(d), before = operators::contiguous(h),
               out = operators::empty({count, rows, size}, type);
  operators::of_type<float, double>(x, [&](auto zero) {
    typedef decltype(zero) T;
    using operators::data;
    constexpr int64_t WIDTH = BYTES / sizeof(T);
    const int64_t columns = (gates + WIDTH - 1) / WIDTH * WIDTH;
    const std::vector<T> packed = blocks(data<T>(states), gates, size, columns);
    std::vector<T> sums(rows * columns);
    steps(data<T>(inputs), packed.data(), data<T>(biases), data<T>(before),
          operators::written<T>(out), sums.data(), count, rows, size, columns);
  });
  return out;
}

} // namespace

OPERATOR(gru_native,
         "(Tensor x, Tensor w, Tensor u, Tensor b, Tensor d, Tensor h) -> Tensor", gru)
