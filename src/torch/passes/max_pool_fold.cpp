#include "torch/passes/max_pool_fold.hpp"

#include <algorithm>
#include <string>

#include "capture/ir/max_pool.hpp"
#include "ops/names.hpp"
#include "ops/registry.hpp"
#include "torch/fused/fused_ops.hpp"

namespace autopar::passes {
namespace {

using Argument = MaxPoolArgument;

bool pools_neighbours(const OpGraph& graph, OpId op) {
  if (!graph.is(op, ops::kMaxPool2d) || !graph.op(op).integers.empty()) return false;
  const auto& args = graph.op(op).args;
  const auto& input = graph.value(graph.input(op, Argument::kInput));
  if (input.sizes.size() != 4 || !args[Argument::kKernelSize].isIntList() || !args[Argument::kDilation].isIntList())
    return false;
  const auto kernel = args[Argument::kKernelSize].toIntVector(), dilation = args[Argument::kDilation].toIntVector();
  const auto positions = kernel.front() * kernel.back();  // one size stands for both
  return c10::isFloatingType(input.dtype) && positions <= kMostPositions &&
         std::ranges::all_of(dilation, [](auto each) { return each == 1; });
}

}  // namespace

OpGraph fold_max_pools(OpGraph graph) {
  static const auto operation = fused_operator(kMaxPool);
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (pools_neighbours(graph, OpId::of(i))) graph.ops[i].op = operation;
  }
  return graph;
}

}  // namespace autopar::passes
