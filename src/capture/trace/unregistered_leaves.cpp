#include "capture/trace/unregistered_leaves.hpp"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include <autopar/core/error.hpp>

#include "capture/ir/reached_values.hpp"

namespace autopar::trace {

namespace {

/// The first operator that takes the leaf, or a view or function of it, together with something else; else its first
/// reader.
OpId user_of(const OpGraph& graph, ValueId leaf) {
  std::vector<bool> follows(graph.values.size(), false);
  follows[leaf.index()] = true;
  auto first = OpId::none();
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    bool any = false, any_other = false;
    for_each_input(graph.ops[i], [&](ValueId value) {
      any = any || follows[value.index()];
      any_other = any_other || (!follows[value.index()] && graph.value(value).kind != ValueKind::kConstant);
    });
    if (!any) continue;
    if (any_other) return OpId::of(i);
    if (!first.valid()) first = OpId::of(i);
    for_each_output(graph.ops[i], [&](ValueId value) { follows[value.index()] = true; });
  }
  return first;
}

[[noreturn]] void refuse(const OpGraph& graph, ValueId leaf) {
  const auto user = user_of(graph, leaf);
  const auto& tensor = graph.value(leaf).constant;
  std::ostringstream reason;
  reason << "it reads a trainable tensor of sizes " << tensor.sizes();
  if (tensor.is_leaf()) {
    reason
        << " that is no registered parameter of the model, so its gradient would not be summed over ranks and no "
           "optimizer of model->parameters() would step it; register it, with register_parameter, or its module with "
           "register_module (several of them in a torch::nn::ModuleList); if it is a constant, set "
           "requires_grad_(false) on it";
  } else {
    reason << " that was computed before the forward from one that requires a gradient, so its gradient would not be "
              "summed over ranks; compute it in the forward, or detach() it if it is a constant";
  }
  throw CaptureError(user.valid() ? graph.name(user) : "forward", user.valid() ? graph.op(user).path : "",
                     reason.str());
}

}  // namespace

void refuse_unregistered_leaves(const OpGraph& graph) {
  const auto is_trainable_constant = [](const ValueInfo& info) {
    return info.kind == ValueKind::kConstant && info.has_gradient() && info.constant.defined();
  };
  if (std::ranges::none_of(graph.values, is_trainable_constant)) return;
  const auto reached = ir::reached_values(graph, graph.outputs);
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    if (reached[i] && is_trainable_constant(graph.values[i])) refuse(graph, ValueId::of(i));
  }
}

}  // namespace autopar::trace
