#pragma once

#include <optional>
#include <string_view>
#include <utility>

#include <torch/library.h>

#include <autopar/capture/op_def.hpp>
#include <autopar/capture/op_graph.hpp>

namespace autopar::fused {

/// An operator of the library that replaces several operators of a program. This struct has its pattern, cost and
/// kernels. Each operator is defined in one file and listed in fused_ops.cpp.
struct FusedOp {
  std::string_view name;                ///< "autopar::max_pool2d"
  const char* schema;                   ///< in the syntax of TORCH_LIBRARY
  OpGraph (*pattern)(OpGraph program);  ///< replaces matching operators by this one; run by a pass
  OpDef (*cost)();                      ///< its samples, work, saved bytes, workspace and tensor shards
  torch::CppFunction (*forward)();      ///< the operator with its backward: see `or_reference`
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

/// `FusedOp::reference` that calls `function`.
template <auto function>
torch::CppFunction boxed() {
  return torch::CppFunction(function);
}

/// `FusedOp::forward` of an operator with kernels.
/// @tparam in_kernels  calls an autograd function that launches them; returns nothing if they do not support the
///                     arguments
/// @tparam reference   runs in that case; has the same parameters
template <auto in_kernels, auto reference>
torch::CppFunction or_reference() {
  return torch::CppFunction(&detail::WithReference<in_kernels, reference>::call);
}

}  // namespace autopar::fused
