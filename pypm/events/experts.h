// Bodies of the tiles of a mixture of experts: the choice of experts, their hidden units, and the sum.
//
// T and B are as in bodies.h; K experts are chosen for each row. A slot is b * K + k.

#pragma once

#include "bodies.h"

namespace experts {

using bodies::Norm;
using bodies::Weight;
using rows::store;
using rows::wide;

// The experts of each row, and their weights, by slots.
struct Choice {
  int64_t top, count; // K, and how many experts there are
  std::vector<int64_t> numbers;
  std::vector<float> weights;
};

// Softmax over the products of a normalized row and the router, and the K largest of it.
template <class T> struct Route {
  const T *x; // [B, size]
  Norm<T> norm;
  Weight<T> router; // count outputs
  int64_t size;
  bool is_normalized; // weights are divided by their sum
  Choice *choice;

  void operator()(int64_t b) const {
    const int64_t count = choice->count, top = choice->top;
    std::vector<T> row(size), logits(count);
    bodies::normalize(x + b * size, norm, size, row.data());
    bodies::product(row.data(), router, 1, size, count, 0, count, logits.data());
    std::vector<float> share(count);
    float most = -std::numeric_limits<float>::infinity(), total = 0, chosen = 0;
    for (const T each : logits)
      most = std::max(most, wide(each));
    for (int64_t e = 0; e < count; ++e)
      total += share[e] = std::exp(wide(logits[e]) - most);
    for (int64_t k = 0; k < top; ++k) {
      int64_t best = 0;
      for (int64_t e = 1; e < count; ++e)
        best = share[e] > share[best] ? e : best;
      choice->numbers[b * top + k] = best;
      chosen += choice->weights[b * top + k] = share[best] / total;
      share[best] = -1; // all others are at least 0
    }
    for (int64_t k = 0; is_normalized && k < top; ++k)
      choice->weights[b * top + k] /= chosen;
  }
};

// activation(norm(x) gate^T) * (norm(x) up^T) by one expert, for the rows that chose it: one tile of
// columns, of out [B * K, columns].
template <class T> struct Hidden {
  const T *x; // [B, size]
  T *out;
  Norm<T> norm;
  Weight<T> up, gate; // of the first expert; `step` elements on are those of the next
  int64_t size, columns, step;
  bodies::Activation activation;
  const Choice *choice;

  void operator()(int64_t e, int64_t first, int64_t after) const {
    std::vector<int64_t> slots;
    for (size_t slot = 0; slot < choice->numbers.size(); ++slot)
      if (choice->numbers[slot] == e)
        slots.push_back(slot);
    const int64_t count = slots.size(), width = after - first;
    std::vector<T> rows(count * size), y(count * width), gates(count * width);
    for (int64_t n = 0; n < count; ++n)
      bodies::normalize(x + slots[n] / choice->top * size, norm, size, rows.data() + n * size);
    const auto multiplied = [&](Weight<T> w, std::vector<T> &to) {
      w.matrix += e * step;
      bodies::product(rows.data(), w.from(first, size), count, size, width, 0, width, to.data());
    };
    multiplied(up, y), multiplied(gate, gates);
    for (int64_t n = 0; n < count; ++n)
      for (int64_t i = 0; i < width; ++i)
        store(bodies::rounded<T>(bodies::activated(wide(gates[n * width + i]), activation)) *
                  wide(y[n * width + i]),
              out + slots[n] * columns + first + i);
  }
};

// The residual and the weighted sum of what the experts of a row make of it: one tile of columns.
template <class T> struct Sum {
  const T *x;        // [B * K, size]
  const T *residual; // [B, columns]
  T *out;            // [B, columns]
  Weight<T> down;    // as above
  int64_t size, columns, step;
  const Choice *choice;

  void operator()(int64_t b, int64_t first, int64_t after) const {
    const int64_t width = after - first;
    std::vector<T> y(width);
    std::vector<float> total(width);
    for (int64_t slot = b * choice->top; slot < (b + 1) * choice->top; ++slot) {
      Weight<T> w = down;
      w.matrix += choice->numbers[slot] * step;
      bodies::product(x + slot * size, w.from(first, size), 1, size, width, 0, width, y.data());
      for (int64_t i = 0; i < width; ++i)
        total[i] += choice->weights[slot] * wide(y[i]);
    }
    for (int64_t i = 0; i < width; ++i)
      store(bodies::rounded<T>(total[i]) + wide(residual[b * columns + first + i]),
            out + b * columns + first + i);
  }
};

} // namespace experts
