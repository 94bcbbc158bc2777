// Linear attention over states that are matrices.
//
// Columns of a state do not depend on each other: copies of some go through all steps at a time, so
// that they stay in the first cache, and what is read of them in registers.

#include <cstdint>
#include <vector>

#include "operators.h"

namespace {

using operators::fits, operators::Tensor;

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

template <class T> void all_steps(const Row<T> &x) {
  if (x.removed.items)
    x.queries.items ? all_columns<T, true, true>(x) : all_columns<T, true, false>(x);
  else
    x.queries.items ? all_columns<T, false, true>(x) : all_columns<T, false, false>(x);
}

// The items of a row of the batch, of a tensor [steps, rows, ...] that may not be there.
template <class T> Items<T> items(const std::optional<Tensor> &x, int64_t row) {
  if (!x)
    return {nullptr, 0};
  return {operators::data<T>(*x) + row * x->stride(1), x->stride(0)};
}

std::tuple<Tensor, Tensor>
linear_attention(const Tensor &decay, const Tensor &keys, const Tensor &values,
                 const std::optional<Tensor> &queries, const std::optional<Tensor> &removed,
                 const std::optional<Tensor> &rates, const Tensor &state) {
  REQUIRE(keys.dim() == 3 && state.dim() == 3);
  const int64_t steps = keys.size(0), rows = state.size(0), n = state.size(1), m = state.size(2);
  const auto type = state.scalar_type();
  const std::vector<int64_t> keyed = {steps, rows, n}, valued = {steps, rows, m};
  REQUIRE(fits(decay, keyed, type) && fits(keys, keyed, type) && fits(values, valued, type));
  REQUIRE(fits(queries, keyed, type) && fits(removed, keyed, type) && fits(rates, valued, type));
  const auto packed = [](const std::optional<Tensor> &x) {
    return x ? std::optional(operators::packed(*x)) : std::nullopt;
  };
  const bool one_decay = decay.stride(2) == 0;
  const auto factors = one_decay ? std::optional(decay) : packed(decay);
  const auto k = packed(keys), v = packed(values), q = packed(queries), r = packed(removed),
             rate = packed(rates);
  const Tensor out = operators::empty({queries ? steps : 0, rows, m}, type);
  const Tensor last = operators::copied(state);
  operators::of_type<float, double>(state, [&](auto zero) {
    typedef decltype(zero) T;
    T *states = operators::written<T>(last), *results = operators::written<T>(out);
    operators::in_parts(rows, steps * state.numel(), [&](int64_t first, int64_t after) {
      for (int64_t row = first; row < after; row++)
        all_steps(Row<T>{items<T>(factors, row), items<T>(k, row), items<T>(v, row),
                         items<T>(q, row), items<T>(r, row), items<T>(rate, row),
                         states + row * n * m, results + row * m, steps, n, m, !one_decay,
                         rows * m});
    });
  });
  return {out, last};
}

} // namespace

OPERATOR(linear_attention_native,
         "(Tensor decay, Tensor keys, Tensor values, Tensor? queries, Tensor? removed, "
         "Tensor? rates, Tensor state) -> (Tensor, Tensor)",
         linear_attention)
