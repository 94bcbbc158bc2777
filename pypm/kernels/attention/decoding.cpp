// Attention of a few rows over the keys that a mask leaves visible.
//
// Letters: D, E elements of a key's and a value's head; R rows, the queries of all heads of a group.

#include "operators.h"
#include "rows.h"
#include "spans.h"

#include <vector>

namespace {

using operators::Tensor;
using rows::bfloat16;

// Sizes and strides, in elements.
struct Dims {
  int64_t B, G, R, D, E;
  int64_t queries, count; // of each head of a group, and of keys
  int64_t key_batch, key_group, key, value_batch, value_group, value;
  int64_t mask_batch, mask_head, mask_query;
};

// x [B, G, R, D], out [B, G, R, E]; the groups of keys from `first` on, before `after`. The mask may be null.
template <class T>
void attend(const T *x, const T *keys, const T *values, const float *mask, T *out,
            const Dims &n, int64_t first, int64_t after, float scale) {
  std::vector<float> top(n.R), sum(n.R), result(n.R * n.E);
  std::vector<const float *> masks(n.R);
  const T *k[rows::BLOCK], *v[rows::BLOCK];
  for (int64_t b = 0; b < n.B; ++b)
    for (int64_t g = first; g < after; ++g) {
      const int64_t at = (b * n.G + g) * n.R, heads = n.R / n.queries;
      for (int64_t r = 0; mask && r < n.R; ++r)
        masks[r] = mask + b * n.mask_batch + (g * heads + r / n.queries) * n.mask_head +
                   r % n.queries * n.mask_query;
      std::fill(top.begin(), top.end(), -std::numeric_limits<float>::infinity());
      std::fill(sum.begin(), sum.end(), 0.f);
      std::fill(result.begin(), result.end(), 0.f);
      for (int64_t from = 0; from < n.count; from += rows::BLOCK) {
        const int64_t some = std::min(rows::BLOCK, n.count - from);
        for (int64_t t = 0; t < some; ++t) {
          k[t] = keys + b * n.key_batch + g * n.key_group + (from + t) * n.key;
          v[t] = values + b * n.value_batch + g * n.value_group + (from + t) * n.value;
        }
        rows::attend(x + at * n.D, k, v, mask ? masks.data() : nullptr, from, some, n.R, n.D, n.E,
                     scale, result.data(), top.data(), sum.data());
      }
      for (int64_t i = 0; i < n.R * n.E; ++i) { // a row that sees nothing is 0
        const float total = sum[i / n.E];
        rows::store(result[i] / (total == 0 ? 1.f : total), out + at * n.E + i);
      }
    }
}

constexpr int64_t STEP = 64;      // spans begin and end at multiples of this
constexpr double TOGETHER = 1.25; // rows of a batch are computed together that read so many times the keys

// Some rows of a batch, and the span of keys that they see.
struct Part {
  int64_t first, after, low, high;
};

// A mask, or none, with elements of a row side by side: strides are 0 where it is expanded.
struct Mask {
  std::optional<Tensor> values;
  int64_t sizes[3] = {1, 1, 1}, steps[3] = {};

  explicit Mask(const std::optional<Tensor> &given) {
    if (!given)
      return;
    REQUIRE(given->dim() == 4);
    values = operators::packed(*given);
    for (int64_t i = 0; i < 3; ++i) {
      const int64_t step = given->size(i) == 1 ? 0 : values->stride(i);
      sizes[i] = step ? given->size(i) : std::min<int64_t>(given->size(i), 1);
      steps[i] = step;
    }
  }

  // The first key that any row of a part of the batch sees, and the one after the last.
  template <class T> void see(int64_t b, int64_t *low, int64_t *high) const {
    *low = values->size(3);
    *high = 0;
    for (int64_t h = 0; h < sizes[1]; ++h)
      for (int64_t s = 0; s < sizes[2]; ++s)
        spans::widen(operators::data<T>(*values) + b * steps[0] + h * steps[1] + s * steps[2],
                     values->size(3), low, high);
  }

  void spans(int64_t *to) const { // [batch, 2]
    operators::of_type<float, bfloat16>(*values, [&](auto zero) {
      for (int64_t b = 0; b < sizes[0]; ++b)
        see<decltype(zero)>(b, to + 2 * b, to + 2 * b + 1);
    });
  }
};

std::vector<Part> parts(const Mask &mask, int64_t batch, int64_t keys) {
  if (!mask.values)
    return {{0, batch, 0, keys}};
  std::vector<int64_t> spans(2 * mask.sizes[0]);
  mask.spans(spans.data());
  std::vector<Part> runs;
  int64_t least = keys, most = 0, read = 0;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t at = mask.sizes[0] == 1 ? 0 : 2 * b;
    const int64_t low = spans[at] / STEP * STEP,
                  high = std::min(keys, (spans[at + 1] + STEP - 1) / STEP * STEP);
    least = std::min(least, low);
    most = std::max(most, high);
    read += high - low;
    if (!runs.empty() && runs.back().low == low && runs.back().high == high)
      runs.back().after = b + 1;
    else
      runs.push_back({b, b + 1, low, high});
  }
  if (double(batch * (most - least)) <= TOGETHER * double(read))
    return {{0, batch, least, most}};
  return runs;
}

// The part's columns of a mask as floats, with their strides: those of the mask, or copied.
const float *floats(const Mask &mask, const Part &part, Dims &n, std::vector<float> &room) {
  if (!mask.values)
    return nullptr;
  int64_t *to[3] = {&n.mask_batch, &n.mask_head, &n.mask_query};
  const int64_t from = mask.steps[0] ? part.first : 0;
  if (mask.values->scalar_type() == torch::headeronly::ScalarType::Float) {
    for (int64_t i = 0; i < 3; ++i)
      *to[i] = mask.steps[i];
    return operators::data<float>(*mask.values) + from * mask.steps[0] + part.low;
  }
  const int64_t count = n.count, sizes[3] = {mask.steps[0] ? n.B : 1, mask.sizes[1], mask.sizes[2]};
  const int64_t steps[3] = {sizes[1] * sizes[2] * count, sizes[2] * count, count};
  for (int64_t i = 0; i < 3; ++i)
    *to[i] = sizes[i] == 1 ? 0 : steps[i];
  const auto *values = operators::data<bfloat16>(*mask.values);
  room.clear();
  for (int64_t b = from; b < from + sizes[0]; ++b)
    for (int64_t h = 0; h < sizes[1]; ++h)
      for (int64_t s = 0; s < sizes[2]; ++s) {
        const auto *row = values + b * mask.steps[0] + h * mask.steps[1] + s * mask.steps[2];
        for (int64_t t = part.low; t < part.high; ++t)
          room.push_back(rows::wide(row[t]));
      }
  return room.data();
}

Tensor attention_over_cache(const Tensor &q, const Tensor &keys, const Tensor &values,
                            const std::optional<Tensor> &given, double scale, bool rounds) {
  REQUIRE(q.dim() == 4 && keys.dim() == 4 && values.dim() == 4);
  const int64_t batch = q.size(0), heads = q.size(1), queries = q.size(2), size = q.size(3),
                groups = keys.size(1), count = keys.size(2), width = values.size(3);
  REQUIRE(keys.size(0) == batch && values.size(0) == batch && keys.size(3) == size);
  REQUIRE(values.size(1) == groups && values.size(2) == count);
  REQUIRE(groups ? heads % groups == 0 : heads == 0);
  const auto type = q.scalar_type();
  REQUIRE(keys.scalar_type() == type && values.scalar_type() == type);
  const Tensor out = operators::empty({batch, heads, queries, width}, type);
  if (!q.numel() || !values.numel()) {
    std::memset(out.mutable_data_ptr(), 0, out.numel() * out.element_size());
    return out;
  }
  const Mask mask(given);
  REQUIRE(!given || given->size(3) == count);
  for (int64_t i = 0; i < 3; ++i)
    REQUIRE(mask.sizes[i] == 1 || mask.sizes[i] == q.size(i));
  const Tensor x = operators::contiguous(q),
               k = operators::packed(keys), v = operators::packed(values);
  std::vector<float> room;
  for (const Part &part : parts(mask, batch, count)) {
    Dims n = {part.after - part.first, groups, heads / groups * queries, size, width, queries,
              part.high - part.low, k.stride(0), k.stride(1), k.stride(2), v.stride(0), v.stride(1),
              v.stride(2), 0, 0, 0};
    const float *m = floats(mask, part, n, room);
    operators::of_type<float, bfloat16>(q, [&](auto zero) {
      typedef decltype(zero) T;
      using operators::data, operators::written;
      const T *of_k = data<T>(k) + part.first * n.key_batch + part.low * n.key,
              *of_v = data<T>(v) + part.first * n.value_batch + part.low * n.value;
      const int64_t row = part.first * heads * queries;
      operators::in_parts(groups, n.B * groups * n.count * size, [&](int64_t first, int64_t after) {
        attend<T>(data<T>(x) + row * size, of_k, of_v, m, written<T>(out) + row * width, n, first,
                  after, scale);
      });
    });
  }
  return out;
}

} // namespace

OPERATOR(attention_over_cache_native,
         "(Tensor q, Tensor k, Tensor v, Tensor? mask, float scale, bool rounds) -> Tensor",
         attention_over_cache)
