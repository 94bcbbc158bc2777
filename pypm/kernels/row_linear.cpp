// Linear layers of a few rows, in parts by columns.

#include "operators.h"
#include "products.h"

namespace {

using operators::Tensor;
using rows::bfloat16;

Tensor row_linear(const Tensor &given, const Tensor &weights, const std::optional<Tensor> &added) {
  REQUIRE(given.dim() > 0 && weights.dim() == 2 && given.size(given.dim() - 1) == weights.size(1));
  const int64_t columns = weights.size(0), size = weights.size(1);
  auto sizes = operators::sizes_of(given);
  sizes.back() = columns;
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < sizes.size(); ++i)
    rows *= sizes[i];
  REQUIRE(0 < rows && rows <= 4);
  const auto type = weights.scalar_type();
  REQUIRE(given.scalar_type() == type);
  REQUIRE(!added || (added->scalar_type() == type && added->dim() == 1 && added->size(0) == columns));
  const Tensor x = operators::contiguous(given), weight = operators::contiguous(weights);
  const auto bias = added ? std::optional(operators::contiguous(*added)) : std::nullopt;
  const Tensor out = operators::empty(sizes, type);
  operators::of_type<float, bfloat16>(weight, [&](auto zero) {
    typedef decltype(zero) T;
    operators::in_parts(columns, columns * size, [&](int64_t first, int64_t after) {
      products::linear(operators::data<T>(x), operators::data<T>(weight), operators::data<T>(bias),
                       operators::written<T>(out), rows, size, columns, first, after);
    });
  });
  return out;
}

} // namespace

OPERATOR(row_linear_native, "(Tensor x, Tensor weight, Tensor? bias) -> Tensor", row_linear)
