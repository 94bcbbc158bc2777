// Linear recurrences h_t = a_t * h_(t-1) + b_t.
//
// The states of one step are rows of contiguous elements. Some rows, or a part of a long one, are
// computed through all steps at a time: their state stays in the first cache.

#include <algorithm>
#include <cstdint>

#include "operators.h"

namespace {

using operators::fits, operators::Tensor;

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

// A dimension of the states of one step: its size, and the strides of a and b.
struct Dim {
  int64_t size, a, b;
};

// The dimensions, one at least, with those merged that are like one in both tensors.
std::vector<Dim> layout(const Tensor &a, const Tensor &b) {
  std::vector<Dim> merged;
  for (int64_t i = 1; i < b.dim(); i++) {
    Dim found = {b.size(i), a.stride(i), b.stride(i)};
    if (found.size == 1)
      continue;
    if (!merged.empty() && merged.back().a == found.size * found.a &&
        merged.back().b == found.size * found.b) {
      found.size *= merged.back().size;
      merged.pop_back();
    }
    merged.push_back(found);
  }
  return merged.empty() ? std::vector<Dim>{{1, 1, 1}} : merged;
}

// Tensors, at the step to begin with, and the elements from a step to the next; the state before,
// h, and each step of out are contiguous. The states are `rows` of `size` elements.
template <class T> struct Recurrence {
  const T *a, *b, *h;
  T *out;
  int64_t count, a_step, b_step, out_step, a_stride, rows, size;
  std::vector<Dim> dims; // of the rows

  int64_t parts() const { return (size + PIECE - 1) / PIECE; } // of a row
  int64_t group() const { return parts() > 1 ? 1 : GROUP; }    // rows of a piece
  int64_t pieces() const { return (rows + group() - 1) / group() * parts(); }

  void run(int64_t first, int64_t after) const {
    for (int64_t piece = first; piece < after; piece++) {
      const int64_t row = piece / parts() * group(), begin = piece % parts() * PIECE;
      const int64_t some = std::min(group(), rows - row);
      const T *a_rows[GROUP], *b_rows[GROUP];
      for (int64_t r = 0; r < some; r++) {
        int64_t rest = row + r, a_at = begin * a_stride, b_at = begin;
        for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
          a_at += rest % dim->size * dim->a;
          b_at += rest % dim->size * dim->b;
          rest /= dim->size;
        }
        a_rows[r] = a + a_at;
        b_rows[r] = b + b_at;
      }
      const int64_t at = row * size + begin, elements = std::min(PIECE, size - begin);
      const auto each = a_stride ? steps<T, 1> : steps<T, 0>;
      each(a_rows, b_rows, h + at, out + at, some, size, elements, count, a_step, b_step, out_step);
    }
  }
};

Tensor linear_recurrence(const Tensor &factors, const Tensor &summands, const Tensor &state,
                         bool reverse) {
  REQUIRE(summands.dim() > 0);
  const auto sizes = operators::sizes_of(summands);
  const auto type = summands.scalar_type();
  REQUIRE(fits(factors, sizes, type) && fits(state, {sizes.begin() + 1, sizes.end()}, type));
  const Tensor out = operators::empty(sizes, type), h = operators::contiguous(state);
  if (!out.numel())
    return out;
  Tensor a = factors, b = summands;
  auto dims = layout(a, b);
  if (dims.back().a < 0 || dims.back().a > 1 || dims.back().b != 1) {
    a = operators::contiguous(a);
    b = operators::contiguous(b);
    dims = layout(a, b);
  }
  const auto [size, a_stride, b_stride] = dims.back();
  dims.pop_back();
  const int64_t direction = reverse ? -1 : 1, start = reverse ? sizes[0] - 1 : 0;
  operators::of_type<float, double>(out, [&](auto zero) {
    typedef decltype(zero) T;
    const Recurrence<T> all = {operators::data<T>(a) + start * a.stride(0),
                               operators::data<T>(b) + start * b.stride(0),
                               operators::data<T>(h),
                               operators::written<T>(out) + start * out.stride(0),
                               sizes[0],
                               direction * a.stride(0),
                               direction * b.stride(0),
                               direction * out.stride(0),
                               a_stride,
                               h.numel() / size,
                               size,
                               dims};
    operators::in_parts(all.pieces(), out.numel(),
                        [&](int64_t first, int64_t after) { all.run(first, after); });
  });
  return out;
}

} // namespace

OPERATOR(linear_recurrence_native, "(Tensor a, Tensor b, Tensor h, bool reverse) -> Tensor",
         linear_recurrence)
