#include "torch/autograd/padded_rows.hpp"

#include <utility>

#include "ops/cross_entropy.hpp"
#include "ops/rules.hpp"
#include "torch/autograd/layers.hpp"
#include "torch/fused/class_loss.hpp"
#include "torch/fused/vectorised_rows.hpp"

namespace autopar::autograd {

bool may_pad_rows(const OpGraph& graph, OpId linear) {
  if (!is_layer(graph, linear)) return false;
  const auto storage = graph.value(graph.output(linear)).storage;
  for (std::size_t i = linear.index() + 1; i < graph.ops.size(); ++i) {
    const auto loss = OpId::of(i);
    if (!fused::widens_logits(graph.op(loss).op)) continue;
    const auto logits = graph.input(loss, ops::CrossEntropyArgument::kLogits);
    if (graph.value(logits).storage == storage)
      return storage.valid() && ops::is_last_reader(graph, loss, ops::CrossEntropyArgument::kLogits);
  }
  return false;
}

void run_in_padded_rows(replay::ReplayCall& call) {
  const auto x = call.stack[0].toTensor(), weight = call.stack[1].toTensor();
  const auto bias = call.stack[2].isTensor() ? call.stack[2].toTensor() : at::Tensor();
  const bool gains = x.is_cuda() && c10::isReducedFloatingType(x.scalar_type()) &&
                     weight.size(0) % fused::kElementsOfPack != 0 && x.dim() >= 2 &&
                     x.scalar_type() == weight.scalar_type() &&
                     (!bias.defined() || bias.scalar_type() == x.scalar_type());
  if (!gains) {
    call.call_original();
    return;
  }
  auto result = fused::linear_in_padded_rows(x, weight, bias);
  call.stack.clear();
  call.stack.emplace_back(std::move(result));
}

}  // namespace autopar::autograd
