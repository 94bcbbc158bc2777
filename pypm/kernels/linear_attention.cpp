// Linear attention over states that are matrices. Loaded by ctypes.
//
// Each row of a batch is computed through all steps by itself: its state, n rows of m elements, is
// read and written in the caches.

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

// Add f * x to y, both of `size` elements.
template <class T> inline void add(T f, const T *__restrict x, T *__restrict y, int64_t size) {
  for (int64_t j = 0; j < size; j++)
    y[j] += f * x[j];
}

// One step of one row. `query` and `out` may be null, and for other steps than of the delta rule,
// `removed`; `change` has room for m elements.
template <class T, bool DELTA>
void step(const T *decay, const T *key, const T *value, const T *query, const T *removed,
          const T *rates, T *state, T *__restrict out, T *__restrict change, int64_t n, int64_t m) {
  if (out)
    std::fill_n(out, m, T(0));
  if (DELTA)
    std::fill_n(change, m, T(0));
  for (int64_t i = 0; i < n; i++) {
    T *__restrict s = state + i * m;
    const T a = decay[i], k = key[i];
    if (DELTA) {
      for (int64_t j = 0; j < m; j++)
        s[j] *= a;
      add(removed[i], s, change, m);
    } else {
      for (int64_t j = 0; j < m; j++)
        s[j] = a * s[j] + k * value[j];
      if (out)
        add(query[i], s, out, m);
    }
  }
  if (!DELTA)
    return;
  for (int64_t j = 0; j < m; j++)
    change[j] = (rates ? rates[j] : T(1)) * (value[j] - change[j]);
  for (int64_t i = 0; i < n; i++) {
    T *s = state + i * m;
    add(key[i], change, s, m);
    if (out)
      add(query[i], s, out, m);
  }
}

// The rows from `first` to `last` through all steps; `state` holds the first states and then the
// last ones. All tensors are contiguous.
template <class T>
void attend(const T *decay, const T *keys, const T *values, const T *queries, const T *removed,
            const T *rates, T *state, T *out, int64_t steps, int64_t rows, int64_t n, int64_t m,
            int64_t first, int64_t last) {
  auto run = removed ? step<T, true> : step<T, false>;
  std::vector<T> change(m);
  for (int64_t row = first; row < last; row++)
    for (int64_t t = 0; t < steps; t++) {
      const int64_t at = t * rows + row, x = at * n, y = at * m;
      run(decay + x, keys + x, values + y, queries ? queries + x : nullptr,
          removed ? removed + x : nullptr, rates ? rates + y : nullptr, state + row * n * m,
          out ? out + y : nullptr, change.data(), n, m);
    }
}

} // namespace

#define KERNEL(NAME, T)                                                                            \
  extern "C" void attend_##NAME(const T *decay, const T *keys, const T *values, const T *queries,  \
                                const T *removed, const T *rates, T *state, T *out, int64_t steps, \
                                int64_t rows, int64_t n, int64_t m, int64_t first, int64_t last) { \
    attend(decay, keys, values, queries, removed, rates, state, out, steps, rows, n, m, first,     \
           last);                                                                                  \
  }

KERNEL(float32, float)
KERNEL(float64, double)
