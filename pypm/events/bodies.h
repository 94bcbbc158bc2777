// Bodies of the tiles of a decoding step: products of the rows of a batch, and attention over a cache.
//
// All is float32. B is the number of rows; matrices of rows are contiguous.

#pragma once

#include <cmath>

#include "products.h"
#include "spans.h"

namespace bodies {

using rows::exponential;

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
struct Norm {
  bool exists, is_centered;
  const float *weight, *bias; // or null
  float epsilon, offset;
};

inline void normalize(const float *x, const Norm &norm, int64_t size, float *y) {
  float center = 0, squares = 0;
  if (norm.is_centered) {
    for (int64_t i = 0; i < size; ++i)
      center += x[i];
    center /= size;
  }
  for (int64_t i = 0; i < size; ++i)
    squares += (x[i] - center) * (x[i] - center);
  const float scale = 1.f / std::sqrt(squares / size + norm.epsilon);
  for (int64_t i = 0; i < size; ++i)
    y[i] = (x[i] - center) * scale * (norm.weight ? norm.weight[i] + norm.offset : 1.f) +
           (norm.bias ? norm.bias[i] : 0.f);
}

// A matrix of which `columns` outputs are computed: [outputs, size], or [size, width] if not turned.
struct Weight {
  const float *matrix, *bias; // or null; both at the first of the outputs
  bool turned;
  int64_t width; // of a row that is not turned

  Weight from(int64_t first, int64_t size) const {
    return {matrix + first * (turned ? size : 1), bias ? bias + first : nullptr, turned, width};
  }
};

// Outputs from `first` on, before `after`, of N rows by a weight that is not turned.
template <int64_t N>
void across(const float *x, const Weight &w, int64_t size, int64_t columns, int64_t first,
            int64_t after, float *out) {
  std::vector<float> result(N * (after - first)), factors(N, 1.f);
  float room[N * rows::ROOM];
  const float *values[rows::BLOCK];
  for (int64_t r = 0; r < N; ++r)
    for (int64_t n = first; n < after; ++n)
      result[r * (after - first) + n - first] = w.bias ? w.bias[n] : 0.f;
  for (int64_t from = 0; from < size; from += rows::BLOCK) {
    const int64_t some = std::min(rows::BLOCK, size - from);
    for (int64_t t = 0; t < some; ++t) {
      values[t] = w.matrix + (from + t) * w.width + first;
      for (int64_t r = 0; r < N; ++r)
        room[r * rows::ROOM + t] = x[r * size + from + t];
    }
    rows::add<N>(room, factors.data(), values, some, after - first, result.data());
  }
  for (int64_t r = 0; r < N; ++r)
    std::copy_n(result.data() + r * (after - first), after - first, out + r * columns + first);
}

// x [B, size] times a weight: outputs from `first` on, before `after`, of out [B, columns].
inline void product(const float *x, const Weight &w, int64_t batch, int64_t size, int64_t columns,
                    int64_t first, int64_t after, float *out) {
  constexpr decltype(&across<1>) of_rows[] = {across<1>, across<2>, across<3>, across<4>};
  for (int64_t b = 0; b < batch; b += products::ROWS) {
    const int64_t some = std::min(products::ROWS, batch - b);
    const float *from = x + b * size;
    float *to = out + b * columns;
    if (w.turned)
      products::linear(from, w.matrix, w.bias, to, some, size, columns, first, after);
    else
      of_rows[some - 1](from, w, size, columns, first, after, to);
  }
}

// out = activation(norm(x) gate^T) * (norm(x) weight^T), without the gate activation(norm(x) weight^T),
// plus a residual: the columns of one tile, for all rows.
struct Product {
  const float *x;        // [B, size]
  const float *residual; // [B, columns], or null
  float *out;            // [B, columns]
  Norm norm;
  Weight weight, gate; // the gate's matrix may be null
  Activation activation;
  int64_t size, columns;

  void operator()(int64_t batch, int64_t first, int64_t after) const {
    std::vector<float> room;
    const float *from = x;
    if (norm.exists) {
      room.resize(batch * size);
      for (int64_t b = 0; b < batch; ++b)
        normalize(x + b * size, norm, size, room.data() + b * size);
      from = room.data();
    }
    product(from, weight, batch, size, columns, first, after, out);
    const int64_t width = after - first;
    std::vector<float> gates(gate.matrix ? batch * width : 0);
    if (gate.matrix)
      product(from, gate.from(first, size), batch, size, width, 0, width, gates.data());
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < width; ++i) {
        float &y = out[b * columns + first + i];
        y = gate.matrix ? activated(gates[b * width + i], activation) * y : activated(y, activation);
        if (residual)
          y += residual[b * columns + first + i];
      }
  }
};

// Memory of a cache or a mask with its strides; elements of a row are side by side.
struct Strided {
  const float *data;
  int64_t batch, head, row;

  const float *at(int64_t b, int64_t h, int64_t r) const {
    return data + b * batch + h * head + r * row;
  }
};

// Attention of one row of a batch over the heads of one group: the new key and value, rotated where
// there are angles, take the place of those at `position` in the cache.
struct Attention {
  const float *q, *k, *v;  // [B, H * D], [B, G * D], [B, G * D]
  const float *cos, *sin;  // [B, D] with `angle` elements between rows, or null
  Strided keys, values, mask;
  int64_t position;
  float *out, *new_keys, *new_values; // [B, H * D], [B, G * D], [B, G * D]
  int64_t groups, heads, size, count, angle; // heads of a group; keys
  float scale;

  void turn(const float *x, int64_t b, float *y) const {
    if (!cos) {
      std::copy_n(x, size, y);
      return;
    }
    const float *c = cos + b * angle, *s = sin + b * angle;
    const int64_t half = size / 2;
    for (int64_t i = 0; i < half; ++i) {
      y[i] = x[i] * c[i] - x[i + half] * s[i];
      y[i + half] = x[i + half] * c[i + half] + x[i] * s[i + half];
    }
  }

  void operator()(int64_t b, int64_t g) const {
    const int64_t at = (b * groups + g) * size, first_head = g * heads;
    float *new_key = new_keys + at, *new_value = new_values + at;
    turn(k + at, b, new_key);
    std::copy_n(v + at, size, new_value);
    std::vector<float> x(heads * size), result(heads * size), sum(heads),
        top(heads, -std::numeric_limits<float>::infinity());
    std::vector<const float *> masks(heads);
    int64_t low = count, high = 0;
    for (int64_t h = 0; h < heads; ++h) {
      turn(q + at * heads + h * size, b, x.data() + h * size);
      masks[h] = mask.at(b, first_head + h, 0);
      spans::widen(masks[h], count, &low, &high);
    }
    const float *from_keys[rows::BLOCK], *from_values[rows::BLOCK];
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
      out[at * heads + i] = result[i] / (sum[i / size] == 0 ? 1.f : sum[i / size]);
  }
};

} // namespace bodies
