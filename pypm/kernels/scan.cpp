// Linear recurrences over rows that a vector reads in each step.
//
// Some rows are computed through all steps at a time: their states stay in the first cache, and only
// the products are written.

#include <cstdint>
#include <cstring>

#include "operators.h"

namespace {

using operators::fits, operators::Tensor;

constexpr int64_t GROUP = 4; // rows at a time

// ROWS rows of n elements. `h` holds the states before the first step and then the last ones.
template <class T, int64_t ROWS>
void advance(const T *a, const T *b, const T *c, T *__restrict h, T *__restrict out, int64_t n,
             int64_t steps, int64_t a_row, int64_t a_step, int64_t b_row, int64_t b_step,
             int64_t c_step, int64_t out_step) {
  typedef T Vector __attribute__((vector_size(32), aligned(alignof(T)), may_alias));
  constexpr int64_t LANES = 32 / sizeof(T);
  for (int64_t t = 0; t < steps; t++, a += a_step, b += b_step, c += c_step, out += out_step) {
    Vector sums[ROWS] = {};
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) {
      const Vector by = *(const Vector *)(c + j);
#pragma GCC unroll 4
      for (int64_t r = 0; r < ROWS; r++) {
        Vector *state = (Vector *)(h + r * n + j);
        const Vector after =
            *(const Vector *)(a + r * a_row + j) * *state + *(const Vector *)(b + r * b_row + j);
        *state = after;
        sums[r] += after * by;
      }
    }
#pragma GCC unroll 4
    for (int64_t r = 0; r < ROWS; r++) {
      T sum = 0;
      for (int64_t i = 0; i < LANES; i++)
        sum += sums[r][i];
      for (int64_t i = j; i < n; i++) {
        h[r * n + i] = a[r * a_row + i] * h[r * n + i] + b[r * b_row + i];
        sum += h[r * n + i] * c[i];
      }
      out[r] = sum;
    }
  }
}

// Tensors [steps, batch, rows, n], of c [steps, batch, n], with the elements of a row side by side.
template <class T> struct Operand {
  const T *items;
  int64_t step, batch, row;
  explicit Operand(const Tensor &x)
      : items(operators::data<T>(x)), step(x.stride(0)), batch(x.stride(1)),
        row(x.dim() > 3 ? x.stride(2) : 0) {}
  const T *at(int64_t item, int64_t number) const { return items + item * batch + number * row; }
};

std::tuple<Tensor, Tensor> scan(const Tensor &factors, const Tensor &summands,
                                const Tensor &vectors, const Tensor &state) {
  REQUIRE(factors.dim() == 4);
  const auto sizes = operators::sizes_of(factors);
  const int64_t steps = sizes[0], batch = sizes[1], rows = sizes[2], n = sizes[3];
  const auto type = factors.scalar_type();
  REQUIRE(fits(summands, sizes, type) && fits(vectors, {steps, batch, n}, type));
  REQUIRE(fits(state, {batch, rows, n}, type));
  const Tensor x = operators::packed(factors), y = operators::packed(summands),
               z = operators::packed(vectors);
  const Tensor out = operators::empty({steps, batch, rows}, type), last = operators::copied(state);
  const int64_t groups = (rows + GROUP - 1) / GROUP; // of an item of the batch
  operators::of_type<float, double>(x, [&](auto zero) {
    typedef decltype(zero) T;
    const Operand<T> a(x), b(y), c(z);
    T *h = operators::written<T>(last), *results = operators::written<T>(out);
    operators::in_parts(batch * groups, x.numel(), [&](int64_t first, int64_t after) {
      for (int64_t group = first; group < after; group++) {
        const int64_t item = group / groups, begin = group % groups * GROUP;
        const auto run = [&](auto kernel, int64_t row) {
          const int64_t at = item * rows + row;
          kernel(a.at(item, row), b.at(item, row), c.at(item, 0), h + at * n, results + at, n,
                 steps, a.row, a.step, b.row, b.step, c.step, batch * rows);
        };
        if (begin + GROUP <= rows)
          run(advance<T, GROUP>, begin);
        else
          for (int64_t row = begin; row < rows; row++)
            run(advance<T, 1>, row);
      }
    });
  });
  return {out, last};
}

} // namespace

OPERATOR(scan_native, "(Tensor a, Tensor b, Tensor c, Tensor h) -> (Tensor, Tensor)", scan)
