// All steps of a plain recurrent layer for few rows: h = tanh(x_t + u h), or relu for tanh.

#include "cells.h"
#include "operators.h"

namespace {

using operators::fits, operators::Tensor;

Tensor rnn(const Tensor &x, const Tensor &u, const Tensor &h, bool relu) {
  REQUIRE(x.dim() == 3 && h.dim() == 2);
  const int64_t count = x.size(0), rows = x.size(1), size = x.size(2);
  const auto type = x.scalar_type();
  REQUIRE(fits(u, {size, size}, type) && fits(h, {rows, size}, type));
  const Tensor inputs = operators::contiguous(x), weight = operators::contiguous(u),
               before = operators::contiguous(h), out = operators::empty({count, rows, size}, type);
  operators::of_type<float, double>(x, [&](auto zero) {
    typedef decltype(zero) T;
    using operators::data;
    const T *added = data<T>(inputs);
    const auto run = [&](auto activation) {
      cells::steps(data<T>(weight), size, data<T>(before), operators::written<T>(out), count, rows,
                   size, [=](int64_t row, const T *sums, const T *, T *__restrict next) {
                     for (int64_t i = 0; i < size; i++)
                       next[i] = activation(added[row * size + i] + sums[i]);
                   });
    };
    if (relu)
      run([](T y) { return y < T(0) ? T(0) : y; }); // NaN stays
    else
      run([](T y) { return cells::tangent(y); });
  });
  return out;
}

} // namespace

OPERATOR(rnn_native, "(Tensor x, Tensor u, Tensor h, bool relu) -> Tensor", rnn)
