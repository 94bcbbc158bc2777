// RMSNorm of x + residual, then int8 with a scale for each row. Loaded by ctypes.

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace {

constexpr int64_t LANES = 16; // evolve: 8 16 32 64 128
constexpr int64_t AHEAD = 0;  // evolve: 0 128 256 512 1024
constexpr int64_t PASSES = 3; // evolve: 2 3
constexpr int64_t UNROLL = 1; // evolve: 1 2 4 8

// Adds both rows, and returns the sum of squares and, where two passes are made, the largest
// |total * weight|: in `LANES` parts each, so that the loop is one of vectors.
template <bool WITH_LARGEST>
void add(const float *__restrict x, const float *__restrict residual,
         const float *__restrict weight, float *__restrict total, int64_t hidden, float &squares,
         float &largest) {
  float sums[LANES] = {}, most[LANES] = {};
  int64_t i = 0;
  // evolve: begin sum
  for (; i + LANES <= hidden; i += LANES) {
    if (AHEAD) {
      __builtin_prefetch(x + i + AHEAD);
      __builtin_prefetch(residual + i + AHEAD);
    }
    for (int64_t l = 0; l < LANES; l++) {
      const float t = x[i + l] + residual[i + l];
      total[i + l] = t;
      sums[l] += t * t;
      if (WITH_LARGEST)
        most[l] = std::max(most[l], std::fabs(t * weight[i + l]));
    }
  }
  // evolve: end
  squares = largest = 0;
  for (; i < hidden; i++) {
    const float t = x[i] + residual[i];
    total[i] = t;
    squares += t * t;
    largest = std::max(largest, std::fabs(t * weight[i]));
  }
  for (int64_t l = 0; l < LANES; l++) {
    squares += sums[l];
    largest = std::max(largest, most[l]);
  }
}

float largest_of(const float *__restrict total, const float *__restrict weight, int64_t hidden) {
  float most[LANES] = {}, largest = 0;
  int64_t i = 0;
  for (; i + LANES <= hidden; i += LANES)
    for (int64_t l = 0; l < LANES; l++)
      most[l] = std::max(most[l], std::fabs(total[i + l] * weight[i + l]));
  for (; i < hidden; i++)
    largest = std::max(largest, std::fabs(total[i] * weight[i]));
  return std::max(largest, *std::max_element(most, most + LANES));
}

} // namespace

extern "C" void run(const float *x, const float *residual, const float *weight, float eps,
                    int8_t *q, float *scale, float *total, int64_t tokens, int64_t hidden) {
  for (int64_t row = 0; row < tokens; row++) {
    const int64_t at = row * hidden;
    float squares, largest;
    add<PASSES == 2>(x + at, residual + at, weight, total + at, hidden, squares, largest);
    if (PASSES == 3)
      largest = largest_of(total + at, weight, hidden);
    const float inverse = 1 / std::sqrt(squares / hidden + eps);
    const float step = std::max(largest * inverse, 1e-5f) / 127;
    const float factor = inverse / step;
    scale[row] = step;
    const float *__restrict t = total + at;
    int8_t *__restrict to = q + at;
    // evolve: begin quantize
#pragma GCC unroll UNROLL
    for (int64_t i = 0; i < hidden; i++)
      to[i] = static_cast<int8_t>(static_cast<int32_t>(std::nearbyint(t[i] * weight[i] * factor)));
    // evolve: end
  }
}
