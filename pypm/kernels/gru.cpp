// All steps of a GRU for few rows.
//
// The products of the inputs are computed before, by torch.

#include "cells.h"
#include "operators.h"

namespace {

using cells::growth, cells::tangent, operators::fits, operators::Tensor;

template <class T> inline T sigmoid(T x) { return T(1) / (T(2) + growth(-x)); }

template <class T>
void mix(const T *__restrict x, const T *__restrict sums, const T *__restrict d,
         const T *__restrict h, T *__restrict out, int64_t size) {
  for (int64_t i = 0; i < size; i++) {
    const T r = sigmoid(x[i] + sums[i] + d[i]);
    const T z = sigmoid(x[size + i] + sums[size + i] + d[size + i]);
    const T n = tangent(x[2 * size + i] + r * (sums[2 * size + i] + d[2 * size + i]));
    out[i] = n + z * (h[i] - n);
  }
}

// x weight^T + bias, contiguous; in the type of x also where autocast is on.
Tensor linear(const Tensor &x, const Tensor &weight, const Tensor &bias) {
  using torch::stable::detail::from, torch::stable::detail::to;
  std::array<StableIValue, 3> stack = {from(x), from(weight), from(std::optional(bias))};
  STABLE_TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::linear", "", stack.data(), TORCH_ABI_VERSION));
  return operators::contiguous(operators::of(to<Tensor>(stack[0]), x.scalar_type()));
}

Tensor gru(const Tensor &x, const Tensor &w, const Tensor &u, const Tensor &b, const Tensor &d,
           const Tensor &h) {
  REQUIRE(x.dim() == 3 && h.dim() == 2);
  const int64_t count = x.size(0), rows = x.size(1), size = h.size(1), gates = 3 * size;
  const auto type = x.scalar_type();
  REQUIRE(count > 0 && fits(h, {rows, size}, type) && fits(w, {gates, x.size(2)}, type));
  REQUIRE(fits(u, {gates, size}, type) && fits(b, {gates}, type) && fits(d, {gates}, type));
  const Tensor inputs = linear(x, w, b), states = operators::contiguous(u),
               biases = operators::contiguous(d), before = operators::contiguous(h),
               out = operators::empty({count, rows, size}, type);
  operators::of_type<float, double>(x, [&](auto zero) {
    typedef decltype(zero) T;
    using operators::data;
    const T *sums_of_x = data<T>(inputs), *bias = data<T>(biases);
    cells::steps(data<T>(states), gates, data<T>(before), operators::written<T>(out), count, rows,
                 size, [=](int64_t row, const T *sums, const T *h, T *next) {
                   mix(sums_of_x + row * gates, sums, bias, h, next, size);
                 });
  });
  return out;
}

} // namespace

OPERATOR(gru_native,
         "(Tensor x, Tensor w, Tensor u, Tensor b, Tensor d, Tensor h) -> Tensor", gru)
