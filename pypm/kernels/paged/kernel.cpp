// Attention over pages: the tiles of one worker, and the join of all tiles. Loaded by ctypes.
//
// Letters: D, E elements of a key's and a value's head; H heads of queries, G of keys; n = H / G.
// T is the type of the tensors, A that of the sums.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

constexpr int64_t BLOCK = 32; // keys at a time: their scores stay in the first cache
constexpr int64_t LINE = 64;  // bytes of a cache line

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

template <class T>
void prefetch(const T *from, int64_t count) {
  const char *at = reinterpret_cast<const char *>(from);
  for (int64_t i = 0; i < count * int64_t(sizeof(T)); i += LINE)
    __builtin_prefetch(at + i, 0, 2);
}

// SIZE is D and E where these are equal and known to the compiler, else 0.
template <class T, class A, int64_t SIZE>
void attend(const T *q, const T *keys, const T *values, const int64_t *tiles, int64_t count,
            int64_t worker, const int64_t *rows, const int64_t *pages, const int64_t *seen,
            A *part, A *top, A *sum, int64_t H, int64_t G, int64_t D_, int64_t E_, int64_t page_size,
            double scale) {
  const int64_t n = H / G, D = SIZE ? SIZE : D_, E = SIZE ? SIZE : E_;
  std::vector<A> x(D), weights(BLOCK);
  std::vector<const T *> k(BLOCK), v(BLOCK);
  for (int64_t number = 0; number < count; ++number) {
    const int64_t *tile = tiles + 7 * number;
    const int64_t begin = tile[0], end = tile[1], first = tile[4], total = tile[5];
    if (tile[6] != worker)
      continue;
    std::fill(part + begin * H * E, part + end * H * E, A(0));
    std::fill(top + begin * H, top + end * H, -std::numeric_limits<A>::infinity());
    std::fill(sum + begin * H, sum + end * H, A(0));
    for (int64_t from = 0; from < total; from += BLOCK) {
      const int64_t block = std::min(BLOCK, total - from);
      for (int64_t t = 0; t < block; ++t) {
        const int64_t slot =
            pages[tile[2] + (from + t) / page_size] * page_size + (from + t) % page_size;
        k[t] = keys + slot * G * D;
        v[t] = values + slot * G * E;
        prefetch(k[t], G * D); // in the order of memory; the loops below go head by head
        prefetch(v[t], G * E);
      }
      for (int64_t g = 0; g < G; ++g)
        for (int64_t row = begin; row < end; ++row) {
          const int64_t some = std::min(block, seen[rows[row]] - first - from);
          for (int64_t h = g * n; some > 0 && h < (g + 1) * n; ++h) {
            const T *query = q + (rows[row] * H + h) * D;
            for (int64_t d = 0; d < D; ++d)
              x[d] = wide(query[d]) * A(scale);
            const A old = top[row * H + h];
            A largest = old;
            for (int64_t t = 0; t < some; ++t) {
              const T *key = k[t] + g * D;
              const A *one = x.data();
              A score = 0;
              for (int64_t d = 0; d < D; ++d)
                score += one[d] * wide(key[d]);
              weights[t] = score;
              largest = score > largest ? score : largest;
            }
            const A finite = std::isinf(largest) && largest < 0 ? A(0) : largest;
            const A factor = exponential(old - finite);
            A added = 0;
            for (int64_t t = 0; t < some; ++t) {
              weights[t] = exponential(weights[t] - finite);
              added += weights[t];
            }
            top[row * H + h] = largest;
            sum[row * H + h] = sum[row * H + h] * factor + added;
            A *to = part + (row * H + h) * E;
            for (int64_t e = 0; e < E; ++e)
              to[e] *= factor;
            for (int64_t t = 0; t < some; ++t) {
              const T *value = v[t] + g * E;
              const A weight = weights[t];
              for (int64_t e = 0; e < E; ++e)
                to[e] += weight * wide(value[e]);
            }
          }
        }
    }
  }
}

// Join the parts of each query by their largest scores. `starts` and `entries` list the rows of the
// tiles, query by query.
template <class T, class A>
void join(const A *part, const A *top, const A *sum, const int64_t *starts, const int64_t *entries,
          const int64_t *seen, T *out, int64_t N, int64_t H, int64_t E) {
  std::vector<A> result(E);
  for (int64_t i = 0; i < N; ++i)
    for (int64_t h = 0; h < H; ++h) {
      A largest = -std::numeric_limits<A>::infinity(), total = 0;
      for (int64_t j = starts[i]; j < starts[i + 1]; ++j)
        largest = std::max(largest, top[entries[j] * H + h]);
      const A finite = std::isinf(largest) && largest < 0 ? A(0) : largest;
      std::fill(result.begin(), result.end(), A(0));
      for (int64_t j = starts[i]; j < starts[i + 1]; ++j) {
        const int64_t at = entries[j] * H + h;
        const A factor = exponential(top[at] - finite);
        total += sum[at] * factor;
        for (int64_t e = 0; e < E; ++e)
          result[e] += part[at * E + e] * factor;
      }
      for (int64_t e = 0; e < E; ++e) // a query that sees keys, all of weight 0, is NaN as 0 / 0
        store(seen[i] > 0 ? result[e] / total : A(0), out + (i * H + h) * E + e);
    }
}

} // namespace

#define KERNELS(NAME, T, A)                                                                        \
  extern "C" void attend_##NAME(                                                                   \
      const T *q, const T *keys, const T *values, const int64_t *tiles, int64_t count,             \
      int64_t worker, const int64_t *rows, const int64_t *pages, const int64_t *seen, A *part,     \
      A *top, A *sum, int64_t H, int64_t G, int64_t D, int64_t E, int64_t page_size,               \
      double scale) {                                                                              \
    const auto kernel = D != E ? attend<T, A, 0>                                                   \
                        : D == 64  ? attend<T, A, 64>                                              \
                        : D == 128 ? attend<T, A, 128>                                             \
                                   : attend<T, A, 0>;                                              \
    kernel(q, keys, values, tiles, count, worker, rows, pages, seen, part, top, sum, H, G, D, E,   \
           page_size, scale);                                                                      \
  }                                                                                                \
  extern "C" void join_##NAME(const A *part, const A *top, const A *sum, const int64_t *starts,    \
                              const int64_t *entries, const int64_t *seen, T *out, int64_t N,      \
                              int64_t H, int64_t E) {                                              \
    join<T, A>(part, top, sum, starts, entries, seen, out, N, H, E);                               \
  }

KERNELS(float32, float, float)
KERNELS(float64, double, double)
KERNELS(bfloat16, bfloat16, float)
