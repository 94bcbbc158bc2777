// RMSNorm of a sum, rounded to steps of a scale for each row.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "operators.h"

namespace {

using operators::Tensor;

constexpr int64_t LANES = 32; // sums and maxima at a time, so that loops are ones of vectors

// The square mean of x + y, which is written to `total`.
template <class T>
T add(const T *__restrict x, const T *__restrict y, T *__restrict total, int64_t columns) {
  T sums[LANES] = {}, sum = 0;
  int64_t i = 0;
  for (; i + LANES <= columns; i += LANES)
    for (int64_t l = 0; l < LANES; ++l) {
      const T s = x[i + l] + y[i + l];
      total[i + l] = s;
      sums[l] += s * s;
    }
  for (; i < columns; ++i) {
    total[i] = x[i] + y[i];
    sum += total[i] * total[i];
  }
  for (int64_t l = 0; l < LANES; ++l)
    sum += sums[l];
  return sum / columns;
}

template <class T> inline T larger(T a, T b) { // NaN if one of them is
  return b > a || b != b ? (a == a ? b : a) : a;
}

template <class T>
T largest(const T *__restrict total, const T *__restrict weight, T inverse, int64_t columns) {
  T most[LANES] = {}, found = 0;
  int64_t i = 0;
  for (; i + LANES <= columns; i += LANES)
    for (int64_t l = 0; l < LANES; ++l)
      most[l] = larger(most[l], std::fabs(total[i + l] * inverse * weight[i + l]));
  for (; i < columns; ++i)
    found = larger(found, std::fabs(total[i] * inverse * weight[i]));
  for (int64_t l = 0; l < LANES; ++l)
    found = larger(found, most[l]);
  return found;
}

template <class T>
void rounded(const T *__restrict total, const T *__restrict weight, T inverse, T step, T least,
             T most, int8_t *__restrict out, int64_t columns) {
  for (int64_t i = 0; i < columns; ++i) {
    T q = total[i] * inverse * weight[i] / step;
    q = q < least ? least : q > most ? most : q;
    out[i] = static_cast<int8_t>(static_cast<int32_t>(std::nearbyint(q)));
  }
}

struct Numbers {
  double eps, top, low, least, most;
};

// The rows of x, y, total and out [rows, columns] from `first` on, before `after`.
template <class T>
void add_norm(const T *x, const T *y, const T *weight, int8_t *out, float *scales, T *total,
              const Numbers &n, int64_t columns, int64_t first, int64_t after) {
  for (int64_t row = first; row < after; ++row) {
    const int64_t at = row * columns;
    const T inverse = 1 / std::sqrt(add<T>(x + at, y + at, total + at, columns) + T(n.eps));
    const T found = largest<T>(total + at, weight, inverse, columns);
    const T step = larger(found, T(n.low)) / T(n.top);
    scales[row] = step;
    rounded<T>(total + at, weight, inverse, step, n.least, n.most, out + at, columns);
  }
}

std::tuple<Tensor, Tensor, Tensor> quantized_norm(const Tensor &x, const Tensor &y,
                                                  const std::optional<Tensor> &weight, double eps,
                                                  double top, double low, double least,
                                                  double most) {
  using operators::data, operators::written;
  auto sizes = operators::sizes_of(x);
  REQUIRE(x.dim() > 0 && sizes.back() > 0 && operators::sizes_of(y) == sizes);
  const int64_t columns = sizes.back(), rows = x.numel() / columns;
  REQUIRE(y.scalar_type() == x.scalar_type());
  REQUIRE(!weight || (weight->scalar_type() == x.scalar_type() && weight->dim() == 1 &&
                      weight->size(0) == columns));
  const Tensor out = operators::empty(sizes, torch::headeronly::ScalarType::Char),
               total = operators::empty(sizes, x.scalar_type());
  sizes.back() = 1;
  const Tensor scales = operators::empty(sizes, torch::headeronly::ScalarType::Float);
  const Tensor a = operators::contiguous(x), b = operators::contiguous(y);
  const auto given = weight ? std::optional(operators::contiguous(*weight)) : std::nullopt;
  operators::of_type<float, double>(x, [&](auto zero) {
    typedef decltype(zero) T;
    const std::vector<T> ones(given ? 0 : columns, T(1));
    const T *w = given ? data<T>(*given) : ones.data();
    operators::in_parts(rows, x.numel(), [&](int64_t first, int64_t after) {
      add_norm(data<T>(a), data<T>(b), w, written<int8_t>(out), written<float>(scales),
               written<T>(total), {eps, top, low, least, most}, columns, first, after);
    });
  });
  return {out, scales, total};
}

} // namespace

OPERATOR(quantized_norm_native,
         "(Tensor x, Tensor y, Tensor? weight, float eps, float top, float low, float least, "
         "float most) -> (Tensor, Tensor, Tensor)",
         quantized_norm)
