// Attention over pages: the tiles of one worker, and the join of all tiles. Loaded by ctypes.
//
// Letters: D, E elements of a key's and a value's head; H heads of queries, G of keys; n = H / G.
// T is the type of the tensors, A that of the sums.

#include "rows.h"

#include <vector>

namespace {

using rows::bfloat16;

constexpr int64_t KEYS = 32; // at a time: of all heads, they stay in a near cache
constexpr int64_t LINE = 64; // bytes of a cache line
static_assert(KEYS <= rows::BLOCK);

template <class T>
void prefetch(const T *from, int64_t count) {
  const char *at = reinterpret_cast<const char *>(from);
  for (int64_t i = 0; i < count * int64_t(sizeof(T)); i += LINE)
    __builtin_prefetch(at + i, 0, 2);
}

template <class T, class A>
void attend(const T *q, const T *keys, const T *values, const int64_t *tiles, int64_t count,
            int64_t worker, const int64_t *queries, const int64_t *pages, const int64_t *seen,
            A *part, A *top, A *sum, int64_t H, int64_t G, int64_t D, int64_t E, int64_t page_size,
            double scale) {
  const int64_t n = H / G;
  int64_t slots[KEYS];
  const T *k[KEYS], *v[KEYS];
  for (int64_t number = 0; number < count; ++number) {
    const int64_t *tile = tiles + 7 * number;
    const int64_t begin = tile[0], end = tile[1], first = tile[4], total = tile[5];
    if (tile[6] != worker)
      continue;
    std::fill(part + begin * H * E, part + end * H * E, A(0));
    std::fill(top + begin * H, top + end * H, -std::numeric_limits<A>::infinity());
    std::fill(sum + begin * H, sum + end * H, A(0));
    for (int64_t from = 0; from < total; from += KEYS) {
      const int64_t block = std::min(KEYS, total - from);
      for (int64_t t = 0; t < block; ++t) {
        slots[t] = pages[tile[2] + (from + t) / page_size] * page_size + (from + t) % page_size;
        prefetch(keys + slots[t] * G * D, G * D); // in the order of memory; below, head by head
        prefetch(values + slots[t] * G * E, G * E);
      }
      for (int64_t g = 0; g < G; ++g) {
        for (int64_t t = 0; t < block; ++t) {
          k[t] = keys + (slots[t] * G + g) * D;
          v[t] = values + (slots[t] * G + g) * E;
        }
        for (int64_t row = begin; row < end; ++row) {
          const int64_t some = std::min(block, seen[queries[row]] - first - from);
          const int64_t at = row * H + g * n;
          if (some > 0)
            rows::attend(q + (queries[row] * H + g * n) * D, k, v, nullptr, 0, some, n, D, E,
                         A(scale), part + at * E, top + at, sum + at);
        }
      }
    }
  }
}

// The number of what is wrong with the tensors of a plan, as `OBJECTIONS` lists them, or 0. What
// passes is read and written within bounds by `attend` and `join`.
int64_t objection_of(const int64_t *tiles, int64_t count, const int64_t *queries, int64_t rows,
                     const int64_t *pages, int64_t numbers, const int64_t *seen,
                     const int64_t *starts, const int64_t *entries, int64_t places, int64_t N,
                     int64_t page_count, int64_t page_size) {
  std::vector<int64_t> met(N);
  int64_t done = 0;
  for (int64_t number = 0; number < count; ++number) {
    const int64_t *tile = tiles + 7 * number;
    const int64_t begin = tile[0], end = tile[1], page = tile[2], last = tile[3];
    const int64_t first = tile[4], keys = tile[5];
    if (begin == end)
      continue;
    if (begin != done || end < begin || end > rows || tile[6] < 0 || tile[6] >= count)
      return 1;
    if (page < 0 || last < page || last > numbers || first < 0 || keys <= 0 ||
        last - page != (keys - 1) / page_size + 1)
      return 2;
    for (int64_t i = page; i < last; ++i)
      if (pages[i] < 0 || pages[i] >= page_count)
        return 4;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t query = queries[row];
      if (query < 0 || query >= N)
        return 3;
      if (seen[query] > first)
        met[query] += std::min(keys, seen[query] - first);
    }
    done = end;
  }
  if (starts[0] != 0 || starts[N] != done || done > places)
    return 5;
  for (int64_t i = 0; i < N; ++i) {
    if (starts[i] < 0 || starts[i] > starts[i + 1] || starts[i + 1] > done)
      return 5;
    for (int64_t j = starts[i]; j < starts[i + 1]; ++j)
      if (entries[j] < 0 || entries[j] >= done || queries[entries[j]] != i)
        return 5;
  }
  for (int64_t i = 0; i < N; ++i)
    if (met[i] != seen[i])
      return 6;
  return 0;
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
        const A factor = rows::exponential(top[at] - finite);
        total += sum[at] * factor;
        for (int64_t e = 0; e < E; ++e)
          result[e] += part[at * E + e] * factor;
      }
      for (int64_t e = 0; e < E; ++e) // a query that sees keys, all of weight 0, is NaN as 0 / 0
        rows::store(seen[i] > 0 ? result[e] / total : A(0), out + (i * H + h) * E + e);
    }
}

} // namespace

#define KERNELS(NAME, T, A)                                                                        \
  extern "C" void attend_##NAME(                                                                   \
      const T *q, const T *keys, const T *values, const int64_t *tiles, int64_t count,             \
      int64_t worker, const int64_t *queries, const int64_t *pages, const int64_t *seen, A *part,  \
      A *top, A *sum, int64_t H, int64_t G, int64_t D, int64_t E, int64_t page_size,               \
      double scale) {                                                                              \
    attend(q, keys, values, tiles, count, worker, queries, pages, seen, part, top, sum, H, G, D,   \
           E, page_size, scale);                                                                   \
  }                                                                                                \
  extern "C" void join_##NAME(const A *part, const A *top, const A *sum, const int64_t *starts,    \
                              const int64_t *entries, const int64_t *seen, T *out, int64_t N,      \
                              int64_t H, int64_t E) {                                              \
    join<T, A>(part, top, sum, starts, entries, seen, out, N, H, E);                               \
  }

extern "C" int64_t objection(const int64_t *tiles, int64_t count, const int64_t *queries,
                             int64_t rows, const int64_t *pages, int64_t numbers,
                             const int64_t *seen, const int64_t *starts, const int64_t *entries,
                             int64_t places, int64_t N, int64_t page_count, int64_t page_size) {
  return objection_of(tiles, count, queries, rows, pages, numbers, seen, starts, entries, places,
                        N, page_count, page_size);
}

KERNELS(float32, float, float)
KERNELS(float64, double, double)
KERNELS(bfloat16, bfloat16, float)
