// Attention of a few rows over a span of keys, and that span. Loaded by ctypes.
//
// Letters: D, E elements of a key's and a value's head; R rows, the queries of all heads of a group.

#include "rows.h"

#include <vector>

namespace {

using rows::bfloat16;

// Sizes and strides, in elements.
struct Dims {
  int64_t B, G, R, D, E;
  int64_t queries, count; // of each head of a group, and of keys
  int64_t key_batch, key_group, key, value_batch, value_group, value;
  int64_t mask_batch, mask_head, mask_query;
};

// x [B, G, R, D], out [B, G, R, E]; the groups of keys from `first` on, before `after`. The mask may be null.
template <class T>
void attend(const T *x, const T *keys, const T *values, const float *mask, T *out,
            const Dims &n, int64_t first, int64_t after, float scale) {
  std::vector<float> top(n.R), sum(n.R), result(n.R * n.E);
  std::vector<const float *> masks(n.R);
  const T *k[rows::BLOCK], *v[rows::BLOCK];
  for (int64_t b = 0; b < n.B; ++b)
    for (int64_t g = first; g < after; ++g) {
      const int64_t at = (b * n.G + g) * n.R, heads = n.R / n.queries;
      for (int64_t r = 0; mask && r < n.R; ++r)
        masks[r] = mask + b * n.mask_batch + (g * heads + r / n.queries) * n.mask_head +
                   r % n.queries * n.mask_query;
      std::fill(top.begin(), top.end(), -std::numeric_limits<float>::infinity());
      std::fill(sum.begin(), sum.end(), 0.f);
      std::fill(result.begin(), result.end(), 0.f);
      for (int64_t from = 0; from < n.count; from += rows::BLOCK) {
        const int64_t some = std::min(rows::BLOCK, n.count - from);
        for (int64_t t = 0; t < some; ++t) {
          k[t] = keys + b * n.key_batch + g * n.key_group + (from + t) * n.key;
          v[t] = values + b * n.value_batch + g * n.value_group + (from + t) * n.value;
        }
        rows::attend(x + at * n.D, k, v, mask ? masks.data() : nullptr, from, some, n.R, n.D, n.E,
                     scale, result.data(), top.data(), sum.data());
      }
      for (int64_t i = 0; i < n.R * n.E; ++i) { // a row that sees nothing is 0
        const float total = sum[i / n.E];
        rows::store(result[i] / (total == 0 ? 1.f : total), out + at * n.E + i);
      }
    }
}

// The first key that is not lower than the largest by `hidden`, and the one after the last.
template <class T>
void span(const T *mask, int64_t count, float hidden, int64_t *first, int64_t *after) {
  const int64_t whole = count - count % rows::LANES;
  rows::lanes most = rows::lanes{} - std::numeric_limits<float>::infinity();
  auto missing = most != most; // NaN
  for (int64_t t = 0; t < whole; t += rows::LANES) {
    const rows::lanes x = rows::load(mask + t);
    most = x > most ? x : most;
    missing |= x != x;
  }
  float largest = -std::numeric_limits<float>::infinity();
  bool has_nan = false;
  for (int64_t i = 0; i < rows::LANES; ++i) {
    largest = std::max(largest, most[i]);
    has_nan |= missing[i] != 0;
  }
  for (int64_t t = whole; t < count; ++t) {
    const float x = rows::wide(mask[t]);
    largest = std::max(largest, x);
    has_nan |= x != x;
  }
  const float least = largest + hidden;
  int64_t low = 0, high = count;
  while (!has_nan && low < count && rows::wide(mask[low]) < least)
    ++low;
  while (!has_nan && high > low && rows::wide(mask[high - 1]) < least)
    --high;
  *first = std::min(*first, low);
  *after = std::max(*after, high);
}

} // namespace

#define KERNELS(NAME, T)                                                                           \
  extern "C" void decode_##NAME(const T *x, const T *keys, const T *values, const float *mask,     \
                                T *out, const Dims *n, int64_t first, int64_t after,               \
                                double scale) {                                                    \
    attend<T>(x, keys, values, mask, out, *n, first, after, scale);                                \
  }                                                                                                \
  /* spans [B, 2] of masks [B, R, T] */                                                            \
  extern "C" void spans_##NAME(const T *masks, int64_t B, int64_t R, int64_t count, double hidden, \
                               int64_t *spans) {                                                   \
    for (int64_t b = 0; b < B; ++b) {                                                              \
      spans[2 * b] = count;                                                                        \
      spans[2 * b + 1] = 0;                                                                        \
      for (int64_t r = 0; r < R; ++r)                                                              \
        span(masks + (b * R + r) * count, count, hidden, spans + 2 * b, spans + 2 * b + 1);        \
    }                                                                                              \
  }

KERNELS(float32, float)
KERNELS(bfloat16, bfloat16)
