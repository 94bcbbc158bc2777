// Linear recurrences h_t = a_t * h_(t-1) + b_t. Loaded by ctypes.
//
// The states of one step are rows of contiguous elements. Some rows, or a part of a long one, are
// computed through all steps at a time: their state stays in the first cache.

#include <algorithm>
#include <cstdint>

namespace {

constexpr int64_t PIECE = 1024; // elements of a part of a row
constexpr int64_t GROUP = 8;    // rows at a time: they are written together

// STRIDE is that of the factors in a row: 0 if one factor is for the whole row.
template <class T, int64_t STRIDE>
void steps(const T *const *a, const T *const *b, const T *before, T *out, int64_t rows,
           int64_t size, int64_t count, int64_t steps, int64_t a_step, int64_t b_step,
           int64_t out_step) {
  for (int64_t t = 0; t < steps; t++) {
    for (int64_t r = 0; r < rows; r++) {
      const T *__restrict x = a[r] + t * a_step, *__restrict y = b[r] + t * b_step;
      const T *__restrict h = before + r * size;
      T *__restrict z = out + r * size;
      for (int64_t i = 0; i < count; i++)
        z[i] = x[i * STRIDE] * h[i] + y[i];
    }
    before = out;
    out += out_step;
  }
}

// Groups of rows, or parts of a row, from `first` to `last`. `layout` has, for each dimension of
// the rows, its size and the strides of a and b. a, b and out point to the step to begin with; the
// state before it, h, and each step of out are contiguous.
template <class T>
void recur(const T *a, const T *b, const T *h, T *out, const int64_t *layout, int64_t dims,
           int64_t size, int64_t count, int64_t a_step, int64_t b_step, int64_t out_step,
           int64_t a_stride, int64_t rows, int64_t first, int64_t last) {
  const int64_t parts = (size + PIECE - 1) / PIECE, group = parts > 1 ? 1 : GROUP;
  for (int64_t piece = first; piece < last; piece++) {
    const int64_t row = piece / parts * group, begin = piece % parts * PIECE;
    const int64_t some = std::min(group, rows - row);
    const T *a_rows[GROUP], *b_rows[GROUP];
    for (int64_t r = 0; r < some; r++) {
      int64_t rest = row + r, a_at = begin * a_stride, b_at = begin;
      for (int64_t d = dims - 1; d >= 0; d--) {
        const int64_t *dim = layout + 3 * d;
        a_at += rest % dim[0] * dim[1];
        b_at += rest % dim[0] * dim[2];
        rest /= dim[0];
      }
      a_rows[r] = a + a_at;
      b_rows[r] = b + b_at;
    }
    const int64_t at = row * size + begin, elements = std::min(PIECE, size - begin);
    auto run = a_stride ? steps<T, 1> : steps<T, 0>;
    run(a_rows, b_rows, h + at, out + at, some, size, elements, count, a_step, b_step, out_step);
  }
}

} // namespace

#define KERNEL(NAME, T)                                                                            \
  extern "C" void recur_##NAME(const T *a, const T *b, const T *h, T *out, const int64_t *layout,  \
                               int64_t dims, int64_t size, int64_t count, int64_t a_step,          \
                               int64_t b_step, int64_t out_step, int64_t a_stride, int64_t rows,   \
                               int64_t first, int64_t last) {                                      \
    recur(a, b, h, out, layout, dims, size, count, a_step, b_step, out_step, a_stride, rows,       \
          first, last);                                                                            \
  }

KERNEL(float32, float)
KERNEL(float64, double)
