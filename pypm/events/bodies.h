// Bodies of the tiles of a decoding step: products of the rows of a batch, and attention over a cache.
//
// T, the type of all tensors but masks, is float32 or bfloat16; sums are float32. Results are rounded
// where torch's operators round them. B is the number of rows; matrices of rows are contiguous.

#pragma once

#include <cmath>

#include "products.h"
#include "spans.h"

namespace bodies {

using rows::exponential;
using rows::store;
using rows::wide;

// A number as it is after a store and a load.
template <class T> float rounded(float x) {
  T y;
  store(x, &y);
  return wide(y);
}

enum Activation { NONE, SILU, GELU, GELU_TANH };

inline float activated(float x, Activation kind) {
  switch (kind) {
  case SILU:
    return x / (1.f + std::exp(-x));
  case GELU:
    return 0.5f * x * (1.f + std::erf(x * 0.70710678f));
  case GELU_TANH:
    return 0.5f * x * (1.f + std::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
  default:
    return x;
  }
}

// A norm of rows, or none: (x - center) / root(mean square + epsilon) * (weight + offset) + bias.
template <class T> struct Norm {
  bool exists, is_centered, is_rounded; // rounded before it is multiplied by the weight
  const T *weight, *bias;               // or null
  float epsilon, offset;
};

template <class T> void normalize(const T *x, const Norm<T> &norm, int64_t size, T *y) {
  float center = 0, squares = 0;
  if (norm.is_centered) {
    for (int64_t i = 0; i < size; ++i)
      center += wide(x[i]);
    center /= size;
  }
  for (int64_t i = 0; i < size; ++i)
    squares += (wide(x[i]) - center) * (wide(x[i]) - center);
  const float scale = 1.f / std::sqrt(squares / size + norm.epsilon);
  for (int64_t i = 0; i < size; ++i) {
    float found = (wide(x[i]) - center) * scale;
    if (norm.is_rounded)
      found = rounded<T>(found);
    store(found * (norm.weight ? wide(norm.weight[i]) + norm.offset : 1.f) +
              (norm.bias ? wide(norm.bias[i]) : 0.f),
          y + i);
  }
}

// A matrix of which `columns` outputs are computed: [outputs, size], or [size, width] if not turned.
template <class T> struct Weight {
  const T *matrix, *bias; // or null; both at the first of the outputs
  bool turned;
  int64_t width; // of a row that is not turned

  Weight from(int64_t first, int64_t size) const {
    return {matrix + first * (turned ? size : 1), bias ? bias + first : nullptr, turned, width};
  }
};

// Outputs from `first` on, before `after`, of N rows by a weight that is not turned.
template <int64_t N, class T>
void across(const T *x, const Weight<T> &w, int64_t size, int64_t columns, int64_t first,
            int64_t after, T *out) {
  std::vector<float> result(N * (after - first)), factors(N, 1.f);
  float room[N * rows::ROOM];
  const T *values[rows::BLOCK];
  for (int64_t r = 0; r < N; ++r)
    for (int64_t n = first; n < after; ++n)
      result[r * (after - first) + n - first] = w.bias ? wide(w.bias[n]) : 0.f;
  for (int64_t from = 0; from < size; from += rows::BLOCK) {
    const int64_t some = std::min(rows::BLOCK, size - from);
    for (int64_t t = 0; t < some; ++t) {
      values[t] = w.matrix + (from + t) * w.width + first;
      for (int64_t r = 0; r < N; ++r)
        room[r * rows::ROOM + t] = wide(x[r * size + from + t]);
    }
    rows::add<N>(room, factors.data(), values, some, after - first, result.data());
  }
  for (int64_t r = 0; r < N; ++r)
    for (int64_t n = first; n < after; ++n)
      store(result[r * (after - first) + n - first], out + r * columns + n);
}

// x [B, size] times a weight: outputs from `first` on, before `after`, of out [B, columns].
template <class T>
void product(const T *x, const Weight<T> &w, int64_t batch, int64_t size, int64_t columns,
             int64_t first, int64_t after, T *out) {
  constexpr decltype(&across<1, T>) of_rows[] = {across<1, T>, across<2, T>, across<3, T>,
                                                 across<4, T>};
  for (int64_t b = 0; b < batch; b += products::ROWS) {
    const int64_t some = std::min(products::ROWS, batch - b);
    const T *from = x + b * size;
    T *to = out + b * columns;
    if (w.turned)
      products::linear(from, w.matrix, w.bias, to, some, size, columns, first, after);
    else
      of_rows[some - 1](from, w, size, columns, first, after, to);
  }
}

// out = activation(norm(x) gate^T) * (norm(x) weight^T), without the gate activation(norm(x) weight^T),
// plus a residual: the columns of one tile, for all rows.
template <class T> struct Product {
  const T *x;        // [B, size]
  const T *residual; // [B, columns], or null
  T *out;            // [B, columns]
  Norm<T> norm;
  Weight<T> weight, gate; // the gate's matrix may be null
  Activation activation;
  int64_t size, columns;

  void operator()(int64_t batch, int64_t first, int64_t after) const {
    std::vector<T> room;
    const T *from = x;
    if (norm.exists) {
      room.resize(batch * size);
      for (int64_t b = 0; b < batch; ++b)
        normalize(x + b * size, norm, size, room.data() + b * size);
      from = room.data();
    }
    product(from, weight, batch, size, columns, first, after, out);
    const int64_t width = after - first;
    std::vector<T> gates(gate.matrix ? batch * width : 0);
    if (gate.matrix)
      product(from, gate.from(first, size), batch, size, width, 0, width, gates.data());
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < width; ++i) {
        T *to = out + b * columns + first + i;
        float y = wide(*to);
        y = gate.matrix ? rounded<T>(activated(wide(gates[b * width + i]), activation)) * y
                        : activated(y, activation);
        if (residual)
          y = rounded<T>(y) + wide(residual[b * columns + first + i]);
        store(y, to);
      }
  }
};

// Memory of a cache or a mask with its strides; elements of a row are side by side.
template <class T> struct Strided {
  const T *data;
  int64_t batch, head, row;

  const T *at(int64_t b, int64_t h, int64_t r) const {
    return data + b * batch + h * head + r * row;
  }
};

// Attention of one row of a batch over the heads of one group: the new key and value, rotated where
// there are angles, take the place of those at `position` in the cache.
template <class T> struct Attention {
  const T *q, *k, *v;  // [B, H * D], [B, G * D], [B, G * D]
  const T *cos, *sin;  // [B, D] with `angle` elements between rows, or null
  Strided<T> keys, values;
  Strided<float> mask;
  int64_t position;
  T *out, *new_keys, *new_values; // [B, H * D], [B, G * D], [B, G * D]
  int64_t groups, heads, size, count, angle; // heads of a group; keys
  float scale;

  void turn(const T *x, int64_t b, T *y) const {
    if (!cos) {
      std::copy_n(x, size, y);
      return;
    }
    const T *c = cos + b * angle, *s = sin + b * angle;
    const int64_t half = size / 2;
    const auto times = [](T x, T y) { return rounded<T>(wide(x) * wide(y)); };
    for (int64_t i = 0; i < half; ++i) {
      store(times(x[i], c[i]) - times(x[i + half], s[i]), y + i);
      store(times(x[i + half], c[i + half]) + times(x[i], s[i + half]), y + i + half);
    }
  }

  void operator()(int64_t b, int64_t g) const {
    const int64_t at = (b * groups + g) * size, first_head = g * heads;
    T *new_key = new_keys + at, *new_value = new_values + at;
    turn(k + at, b, new_key);
    std::copy_n(v + at, size, new_value);
    std::vector<T> x(heads * size);
    std::vector<float> result(heads * size), sum(heads),
        top(heads, -std::numeric_limits<float>::infinity());
    std::vector<const float *> masks(heads);
    int64_t low = count, high = 0;
    for (int64_t h = 0; h < heads; ++h) {
      turn(q + at * heads + h * size, b, x.data() + h * size);
      masks[h] = mask.at(b, first_head + h, 0);
      spans::widen(masks[h], count, &low, &high);
    }
    const T *from_keys[rows::BLOCK], *from_values[rows::BLOCK];
    for (int64_t from = low; from < high; from += rows::BLOCK) {
      const int64_t some = std::min(rows::BLOCK, high - from);
      for (int64_t t = 0; t < some; ++t) {
        const bool is_new = from + t == position;
        from_keys[t] = is_new ? new_key : keys.at(b, g, from + t);
        from_values[t] = is_new ? new_value : values.at(b, g, from + t);
      }
      rows::attend(x.data(), from_keys, from_values, masks.data(), from, some, heads, size, size,
                   scale, result.data(), top.data(), sum.data());
    }
    for (int64_t i = 0; i < heads * size; ++i) // a row that sees nothing is 0
      store(result[i] / (sum[i / size] == 0 ? 1.f : sum[i / size]), out + at * heads + i);
  }
};

} // namespace bodies
