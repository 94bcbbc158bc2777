// Linear attention over states that are matrices. Loaded by ctypes.
//
// Columns of a state do not depend on each other: copies of some go through all steps at a time, so
// that they stay in the first cache, and what is read of them in registers.

#include <cstdint>
#include <vector>

namespace {

constexpr int64_t TOGETHER = 4; // vectors of a row at a time

// The items of a row of the batch, from the first step on; null for a tensor that there is not.
template <class T> struct Items {
  const T *items;
  int64_t step; // elements from an item to that of the next step
  const T *at(int64_t t) const { return items + t * step; }
};

template <class T> struct Row {
  Items<T> decay, keys, values, queries, removed, rates;
  T *state, *out;
  int64_t steps, n, m, decays, out_step; // `decays`: 1, or 0 if one decay is for all rows of a state
};

// Columns from `column` on, W vectors of type V, through all steps.
template <class T, class V, int64_t W, bool DELTA, bool READ>
void columns(const Row<T> &x, int64_t column) {
  constexpr int64_t LANES = sizeof(V) / sizeof(T);
  typedef V Vector __attribute__((aligned(alignof(T)), may_alias));
  std::vector<V> copy(x.n * W);
  V *const state = copy.data();
  const auto each = [&](auto use) {
    for (int64_t i = 0; i < x.n; i++)
      for (int64_t w = 0; w < W; w++)
        use(state[i * W + w], *(Vector *)(x.state + i * x.m + column + w * LANES));
  };
  each([](V &s, Vector &all) { s = all; });
  for (int64_t t = 0; t < x.steps; t++) {
    const T *decay = x.decay.at(t), *key = x.keys.at(t), *query = x.queries.at(t);
    const T *removed = x.removed.at(t), *value = x.values.at(t), *rate = x.rates.at(t);
    V added[W] = {}, sums[W] = {};
    if (DELTA)
      for (int64_t i = 0; i < x.n; i++)
#pragma GCC unroll 4
        for (int64_t w = 0; w < W; w++)
          added[w] += removed[i] * (decay[i * x.decays] * state[i * W + w]);
    for (int64_t w = 0; w < W; w++) {
      added[w] = *(const Vector *)(value + column + w * LANES) - added[w];
      if (DELTA && x.rates.items)
        added[w] *= *(const Vector *)(rate + column + w * LANES);
    }
    for (int64_t i = 0; i < x.n; i++)
#pragma GCC unroll 4
      for (int64_t w = 0; w < W; w++) {
        V &s = state[i * W + w];
        s = decay[i * x.decays] * s + key[i] * added[w];
        if (READ)
          sums[w] += query[i] * s;
      }
    if (READ)
      for (int64_t w = 0; w < W; w++)
        *(Vector *)(x.out + t * x.out_step + column + w * LANES) = sums[w];
  }
  each([](V &s, Vector &all) { all = s; });
}

template <class T, bool DELTA, bool READ> void all_columns(const Row<T> &x) {
  typedef T Vector __attribute__((vector_size(32)));
  constexpr int64_t LANES = 32 / sizeof(T);
  int64_t j = 0;
  for (; j + TOGETHER * LANES <= x.m; j += TOGETHER * LANES)
    columns<T, Vector, TOGETHER, DELTA, READ>(x, j);
  for (; j + LANES <= x.m; j += LANES)
    columns<T, Vector, 1, DELTA, READ>(x, j);
  for (; j < x.m; j++)
    columns<T, T, 1, DELTA, READ>(x, j);
}

// The rows from `first` to `last` through all steps; `state` holds the first states and then the
// last ones. `strides` are those of steps and rows of each tensor that is read. States and results
// are contiguous.
template <class T>
void attend(const T *const *tensors, const int64_t *strides, T *state, T *out, int64_t steps,
            int64_t rows, int64_t n, int64_t m, int64_t decays, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; row++) {
    const auto items = [&](int64_t i) {
      return Items<T>{tensors[i] ? tensors[i] + row * strides[2 * i + 1] : nullptr, strides[2 * i]};
    };
    const Row<T> given{items(0), items(1), items(2), items(3), items(4), items(5),
                       state + row * n * m, out + row * m, steps, n, m, decays, rows * m};
    if (tensors[4])
      tensors[3] ? all_columns<T, true, true>(given) : all_columns<T, true, false>(given);
    else
      tensors[3] ? all_columns<T, false, true>(given) : all_columns<T, false, false>(given);
  }
}

} // namespace

#define KERNEL(NAME, T)                                                                            \
  extern "C" void attend_##NAME(const T *const *tensors, const int64_t *strides, T *state, T *out, \
                                int64_t steps, int64_t rows, int64_t n, int64_t m, int64_t decays, \
                                int64_t first, int64_t last) {                                     \
    attend(tensors, strides, state, out, steps, rows, n, m, decays, first, last);                  \
  }

KERNEL(float32, float)
KERNEL(float64, double)
