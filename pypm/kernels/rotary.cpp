// Rotary embeddings of the first elements of rows; the rest is copied.

#include "operators.h"
#include "rows.h"

namespace {

using operators::Tensor;
using rows::bfloat16;

// Sizes and strides, in elements; those of a row lie side by side.
struct Dims {
  int64_t sizes[3], x[3], out[3], angle[3];
  int64_t pairs, rest;
};

// T is the type of the tensors, A that of the angles and of what is computed.
template <bool NEIGHBOURS, class T, class A>
void turn(const T *__restrict x, const A *__restrict cos, const A *__restrict sin,
          T *__restrict out, int64_t pairs) {
  for (int64_t j = 0; j < pairs; ++j) {
    const int64_t one = NEIGHBOURS ? 2 * j : j, other = NEIGHBOURS ? one + 1 : one + pairs;
    const A a = rows::wide(x[one]), b = rows::wide(x[other]);
    rows::store(a * cos[one] - b * sin[one], out + one);
    rows::store(b * cos[other] + a * sin[other], out + other);
  }
}

// The rows from number `first` on, before `after`.
template <class T, class A>
void rotate(const T *x, const A *cos, const A *sin, T *out, const Dims &n, bool neighbours,
            int64_t first, int64_t after) {
  const int64_t turned = 2 * n.pairs;
  int64_t i = first / (n.sizes[1] * n.sizes[2]), j = first / n.sizes[2] % n.sizes[1],
          k = first % n.sizes[2];
  for (int64_t row = first; row < after; ++row) {
    const T *from = x + i * n.x[0] + j * n.x[1] + k * n.x[2];
    T *to = out + i * n.out[0] + j * n.out[1] + k * n.out[2];
    const int64_t angle = i * n.angle[0] + j * n.angle[1] + k * n.angle[2];
    (neighbours ? turn<true, T, A> : turn<false, T, A>)(from, cos + angle, sin + angle, to,
                                                        n.pairs);
    std::copy(from + turned, from + turned + n.rest, to + turned);
    if (++k == n.sizes[2]) {
      k = 0;
      if (++j == n.sizes[1]) {
        j = 0;
        ++i;
      }
    }
  }
}

// An empty tensor like x: elements of a row side by side, rows in the order of those of x.
Tensor empty_rows(const Tensor &x) {
  const auto sizes = operators::sizes_of(x);
  if (x.is_contiguous() || sizes.back() == 0)
    return operators::empty(sizes, x.scalar_type());
  AtenTensorHandle made;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(
      x.get(), sizes.size() - 1, sizes.data(), x.strides().data(), 0, &made));
  const Tensor outer = torch::stable::empty_like(Tensor(made));
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = 0; i + 1 < sizes.size(); ++i)
    strides[i] = outer.stride(i) * sizes.back();
  return operators::empty(sizes, strides, x.scalar_type());
}

// Strides of the first three of four dimensions, of which x has the last.
void put_strides(const Tensor &x, int64_t *to, bool broadcasts = false) {
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t dim = i - (4 - x.dim());
    to[i] = dim < 0 || (broadcasts && x.size(dim) == 1) ? 0 : x.stride(dim);
  }
}

Tensor rotated(const Tensor &given, const Tensor &cos, const Tensor &sin, bool interleaved) {
  const int64_t dims = given.dim(), turned = cos.size(cos.dim() - 1);
  REQUIRE(cos.dim() <= dims && dims <= 4 && turned % 2 == 0 && turned <= given.size(dims - 1));
  for (int64_t i = 0; i + 1 < cos.dim(); ++i)
    REQUIRE(cos.size(i) == 1 || cos.size(i) == given.size(dims - cos.dim() + i));
  const Tensor out = empty_rows(given);
  const Tensor x = operators::packed(given);
  Dims n = {{1, 1, 1}, {}, {}, {}, turned / 2, given.size(dims - 1) - turned};
  for (int64_t i = 0; i + 1 < dims; ++i)
    n.sizes[4 - dims + i] = given.size(i);
  put_strides(x, n.x);
  put_strides(out, n.out);
  put_strides(cos, n.angle, true);
  operators::of_type<float, double, bfloat16>(given, [&](auto zero) {
    typedef decltype(zero) T;
    typedef decltype(rows::wide(zero)) A;
    const int64_t count = n.sizes[0] * n.sizes[1] * n.sizes[2];
    operators::in_parts(count, given.numel(), [&](int64_t first, int64_t after) {
      rotate<T, A>(operators::data<T>(x), operators::data<A>(cos), operators::data<A>(sin),
                   operators::written<T>(out), n, interleaved, first, after);
    });
  });
  return out;
}

std::vector<Tensor> rotary(const std::vector<Tensor> &xs, const Tensor &cosine, const Tensor &sine,
                           bool interleaved) {
  using torch::headeronly::ScalarType;
  REQUIRE(!xs.empty() && cosine.dim() > 0);
  REQUIRE(operators::sizes_of(cosine) == operators::sizes_of(sine));
  const auto type = xs[0].scalar_type();
  const auto wide = type == ScalarType::Double ? type : ScalarType::Float;
  Tensor cos = operators::of(cosine, wide), sin = operators::of(sine, wide);
  bool alike = cos.stride(cos.dim() - 1) == 1;
  for (int64_t i = 0; i < cos.dim(); ++i)
    alike &= cos.stride(i) == sin.stride(i);
  if (!alike) {
    cos = operators::contiguous(cos);
    sin = operators::contiguous(sin);
  }
  std::vector<Tensor> outs;
  for (const Tensor &x : xs) {
    REQUIRE(x.scalar_type() == type);
    outs.push_back(rotated(x, cos, sin, interleaved));
  }
  return outs;
}

} // namespace

OPERATOR(rotary_native, "(Tensor[] xs, Tensor cos, Tensor sin, bool interleaved) -> Tensor[]",
         rotary)
