// Kernels as operators of torch's dispatcher, by its stable C++ interface: called without Python.
//
// A library defines its operators and registers kernels for CPUs. A process that never imports PyPM
// loads it by `torch.ops.load_library`, or by `dlopen`.

#pragma once

#include <cstdlib>
#include <cstring>
#include <optional>
#include <tuple>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "rows.h"

#ifndef PYPM_NAMESPACE
#define PYPM_NAMESPACE pypm
#endif

namespace operators {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t SMALL = 1 << 15; // elements up to which one thread computes all

#define REQUIRE(CONDITION) STD_TORCH_CHECK(CONDITION, "the kernel requires " #CONDITION)

template <class T> struct TypeOf;
template <> struct TypeOf<float> { static constexpr auto value = ScalarType::Float; };
template <> struct TypeOf<double> { static constexpr auto value = ScalarType::Double; };
template <> struct TypeOf<int8_t> { static constexpr auto value = ScalarType::Char; };
template <> struct TypeOf<int64_t> { static constexpr auto value = ScalarType::Long; };
template <> struct TypeOf<rows::bfloat16> { static constexpr auto value = ScalarType::BFloat16; };

// Calls `f` with a zero of that of some types which a tensor has.
template <class T, class... Others, class F> auto of_type(const Tensor &x, const F &f) {
  if (x.scalar_type() == TypeOf<T>::value)
    return f(T{});
  if constexpr (sizeof...(Others) > 0)
    return of_type<Others...>(x, f);
  else
    STD_TORCH_CHECK(false, "the kernel is not for operands of this type");
}

template <class T> const T *data(const Tensor &x) {
  return static_cast<const T *>(x.const_data_ptr());
}

// The memory of an operand that must have a type, or null.
template <class T> const T *data(const std::optional<Tensor> &x) {
  return x ? data<T>(*x) : nullptr;
}

template <class T> T *written(const Tensor &x) { return static_cast<T *>(x.mutable_data_ptr()); }

// A tensor in another type.
inline Tensor of(const Tensor &x, ScalarType type) {
  return x.scalar_type() == type ? x : torch::stable::to(x, type);
}

inline Tensor contiguous(const Tensor &x) {
  return x.is_contiguous() ? x : torch::stable::contiguous(x);
}

// A tensor with the elements of a row side by side.
inline Tensor packed(const Tensor &x) {
  return x.stride(x.dim() - 1) == 1 ? x : operators::contiguous(x);
}

// An uninitialized tensor on the CPU. The interface has no quicker way to make one.
inline Tensor empty(const std::vector<int64_t> &sizes, const std::vector<int64_t> &strides,
                    ScalarType type) {
  AtenTensorHandle made;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      sizes.size(), sizes.data(), strides.data(),
      torch::stable::detail::to<int32_t>(torch::stable::detail::from(type)),
      aoti_torch_device_type_cpu(), 0, &made));
  return Tensor(made);
}

inline Tensor empty(const std::vector<int64_t> &sizes, ScalarType type) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0; step *= std::max<int64_t>(sizes[i], 1))
    strides[i] = step;
  return empty(sizes, strides, type);
}

inline std::vector<int64_t> sizes_of(const Tensor &x) {
  const auto sizes = x.sizes();
  return {sizes.begin(), sizes.end()};
}

// A contiguous copy.
inline Tensor copied(const Tensor &x) {
  Tensor made = empty(sizes_of(x), x.scalar_type());
  torch::stable::copy_(made, x);
  return made;
}

// Whether a tensor has these sizes, and this type.
inline bool fits(const Tensor &x, const std::vector<int64_t> &sizes, ScalarType type) {
  return x.scalar_type() == type && sizes_of(x) == sizes;
}

inline bool fits(const std::optional<Tensor> &x, const std::vector<int64_t> &sizes,
                 ScalarType type) {
  return !x || fits(*x, sizes, type);
}

// Calls `work(first, after)` for parts of the numbers below `count`, in as many threads as torch
// computes on, but in one if few elements are computed.
template <class F> void in_parts(int64_t count, int64_t elements, const F &work) {
  torch::stable::parallel_for(0, count, elements <= SMALL ? std::max<int64_t>(count, 1) : 1, work);
}

// Defines an operator, but where PyPM is imported and loads the library: then Python has defined it.
inline void define(torch::stable::detail::StableLibrary &library, const char *schema) {
  const char *defined = std::getenv("PYPM_DEFINED");
  if (!defined || std::strcmp(defined, C10_STRINGIZE(PYPM_NAMESPACE)))
    library.def(schema);
}

} // namespace operators

#define OPERATOR(NAME, SCHEMA, FUNCTION)                                                           \
  STABLE_TORCH_LIBRARY_FRAGMENT(PYPM_NAMESPACE, library) {                                         \
    operators::define(library, #NAME SCHEMA);                                                      \
  }                                                                                                \
  STABLE_TORCH_LIBRARY_IMPL(PYPM_NAMESPACE, CPU, library) {                                        \
    library.impl(#NAME, TORCH_BOX(&FUNCTION));                                                     \
  }
