// Linear recurrences over rows that a vector reads in each step. Loaded by ctypes.
//
// Some rows are computed through all steps at a time: their states stay in the first cache, and only
// the products are written.

#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t GROUP = 4; // rows at a time

// ROWS rows of n elements. `h` holds the states before the first step and then the last ones.
template <class T, int64_t ROWS>
void scan(const T *a, const T *b, const T *c, T *__restrict h, T *__restrict out, int64_t n,
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

// Groups of rows from `first` to `last`; each item of the batch has `groups` of them. The elements
// of a row are contiguous, and so are h [batch, rows, n] and out [steps, batch, rows].
template <class T>
void scan_groups(const T *a, const T *b, const T *c, T *h, T *out, int64_t batch, int64_t rows,
                 int64_t n, int64_t steps, int64_t a_step, int64_t a_batch, int64_t a_row,
                 int64_t b_step, int64_t b_batch, int64_t b_row, int64_t c_step, int64_t c_batch,
                 int64_t first, int64_t last) {
  const int64_t groups = (rows + GROUP - 1) / GROUP;
  for (int64_t group = first; group < last; group++) {
    const int64_t item = group / groups, begin = group % groups * GROUP;
    const auto run = [&](auto kernel, int64_t row) {
      const int64_t at = item * rows + row;
      kernel(a + item * a_batch + row * a_row, b + item * b_batch + row * b_row,
             c + item * c_batch, h + at * n, out + at, n, steps, a_row, a_step, b_row, b_step,
             c_step, batch * rows);
    };
    if (begin + GROUP <= rows)
      run(scan<T, GROUP>, begin);
    else
      for (int64_t row = begin; row < rows; row++)
        run(scan<T, 1>, row);
  }
}

} // namespace

#define KERNEL(NAME, T)                                                                            \
  extern "C" void scan_##NAME(const T *a, const T *b, const T *c, T *h, T *out, int64_t batch,     \
                              int64_t rows, int64_t n, int64_t steps, int64_t a_step,              \
                              int64_t a_batch, int64_t a_row, int64_t b_step, int64_t b_batch,     \
                              int64_t b_row, int64_t c_step, int64_t c_batch, int64_t first,       \
                              int64_t last) {                                                      \
    scan_groups(a, b, c, h, out, batch, rows, n, steps, a_step, a_batch, a_row, b_step, b_batch,   \
                b_row, c_step, c_batch, first, last);                                              \
  }

KERNEL(float32, float)
KERNEL(float64, double)
