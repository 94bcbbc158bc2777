// Attention over pages: the tiles of one worker, and the join of all tiles.
//
// Letters: D, E elements of a key's and a value's head; H heads of queries, G of keys; n = H / G.
// T is the type of the tensors, A that of the sums.

#include <vector>

#include "operators.h"
#include "rows.h"

namespace {

using operators::fits, operators::Tensor;
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

// The tensors of a plan for N queries, and how many items they have.
struct Plan {
  const int64_t *tiles, *queries, *pages, *seen, *starts, *entries;
  int64_t count, rows, numbers, N, page_count, page_size;
};

// Whether this is a plan: then `attend` and `join` read and write within bounds. `objection` in
// Python says what is wrong otherwise.
bool is_plan(const Plan &x) {
  std::vector<int64_t> met(x.N);
  int64_t done = 0;
  for (int64_t number = 0; number < x.count; ++number) {
    const int64_t *tile = x.tiles + 7 * number;
    const int64_t begin = tile[0], end = tile[1], page = tile[2], last = tile[3];
    const int64_t first = tile[4], keys = tile[5];
    if (begin == end)
      continue;
    if (begin != done || end < begin || end > x.rows || tile[6] < 0 || tile[6] >= x.count)
      return false;
    if (page < 0 || last < page || last > x.numbers || first < 0 || keys <= 0 ||
        last - page != (keys - 1) / x.page_size + 1)
      return false;
    for (int64_t i = page; i < last; ++i)
      if (x.pages[i] < 0 || x.pages[i] >= x.page_count)
        return false;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t query = x.queries[row];
      if (query < 0 || query >= x.N)
        return false;
      if (x.seen[query] > first)
        met[query] += std::min(keys, x.seen[query] - first);
    }
    done = end;
  }
  if (x.starts[0] != 0 || x.starts[x.N] != done)
    return false;
  for (int64_t i = 0; i < x.N; ++i) {
    if (x.starts[i] < 0 || x.starts[i] > x.starts[i + 1] || x.starts[i + 1] > done)
      return false;
    for (int64_t j = x.starts[i]; j < x.starts[i + 1]; ++j)
      if (x.entries[j] < 0 || x.entries[j] >= done || x.queries[x.entries[j]] != i)
        return false;
  }
  for (int64_t i = 0; i < x.N; ++i)
    if (met[i] != x.seen[i])
      return false;
  return true;
}

// The number of workers among which a plan's tiles are shared.
int64_t workers(const Plan &x) {
  int64_t found = 0;
  for (int64_t number = 0; number < x.count; ++number) {
    const int64_t *tile = x.tiles + 7 * number;
    if (tile[0] != tile[1])
      found = std::max(found, tile[6] + 1);
  }
  return found;
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

Tensor paged_attention(const Tensor &given, const Tensor &k_pages, const Tensor &v_pages,
                       const Tensor &of_tiles, const Tensor &of_rows, const Tensor &of_pages,
                       const Tensor &of_seen, const Tensor &of_starts, const Tensor &of_entries,
                       std::optional<double> scale) {
  using operators::data, operators::written;
  REQUIRE(given.dim() == 3 && k_pages.dim() == 4 && v_pages.dim() == 4);
  const int64_t N = given.size(0), H = given.size(1), D = given.size(2), G = k_pages.size(2),
                E = v_pages.size(3), page_count = k_pages.size(0), page_size = k_pages.size(1);
  const auto type = given.scalar_type(), whole = torch::headeronly::ScalarType::Long;
  REQUIRE(fits(k_pages, {page_count, page_size, G, D}, type));
  REQUIRE(fits(v_pages, {page_count, page_size, G, E}, type) && G > 0 && H % G == 0);
  REQUIRE(of_tiles.dim() == 2 && of_rows.dim() == 1 && of_pages.dim() == 1);
  const int64_t count = of_tiles.size(0), some = of_rows.size(0), numbers = of_pages.size(0);
  REQUIRE(fits(of_tiles, {count, 7}, whole) && (count == 0 || page_size > 0));
  REQUIRE(fits(of_rows, {some}, whole) && fits(of_entries, {some}, whole));
  REQUIRE(fits(of_pages, {numbers}, whole) && fits(of_seen, {N}, whole));
  REQUIRE(fits(of_starts, {N + 1}, whole));
  const Tensor q = operators::contiguous(given), k = operators::contiguous(k_pages),
               v = operators::contiguous(v_pages), tiles = operators::contiguous(of_tiles),
               queries = operators::contiguous(of_rows), pages = operators::contiguous(of_pages),
               seen = operators::contiguous(of_seen), starts = operators::contiguous(of_starts),
               entries = operators::contiguous(of_entries);
  const Plan plan = {data<int64_t>(tiles),  data<int64_t>(queries), data<int64_t>(pages),
                     data<int64_t>(seen),   data<int64_t>(starts),  data<int64_t>(entries),
                     count, some, numbers, N, page_count, page_size};
  STD_TORCH_CHECK(is_plan(plan), "the tensors are no plan for these queries and pages; "
                                 "`pypm::paged_attention`, called in Python, says why");
  const Tensor out = operators::empty({N, H, E}, type);
  operators::of_type<float, double, bfloat16>(q, [&](auto zero) {
    typedef decltype(zero) T;
    typedef decltype(rows::wide(zero)) A;
    std::vector<A> part(some * H * E), top(some * H), sum(some * H);
    const T *x = data<T>(q), *keys = data<T>(k), *values = data<T>(v);
    const double factor = scale ? *scale : std::pow(double(D), -0.5);
    torch::stable::parallel_for(0, workers(plan), 1, [&](int64_t first, int64_t after) {
      for (int64_t worker = first; worker < after; ++worker)
        attend(x, keys, values, plan.tiles, count, worker, plan.queries, plan.pages, plan.seen,
               part.data(), top.data(), sum.data(), H, G, D, E, page_size, factor);
    });
    join(part.data(), top.data(), sum.data(), plan.starts, plan.entries, plan.seen,
         written<T>(out), N, H, E);
  });
  return out;
}

} // namespace

OPERATOR(paged_attention_native,
         "(Tensor q, Tensor k_pages, Tensor v_pages, Tensor tiles, Tensor rows, Tensor pages, "
         "Tensor seen, Tensor starts, Tensor entries, float? scale) -> Tensor",
         paged_attention)
