#pragma once

#include <string_view>
#include <vector>

#include <c10/core/Device.h>

#include <autopar/capture/op_graph.hpp>

#include "capture/replay/replay.hpp"

namespace autopar::autograd {

/// One operator of a program, where a custom autograd function may run it.
struct FunctionSite {
  const OpGraph& graph;
  const std::vector<std::vector<OpId>>& uses;  ///< `graph.uses()`
  OpId op;
  c10::Device device;
};

/// Runs an operator with a custom autograd function instead of libtorch's. The values are the same; the backward uses
/// less memory or makes fewer copies.
struct CustomFunction {
  std::string_view name;
  bool (*applies)(const FunctionSite& site);
  void (*run)(replay::ReplayCall& call);
};

/// The custom function that runs an operator: the first in the list that applies; null: libtorch runs it.
[[nodiscard]] const CustomFunction* custom_function_of(const FunctionSite& site);

}  // namespace autopar::autograd
