// e^x without a call, so that loops become vectors.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace exponentials {

// e^x for x <= 0 within 2 ulp, without a call, so that loops become vectors. NaN stays NaN.
inline float exponential(float x) {
  float n = std::nearbyint(x * 1.44269504f);
  n = n < -126.f ? -126.f : n;
  float r = __builtin_fmaf(n, 2.12194440e-4f, __builtin_fmaf(n, -0.693359375f, x));
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  int32_t bits = (int32_t(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, 4);
  return x < -87.f ? 0.f : p * power;
}
inline double exponential(double x) { return std::exp(x); }

// The same with results below the smallest normal number, which are rounded as those are.
inline float gradual(float x) {
  const bool is_small = x < -80.f;
  const float y = exponential(is_small ? x + 44.3614196f : x); // 64 ln 2
  return is_small ? y * 0x1p-64f : y;
}
inline double gradual(double x) { return std::exp(x); }

} // namespace exponentials
