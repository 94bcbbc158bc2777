// Spans of keys that a mask leaves visible.

#pragma once

#include "rows.h"

namespace spans {

using namespace rows;

constexpr float HIDDEN = -1e6f; // a key whose mask is lower than the largest by this has no weight

// Widens a span to hold the first key that is not hidden, and the one before `after`, the last. None
// is hidden where the mask holds a NaN.
template <class T>
void widen(const T *mask, int64_t count, int64_t *first, int64_t *after) {
  const int64_t whole = count - count % LANES;
  lanes most = lanes{} - std::numeric_limits<float>::infinity();
  auto missing = most != most; // NaN
  for (int64_t t = 0; t < whole; t += LANES) {
    const lanes x = load(mask + t);
    most = x > most ? x : most;
    missing |= x != x;
  }
  float largest = -std::numeric_limits<float>::infinity();
  bool has_nan = false;
  for (int64_t i = 0; i < LANES; ++i) {
    largest = std::max(largest, most[i]);
    has_nan |= missing[i] != 0;
  }
  for (int64_t t = whole; t < count; ++t) {
    const float x = wide(mask[t]);
    largest = std::max(largest, x);
    has_nan |= x != x;
  }
  const float least = largest + HIDDEN;
  int64_t low = 0, high = count;
  while (!has_nan && low < count && wide(mask[low]) < least)
    ++low;
  while (!has_nan && high > low && wide(mask[high - 1]) < least)
    --high;
  *first = std::min(*first, low);
  *after = std::max(*after, high);
}

} // namespace spans
