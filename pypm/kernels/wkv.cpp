// RWKV-4's time mixing: averages of values with weights that decay. Loaded by ctypes.
//
// A piece of the channels of one row of the batch is computed through all steps at a time: its states
// stay in the first cache. States are sums times e^-top, where top is the largest exponent so far.

#include <algorithm>
#include <cstdint>

#include "exponential.h"

namespace {

using exponentials::gradual;

constexpr int64_t PIECE = 256; // channels at a time

template <class T> inline T larger(T x, T y) { return x > y || x != x ? x : y; } // NaN stays

// One step of some channels.
template <class T>
void step(const T *__restrict decay, const T *__restrict boost, const T *__restrict keys,
          const T *__restrict values, T *__restrict num, T *__restrict den, T *__restrict top,
          T *__restrict out, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    const T key = keys[i], value = values[i], before = top[i];
    const T boosted = key + boost[i], most = larger(before, boosted);
    const T old = gradual(before - most), weight = gradual(boosted - most);
    out[i] = (old * num[i] + weight * value) / (old * den[i] + weight);
    const T decayed = before + decay[i], after = larger(decayed, key);
    const T kept = gradual(decayed - after), added = gradual(key - after);
    num[i] = kept * num[i] + added * value;
    den[i] = kept * den[i] + added;
    top[i] = after;
  }
}

// Pieces of rows from `first` to `last`. num, den and top [batch, size] hold the first states and
// then the last ones; out is [batch, steps, size]. Channels are contiguous.
template <class T>
void average(const T *decay, const T *boost, const T *keys, const T *values, T *num, T *den, T *top,
             T *out, int64_t steps, int64_t size, int64_t key_row, int64_t key_step,
             int64_t value_row, int64_t value_step, int64_t first, int64_t last) {
  const int64_t parts = (size + PIECE - 1) / PIECE;
  for (int64_t piece = first; piece < last; piece++) {
    const int64_t row = piece / parts, begin = piece % parts * PIECE, at = row * size + begin;
    const int64_t count = std::min(PIECE, size - begin);
    for (int64_t t = 0; t < steps; t++)
      step(decay + begin, boost + begin, keys + row * key_row + t * key_step + begin,
           values + row * value_row + t * value_step + begin, num + at, den + at, top + at,
           out + (row * steps + t) * size + begin, count);
  }
}

} // namespace

#define KERNEL(NAME, T)                                                                            \
  extern "C" void average_##NAME(const T *decay, const T *boost, const T *keys, const T *values,   \
                                 T *num, T *den, T *top, T *out, int64_t steps, int64_t size,      \
                                 int64_t key_row, int64_t key_step, int64_t value_row,             \
                                 int64_t value_step, int64_t first, int64_t last) {                \
    average(decay, boost, keys, values, num, den, top, out, steps, size, key_row, key_step,        \
            value_row, value_step, first, last);                                                   \
  }

KERNEL(float32, float)
KERNEL(float64, double)
