// RWKV-4's time mixing: averages of values with weights that decay.
//
// A piece of the channels of one row of the batch is computed through all steps at a time: its states
// stay in the first cache. States are sums times e^-top, where top is the largest exponent so far.

#include <algorithm>
#include <cstdint>

#include "exponential.h"
#include "operators.h"

namespace {

using exponentials::gradual;
using operators::fits, operators::Tensor;

constexpr int64_t PIECE = 256; // channels at a time

template <class T> inline T larger(T x, T y) { return x > y || x != x ? x : y; } // NaN stays

// One step of some channels.
template <class T>
void step(const T *__restrict decay, const T *__restrict boost, const T *__restrict keys,
          const T *__restrict values, T *__restrict num, T *__restrict den, T *__restrict top,
          T *__restrict out, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    const T key = keys[i], value = values[i], before = top[i];
    const T boosted = key + boost[i], most = larger(before, boosted);
    const T old = gradual(before - most), weight = gradual(boosted - most);
    out[i] = (old * num[i] + weight * value) / (old * den[i] + weight);
    const T decayed = before + decay[i], after = larger(decayed, key);
    const T kept = gradual(decayed - after), added = gradual(key - after);
    num[i] = kept * num[i] + added * value;
    den[i] = kept * den[i] + added;
    top[i] = after;
  }
}

std::tuple<Tensor, Tensor, Tensor, Tensor> wkv(const Tensor &decays, const Tensor &boosts,
                                               const Tensor &keys, const Tensor &values,
                                               const Tensor &num, const Tensor &den,
                                               const Tensor &top) {
  REQUIRE(keys.dim() == 3);
  const auto sizes = operators::sizes_of(keys);
  const int64_t rows = sizes[0], steps = sizes[1], size = sizes[2];
  const auto type = keys.scalar_type();
  REQUIRE(fits(decays, {size}, type) && fits(boosts, {size}, type) && fits(values, sizes, type));
  REQUIRE(fits(num, {rows, size}, type) && fits(den, {rows, size}, type));
  REQUIRE(fits(top, {rows, size}, type));
  const Tensor decay = operators::contiguous(decays), boost = operators::contiguous(boosts),
               k = operators::packed(keys), v = operators::packed(values),
               out = operators::empty(sizes, type), a = operators::copied(num),
               b = operators::copied(den), p = operators::copied(top);
  const int64_t parts = (size + PIECE - 1) / PIECE; // of a row
  operators::of_type<float, double>(keys, [&](auto zero) {
    typedef decltype(zero) T;
    using operators::data, operators::written;
    const T *d = data<T>(decay), *boosted = data<T>(boost), *ks = data<T>(k), *vs = data<T>(v);
    T *nums = written<T>(a), *dens = written<T>(b), *tops = written<T>(p), *means = written<T>(out);
    const int64_t k_row = k.stride(0), k_step = k.stride(1), v_row = v.stride(0),
                  v_step = v.stride(1);
    operators::in_parts(rows * parts, keys.numel(), [&](int64_t first, int64_t after) {
      for (int64_t piece = first; piece < after; piece++) {
        const int64_t row = piece / parts, begin = piece % parts * PIECE, at = row * size + begin;
        for (int64_t t = 0; t < steps; t++)
          step(d + begin, boosted + begin, ks + row * k_row + t * k_step + begin,
               vs + row * v_row + t * v_step + begin, nums + at, dens + at, tops + at,
               means + (row * steps + t) * size + begin, std::min(PIECE, size - begin));
      }
    });
  });
  return {out, a, b, p};
}

} // namespace

OPERATOR(wkv_native,
         "(Tensor decay, Tensor boost, Tensor keys, Tensor values, Tensor num, Tensor den, "
         "Tensor top) -> (Tensor, Tensor, Tensor, Tensor)",
         wkv)
