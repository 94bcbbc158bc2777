// Attention of one query over a cache; the query heads of a group share its keys. Loaded by ctypes.

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace {

constexpr int64_t WIDTH = 128;
constexpr int64_t MOST = 4;   // query heads of a group
constexpr int64_t BLOCK = 64; // evolve: 16 32 64 128 256
constexpr int64_t LANES = 16; // evolve: 8 16 32 64
constexpr int64_t AHEAD = 0;  // evolve: 0 1 2 4 8
constexpr int64_t UNROLL = 1; // evolve: 1 2 4

// exp(x) for x <= 0, with an error of a few units in the last place.
inline float exponential(float x) {
  const float n = std::nearbyint(std::max(x, -87.0f) * 1.44269504f);
  const float r = std::max(x, -87.0f) - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1;
  return p * __builtin_bit_cast(float, (static_cast<int32_t>(n) + 127) << 23);
}

inline float dot(const float *__restrict a, const float *__restrict b) {
  float sums[LANES] = {}, sum = 0;
#pragma GCC unroll UNROLL
  for (int64_t i = 0; i < WIDTH; i += LANES)
    for (int64_t l = 0; l < LANES; l++)
      sums[l] += a[i + l] * b[i + l];
  for (int64_t l = 0; l < LANES; l++)
    sum += sums[l];
  return sum;
}

void group(const float *q, const float *k, const float *v, float *out, int64_t heads,
           int64_t keys) {
  const float factor = 1 / std::sqrt(static_cast<float>(WIDTH));
  float most[MOST], sums[MOST] = {}, scores[MOST][BLOCK];
  std::fill(most, most + MOST, -INFINITY);
  std::fill(out, out + heads * WIDTH, 0.0f);
  for (int64_t first = 0; first < keys; first += BLOCK) {
    const int64_t count = std::min(BLOCK, keys - first);
    // evolve: begin scores
    for (int64_t t = 0; t < count; t++) {
      const float *key = k + (first + t) * WIDTH;
      if (AHEAD)
        for (int64_t i = 0; i < WIDTH; i += 16)
          __builtin_prefetch(key + AHEAD * WIDTH + i);
      for (int64_t h = 0; h < heads; h++)
        scores[h][t] = dot(q + h * WIDTH, key) * factor;
    }
    // evolve: end
    for (int64_t h = 0; h < heads; h++) {
      const float before = most[h];
      for (int64_t t = 0; t < count; t++)
        most[h] = std::max(most[h], scores[h][t]);
      const float change = before == -INFINITY ? 0 : exponential(before - most[h]);
      float sum = 0;
      for (int64_t t = 0; t < count; t++) {
        scores[h][t] = exponential(scores[h][t] - most[h]);
        sum += scores[h][t];
      }
      sums[h] = sums[h] * change + sum;
      for (int64_t i = 0; i < WIDTH; i++)
        out[h * WIDTH + i] *= change;
    }
    // evolve: begin values
    for (int64_t t = 0; t < count; t++) {
      const float *__restrict value = v + (first + t) * WIDTH;
      for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < WIDTH; i++)
          out[h * WIDTH + i] += scores[h][t] * value[i];
    }
    // evolve: end
  }
  for (int64_t h = 0; h < heads; h++)
    for (int64_t i = 0; i < WIDTH; i++)
      out[h * WIDTH + i] /= sums[h];
}

} // namespace

extern "C" void run(const float *q, const float *k, const float *v, float *out, int64_t groups,
                    int64_t heads, int64_t keys) {
  for (int64_t g = 0; g < groups; g++)
    group(q + g * heads * WIDTH, k + g * keys * WIDTH, v + g * keys * WIDTH,
          out + g * heads * WIDTH, heads, keys);
}
