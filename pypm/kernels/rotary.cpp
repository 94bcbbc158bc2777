// Rotary embeddings of the first elements of rows; the rest is copied. Loaded by ctypes.

#include "rows.h"

namespace {

using rows::bfloat16;

// Sizes and strides, in elements; those of a row lie side by side.
struct Dims {
  int64_t sizes[3], x[3], out[3], angle[3];
  int64_t pairs, rest;
};

// T is the type of the tensors, A that of the angles and of what is computed.
template <bool NEIGHBOURS, class T, class A>
void turn(const T *__restrict x, const A *__restrict cos, const A *__restrict sin,
          T *__restrict out, int64_t pairs) {
  for (int64_t j = 0; j < pairs; ++j) {
    const int64_t one = NEIGHBOURS ? 2 * j : j, other = NEIGHBOURS ? one + 1 : one + pairs;
    const A a = rows::wide(x[one]), b = rows::wide(x[other]);
    rows::store(a * cos[one] - b * sin[one], out + one);
    rows::store(b * cos[other] + a * sin[other], out + other);
  }
}

// The rows from number `first` on, before `after`.
template <class T, class A>
void rotate(const T *x, const A *cos, const A *sin, T *out, const Dims &n, bool neighbours,
            int64_t first, int64_t after) {
  const int64_t turned = 2 * n.pairs;
  int64_t i = first / (n.sizes[1] * n.sizes[2]), j = first / n.sizes[2] % n.sizes[1],
          k = first % n.sizes[2];
  for (int64_t row = first; row < after; ++row) {
    const T *from = x + i * n.x[0] + j * n.x[1] + k * n.x[2];
    T *to = out + i * n.out[0] + j * n.out[1] + k * n.out[2];
    const int64_t angle = i * n.angle[0] + j * n.angle[1] + k * n.angle[2];
    (neighbours ? turn<true, T, A> : turn<false, T, A>)(from, cos + angle, sin + angle, to,
                                                        n.pairs);
    std::copy(from + turned, from + turned + n.rest, to + turned);
    if (++k == n.sizes[2]) {
      k = 0;
      if (++j == n.sizes[1]) {
        j = 0;
        ++i;
      }
    }
  }
}

} // namespace

#define KERNEL(NAME, T, A)                                                                         \
  extern "C" void rotate_##NAME(const T *x, const A *cos, const A *sin, T *out, const Dims *n,     \
                                int64_t neighbours, int64_t first, int64_t after) {                \
    rotate<T, A>(x, cos, sin, out, *n, neighbours, first, after);                                  \
  }

KERNEL(float32, float, float)
KERNEL(float64, double, double)
KERNEL(bfloat16, bfloat16, float)
