// Attention of a few rows over a span of keys. Loaded by ctypes.
//
// Letters: D elements of a key's and a value's head; R rows, the queries of all heads of a group.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

constexpr int64_t BLOCK = 32; // keys at a time: they and their scores stay in the first cache

struct bfloat16 {
  uint16_t bits;
};

inline float wide(bfloat16 x) {
  uint32_t bits = uint32_t(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}
inline float wide(float x) { return x; }

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

constexpr int64_t LANES = 16;
typedef float lanes __attribute__((vector_size(4 * LANES))); // kept in registers, unlike arrays

inline lanes load(const float *from) {
  lanes x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

template <int64_t N, int64_t SIZE>
inline void dots(const float *x, const float *key, float *to, int64_t D_) {
  const int64_t D = SIZE ? SIZE : D_;
  const int64_t whole = D - D % LANES;
  lanes sums[N] = {};
  for (int64_t d = 0; d < whole; d += LANES)
    for (int64_t r = 0; r < N; ++r)
      sums[r] += load(x + r * D + d) * load(key + d);
  for (int64_t r = 0; r < N; ++r) {
    float sum = 0;
    for (int64_t i = 0; i < LANES; ++i)
      sum += sums[r][i];
    for (int64_t i = whole; i < D; ++i)
      sum += x[r * D + i] * key[i];
    to[r * BLOCK] = sum;
  }
}

// x [R, D] scaled queries, masks R pointers to a mask of each key; SIZE is D, or 0 if not known.
template <class T, int64_t SIZE>
void attend(const float *x, const T *keys, const T *values, const float *const *masks, float *out,
            int64_t R, int64_t D_, int64_t key_stride, int64_t value_stride, int64_t count) {
  const int64_t D = SIZE ? SIZE : D_;
  std::vector<float> scores(R * BLOCK), top(R, -std::numeric_limits<float>::infinity()), sum(R);
  std::vector<float> block(BLOCK * D);
  float *wides = block.data();
  std::fill(out, out + R * D, 0.f);
  for (int64_t from = 0; from < count; from += BLOCK) {
    const int64_t some = std::min(BLOCK, count - from);
    for (int64_t t = 0; t < some; ++t) {
      const T *key = keys + (from + t) * key_stride;
      float *one = wides + t * D;
      for (int64_t d = 0; d < D; ++d)
        one[d] = wide(key[d]);
    }
    int64_t r = 0;
    for (; r + 4 <= R; r += 4)
      for (int64_t t = 0; t < some; ++t)
        dots<4, SIZE>(x + r * D, wides + t * D, scores.data() + r * BLOCK + t, D);
    for (; r < R; ++r)
      for (int64_t t = 0; t < some; ++t)
        dots<1, SIZE>(x + r * D, wides + t * D, scores.data() + r * BLOCK + t, D);
    for (int64_t t = 0; t < some; ++t) {
      const T *value = values + (from + t) * value_stride;
      float *one = wides + t * D;
      for (int64_t d = 0; d < D; ++d)
        one[d] = wide(value[d]);
    }
    for (r = 0; r < R; ++r) {
      float *score = scores.data() + r * BLOCK;
      const float *mask = masks[r] + from;
      float largest = top[r];
      for (int64_t t = 0; t < some; ++t) {
        score[t] += mask[t];
        largest = score[t] > largest ? score[t] : largest;
      }
      const float finite = largest == -std::numeric_limits<float>::infinity() ? 0.f : largest;
      const float factor = exponential(top[r] - finite);
      float added = 0;
      for (int64_t t = 0; t < some; ++t) {
        score[t] = exponential(score[t] - finite);
        added += score[t];
      }
      top[r] = largest;
      sum[r] = sum[r] * factor + added;
      float *to = out + r * D;
      if (SIZE) {
        constexpr int64_t COUNT = SIZE ? SIZE / LANES : 1;
        lanes parts[COUNT];
        for (int64_t i = 0; i < COUNT; ++i)
          parts[i] = load(to + i * LANES) * factor;
        for (int64_t t = 0; t < some; ++t)
          for (int64_t i = 0; i < COUNT; ++i)
            parts[i] += score[t] * load(wides + t * SIZE + i * LANES);
        std::memcpy(to, parts, sizeof parts);
      } else {
        for (int64_t d = 0; d < D; ++d)
          to[d] *= factor;
        for (int64_t t = 0; t < some; ++t)
          for (int64_t d = 0; d < D; ++d)
            to[d] += score[t] * wides[t * D + d];
      }
    }
  }
  for (int64_t r = 0; r < R; ++r) // a row that sees nothing is 0
    for (int64_t d = 0; d < D; ++d)
      out[r * D + d] /= sum[r] == 0 ? 1.f : sum[r];
}

} // namespace

#define KERNELS(NAME, T)                                                                           \
  extern "C" void decode_##NAME(const float *x, const T *keys, const T *values,                    \
                                const float *const *masks, float *out, int64_t G, int64_t R,       \
                                int64_t D, int64_t key_group, int64_t key_stride,                  \
                                int64_t value_group, int64_t value_stride, int64_t count) {        \
    const auto kernel = D == 64 ? attend<T, 64> : D == 128 ? attend<T, 128> : attend<T, 0>;        \
    for (int64_t g = 0; g < G; ++g)                                                                \
      kernel(x + g * R * D, keys + g * key_group, values + g * value_group, masks + g * R,         \
             out + g * R * D, R, D, key_stride, value_stride, count);                              \
  }

KERNELS(float32, float)
KERNELS(bfloat16, bfloat16)
