// Steps of recurrent cells: products of a few states with a weight, and a hyperbolic tangent.
//
// A step multiplies the states by a matrix that lies in blocks of 64 bytes of columns, so that it is
// read in order.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace cells {

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

// All steps of some rows of states [rows, size]: `cell(row, sums, h, next)` computes the state after
// the one at `h`, for the row of number `row` of all steps, of the products `sums` of that state with
// the weight u [height, size].
template <class T, class F>
void steps(const T *u, int64_t height, const T *h, T *out, int64_t count, int64_t rows, int64_t size,
           const F &cell) {
  constexpr int64_t WIDTH = BYTES / sizeof(T);
  const int64_t columns = (height + WIDTH - 1) / WIDTH * WIDTH;
  const std::vector<T> packed = blocks(u, height, size, columns);
  std::vector<T> sums(rows * columns);
  for (int64_t t = 0; t < count; t++, h = out, out += rows * size) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4)
      multiply<T, 4>(h + r * size, packed.data(), sums.data() + r * columns, size, columns);
    for (; r < rows; r++)
      multiply<T, 1>(h + r * size, packed.data(), sums.data() + r * columns, size, columns);
    for (r = 0; r < rows; r++)
      cell(t * rows + r, sums.data() + r * columns, h + r * size, out + r * size);
  }
}

} // namespace cells
