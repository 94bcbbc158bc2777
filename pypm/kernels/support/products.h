// Products of a few rows with the rows of a weight, and a bias.
//
// Such a product takes as long as reading the weight. Several of its rows are read at a time, each
// in order: one after the other, they would be read more slowly.

#pragma once

#include "rows.h"

namespace products {

using namespace rows;

constexpr int64_t ROWS = 4; // at most

// The columns from number `first` on, before `after`, of N rows of the result.
template <int64_t N, class X, class T>
void linear(const X *x, const T *weight, const T *bias, T *out, int64_t size, int64_t columns,
            int64_t first, int64_t after) {
  constexpr int64_t K = TILE / N; // columns at a time
  for (int64_t n = first; n < after; n += K) {
    const T *at[K];
    for (int64_t i = 0; i < K; ++i)
      at[i] = weight + std::min(n + i, after - 1) * size;
    float total[TILE];
    tile<N>(x, at, size, total);
    for (int64_t r = 0; r < N; ++r)
      for (int64_t i = 0; i < std::min(K, after - n); ++i)
        store(total[r * K + i] + (bias ? wide(bias[n + i]) : 0), out + r * columns + n + i);
  }
}

template <class T>
void linear(const T *given, const T *weight, const T *bias, T *out, int64_t rows, int64_t size,
            int64_t columns, int64_t first, int64_t after) {
  std::vector<float> room;
  const auto *x = prepared(given, rows * size, room);
  typedef std::decay_t<decltype(*x)> X;
  constexpr decltype(&linear<1, X, T>) of_rows[] = {linear<1, X, T>, linear<2, X, T>,
                                                   linear<3, X, T>, linear<4, X, T>};
  of_rows[rows - 1](x, weight, bias, out, size, columns, first, after);
}

} // namespace products
