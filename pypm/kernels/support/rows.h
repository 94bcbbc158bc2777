// Attention of a few rows over a block of keys, in one pass: scores, softmax so far, sum of values.
//
// Letters: D, E elements of a key's and a value's head; R rows. T is the type of the tensors, A
// that of the sums. Accumulators are as many as the registers of the processor hold.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "exponential.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace rows {

using exponentials::exponential;

// Floats of a vector, accumulators of scores, and vectors of a value at a time.
#ifdef __AVX512F__
constexpr int64_t LANES = 16, TILE = 16, WIDTH = 4;
#else
constexpr int64_t LANES = 8, TILE = 8, WIDTH = 2;
#endif
constexpr int64_t BLOCK = 128;         // keys at a time, which stay in a near cache
constexpr int64_t ROOM = BLOCK + TILE; // tiles may end behind a block
constexpr int64_t TOGETHER = 4;        // rows that share what is loaded of a key
constexpr int64_t LINE = 64;           // bytes of a line of the caches
constexpr int64_t AHEAD = 16;          // keys that are loaded before they are needed
typedef float lanes __attribute__((vector_size(4 * LANES)));

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
inline double wide(double x) { return x; }

inline void store(float x, float *to) { *to = x; }
inline void store(double x, double *to) { *to = x; }
inline void store(float x, bfloat16 *to) { // to nearest, ties to even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  to->bits = x != x ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline lanes load(const float *from) {
  lanes x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
inline lanes load(const bfloat16 *from) { // compilers widen vectors half by half
  typedef uint32_t words __attribute__((vector_size(4 * LANES)));
#if defined(__AVX512F__)
  const auto x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
#elif defined(__AVX2__)
  const auto x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
#else
  typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
  halves bits;
  std::memcpy(&bits, from, sizeof bits);
  const words x = __builtin_convertvector(bits, words);
#endif
  return (lanes)((words)x << 16);
}

// Some elements of two rows at a time, and their product added to a sum.
template <class T>
struct Piece {
  static constexpr int64_t STEP = LANES;
  typedef lanes type;
  static type of(const T *from) { return load(from); }
  static void add(lanes &sum, type x, type y) { sum += x * y; }
};

#ifdef __AVX512BF16__
template <>
struct Piece<bfloat16> {
  static constexpr int64_t STEP = 2 * LANES;
  typedef __m512bh type;
  static type of(const bfloat16 *from) { return (__m512bh)_mm512_loadu_si512(from); }
  static void add(lanes &sum, type x, type y) { sum = (lanes)_mm512_dpbf16_ps((__m512)sum, x, y); }
};
#endif

// Rows as `products` reads them: once for each key, so bfloat16 is widened before, if it must be.
template <class T> const T *prepared(const T *x, int64_t, std::vector<float> &) { return x; }
#ifndef __AVX512BF16__
inline const float *prepared(const bfloat16 *x, int64_t count, std::vector<float> &room) {
  for (int64_t i = 0; i < count; ++i)
    room.push_back(wide(x[i]));
  return room.data();
}
#endif

// The sum of all lanes of each vector; the vectors are overwritten.
#ifdef __AVX512F__
inline lanes pairs(lanes x, lanes y) { // sums of two neighbouring lanes, those of x before those of y
  return __builtin_shufflevector(x, y, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
         __builtin_shufflevector(x, y, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

inline void totals(lanes *x, float *to) {
  for (int64_t n = TILE / 2; n > 0; n /= 2)
    for (int64_t i = 0; i < n; ++i)
      x[i] = pairs(x[2 * i], x[2 * i + 1]);
  std::memcpy(to, x, TILE * sizeof(float));
}
#else
inline lanes pairs(lanes x, lanes y) { // the same in each half: halves are exchanged slowly
  return __builtin_shufflevector(x, y, 0, 2, 8, 10, 4, 6, 12, 14) +
         __builtin_shufflevector(x, y, 1, 3, 9, 11, 5, 7, 13, 15);
}

inline void totals(lanes *x, float *to) {
  const lanes low = pairs(pairs(x[0], x[1]), pairs(x[2], x[3]));
  const lanes high = pairs(pairs(x[4], x[5]), pairs(x[6], x[7]));
  const lanes sums = __builtin_shufflevector(low, high, 0, 1, 2, 3, 8, 9, 10, 11) +
                     __builtin_shufflevector(low, high, 4, 5, 6, 7, 12, 13, 14, 15);
  std::memcpy(to, &sums, sizeof sums);
}
#endif

// Begin to load so many elements.
template <class T> inline void fetch(const T *from, int64_t count) {
  for (int64_t i = 0; i < count; i += LINE / int64_t(sizeof(T)))
    __builtin_prefetch(from + i);
}

// Products of N rows, which `prepared` returned, with TILE / N keys, row by row.
template <int64_t N, class X, class T>
[[gnu::always_inline]] inline void tile(const X *x, const T *const *keys, int64_t D, float *total) {
  constexpr int64_t K = TILE / N;
  typedef Piece<T> piece;
  const int64_t whole = D - D % piece::STEP;
  lanes sums[TILE] = {};
  for (int64_t d = 0; d < whole; d += piece::STEP) {
    typename Piece<X>::type mine[N];
    for (int64_t r = 0; r < N; ++r)
      mine[r] = Piece<X>::of(x + r * D + d);
    for (int64_t i = 0; i < K; ++i) {
      const auto theirs = piece::of(keys[i] + d);
      for (int64_t r = 0; r < N; ++r)
        piece::add(sums[r * K + i], mine[r], theirs);
    }
  }
  totals(sums, total);
  for (int64_t d = whole; d < D; ++d)
    for (int64_t r = 0; r < N; ++r)
      for (int64_t i = 0; i < K; ++i)
        total[r * K + i] += wide(x[r * D + d]) * wide(keys[i][d]);
}

// Scores of N rows and all keys, row by row; behind the last key are its scores again. Keys and
// values are loaded ahead: processors do not foresee that several of them are read at a time.
template <int64_t N, class X, class T>
void products(const X *x, const T *const *keys, const T *const *values, int64_t count, int64_t D,
              int64_t E, float *scores) {
  constexpr int64_t K = TILE / N; // keys at a time
  for (int64_t t = 0; t < count; t += K) {
    const T *at[K];
    for (int64_t i = 0; i < K; ++i)
      at[i] = keys[std::min(t + i, count - 1)];
    for (int64_t i = t; i < std::min(t + K, count); ++i) {
      if (i + AHEAD < count)
        fetch(keys[i + AHEAD], D);
      fetch(values[i], E);
    }
    float total[TILE];
    tile<N>(x, at, D, total);
    for (int64_t r = 0; r < N; ++r)
      for (int64_t i = 0; i < K; ++i)
        scores[r * ROOM + t + i] = total[r * K + i];
  }
}

template <int64_t N>
void products(const double *x, const double *const *keys, const double *const *, int64_t count,
              int64_t D, int64_t, double *scores) {
  for (int64_t r = 0; r < N; ++r)
    for (int64_t t = 0; t < count; ++t) {
      double score = 0;
      for (int64_t d = 0; d < D; ++d)
        score += x[r * D + d] * keys[t][d];
      scores[r * ROOM + t] = score;
    }
}

// Add the weighted values to N rows, each of which is first multiplied by its factor: of the
// elements from `e` on, so many vectors at a time. Return how many elements are done.
template <int64_t N, int64_t VECTORS, class T>
int64_t add(const float *weights, const float *factors, const T *const *values, int64_t count,
            int64_t e, int64_t E, float *out) {
  for (; e + VECTORS * LANES <= E; e += VECTORS * LANES) {
    lanes sums[N][VECTORS];
    for (int64_t r = 0; r < N; ++r)
      for (int64_t i = 0; i < VECTORS; ++i)
        sums[r][i] = load(out + r * E + e + i * LANES) * factors[r];
    for (int64_t t = 0; t < count; ++t)
      for (int64_t i = 0; i < VECTORS; ++i) {
        const lanes value = load(values[t] + e + i * LANES);
        for (int64_t r = 0; r < N; ++r)
          sums[r][i] += weights[r * ROOM + t] * value;
      }
    for (int64_t r = 0; r < N; ++r)
      std::memcpy(out + r * E + e, sums[r], sizeof sums[r]);
  }
  return e;
}

template <int64_t N, class T>
void add(const float *weights, const float *factors, const T *const *values, int64_t count,
         int64_t E, float *out) {
  int64_t e = add<N, WIDTH>(weights, factors, values, count, 0, E, out);
  e = add<N, 1>(weights, factors, values, count, e, E, out);
  for (; e < E; ++e)
    for (int64_t r = 0; r < N; ++r) {
      float sum = out[r * E + e] * factors[r];
      for (int64_t t = 0; t < count; ++t)
        sum += weights[r * ROOM + t] * wide(values[t][e]);
      out[r * E + e] = sum;
    }
}

template <int64_t N>
void add(const double *weights, const double *factors, const double *const *values, int64_t count,
         int64_t E, double *out) {
  for (int64_t r = 0; r < N; ++r) {
    for (int64_t e = 0; e < E; ++e)
      out[r * E + e] *= factors[r];
    for (int64_t t = 0; t < count; ++t)
      for (int64_t e = 0; e < E; ++e)
        out[r * E + e] += weights[r * ROOM + t] * values[t][e];
  }
}

template <int64_t N, class X, class T, class A>
void attend(const X *x, const T *const *keys, const T *const *values, const float *const *masks,
            int64_t from, int64_t count, int64_t D, int64_t E, A scale, A *out, A *top, A *sum) {
  A scores[N * ROOM], factors[N];
  products<N>(x, keys, values, count, D, E, scores);
  for (int64_t r = 0; r < N; ++r) {
    A *score = scores + r * ROOM;
    const float *mask = masks ? masks[r] + from : nullptr;
    for (int64_t t = 0; t < count; ++t)
      score[t] = score[t] * scale + (mask ? mask[t] : 0);
    A most[LANES];
    std::fill(most, most + LANES, top[r]);
    for (int64_t t = count; t % LANES; ++t)
      score[t] = -std::numeric_limits<A>::infinity();
    for (int64_t t = 0; t < count; t += LANES)
      for (int64_t i = 0; i < LANES; ++i)
        most[i] = score[t + i] > most[i] ? score[t + i] : most[i];
    const A largest = *std::max_element(most, most + LANES);
    const A finite = std::isinf(largest) && largest < 0 ? A(0) : largest;
    factors[r] = exponential(top[r] - finite);
    A added = 0;
    for (int64_t t = 0; t < count; ++t) {
      score[t] = exponential(score[t] - finite);
      added += score[t];
    }
    top[r] = largest;
    sum[r] = sum[r] * factors[r] + added;
  }
  add<N>(scores, factors, values, count, E, out);
}

// Attention of R rows x [R, D] over at most BLOCK keys, given by the places of keys and values.
//
// masks: for each row what is added to the scores, at `from` for the first key; or null.
// out [R, E], top [R], sum [R]: weighted values, largest score and sum of weights so far.
template <class T, class A>
void attend(const T *x, const T *const *keys, const T *const *values, const float *const *masks,
            int64_t from, int64_t count, int64_t R, int64_t D, int64_t E, A scale, A *out, A *top,
            A *sum) {
  std::vector<float> room;
  const auto *own = prepared(x, R * D, room);
  typedef std::decay_t<decltype(*own)> X;
  for (int64_t r = 0; r < R; r += TOGETHER) {
    const auto some = R - r == 1   ? attend<1, X, T, A>
                      : R - r == 2 ? attend<2, X, T, A>
                      : R - r == 3 ? attend<3, X, T, A>
                                   : attend<TOGETHER, X, T, A>;
    some(own + r * D, keys, values, masks ? masks + r : nullptr, from, count, D, E, scale,
         out + r * E, top + r, sum + r);
  }
}

} // namespace rows
