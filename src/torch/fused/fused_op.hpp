#pragma once

#include <optional>
#include <string_view>
#include <utility>

#include <torch/library.h>

#include <autopar/capture/op_def.hpp>
#include <autopar/capture/op_graph.hpp>

namespace autopar::fused {

/// An operator of the library that replaces several operators of a program: what it replaces, and all that is known of
/// it. Each is defined in one file, and listed in fused_ops.cpp.
struct FusedOp {
  std::string_view name;                ///< "autopar::max_pool2d"
  const char* schema;                   ///< as a TORCH_LIBRARY takes it
  OpGraph (*pattern)(OpGraph program);  ///< puts the operator in the place of those that it replaces; run by a pass
  OpDef (*cost)();                      ///< its samples, work, saved bytes, workspace and tensor shards
  torch::CppFunction (*forward)();      ///< the operator, with its backward: see `or_reference`
  torch::CppFunction (*reference)();    ///< the same results by libtorch's operators
};

namespace detail {

template <auto in_kernels, auto reference>
struct WithReference;

template <class Result, class... In, std::optional<Result> (*in_kernels)(In...), Result (*reference)(In...)>
struct WithReference<in_kernels, reference> {
  static Result call(In... in) {
    if (auto made = in_kernels(in...)) return *std::move(made);
    return reference(in...);
  }
};

}  // namespace detail

/// `FusedOp::reference` of a function.
template <auto function>
torch::CppFunction boxed() {
  return torch::CppFunction(function);
}

/// `FusedOp::forward` of an operator with kernels.
/// @tparam in_kernels  calls an autograd function that launches them; nothing: they do not take these arguments
/// @tparam reference   then runs; has the same parameters
template <auto in_kernels, auto reference>
torch::CppFunction or_reference() {
  return torch::CppFunction(&detail::WithReference<in_kernels, reference>::call);
}

}  // namespace autopar::fused
