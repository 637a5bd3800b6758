#pragma once

#include <string_view>
#include <vector>

#include <c10/core/Device.h>

#include <autopar/capture/op_graph.hpp>

#include "capture/replay/replay.hpp"

namespace autopar {

/// One operator of a program, where a custom autograd function may run it.
struct FunctionSite {
  const OpGraph& graph;
  const std::vector<std::vector<OpId>>& uses;  ///< `graph.uses()`
  OpId op;
  c10::Device device;
};

/// Runs an operator in libtorch's place, with another autograd function: the same values, and less memory or fewer
/// copies in its backward.
struct CustomFunction {
  std::string_view name;
  bool (*applies)(const FunctionSite& site);
  void (*run)(ReplayCall& call);
};

/// The one that runs an operator: the first of the list that applies; null: libtorch runs it.
[[nodiscard]] const CustomFunction* custom_function_of(const FunctionSite& site);

}  // namespace autopar
