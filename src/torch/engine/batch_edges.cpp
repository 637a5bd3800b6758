#include "torch/engine/batch_edges.hpp"

#include <utility>

#include <ATen/ops/zeros.h>

namespace autopar::engine {

void BatchEdges::add_result_gradient(ValueId value, at::Tensor gradient) {
  if (!gradient.defined()) return;
  auto& sum = result_gradients_[value];
  sum = sum.defined() ? sum.add(gradient) : std::move(gradient);
}

at::Tensor BatchEdges::pack(const Action& action, ValueId value) const {
  const auto& info = runtime_.graph().value(value);
  at::Tensor local;
  if (action.flow == Flow::kValue)
    local = context_.inputs[static_cast<std::size_t>(info.position)];
  else if (const auto found = result_gradients_.find(value); found != result_gradients_.end())
    local = found->second;
  if (!local.defined())
    return at::zeros(ir::sizes_at(info, action.samples.size()), ir::options_of(info, runtime_.device()));
  if (messages_.channel(action).kind != ChannelKind::kBatched) return local;
  return samples_of(local, runtime_.program().plan->type(value), messages_.local_samples(),
                    messages_.within_local(action));
}

void BatchEdges::unpack(const Action& action, ValueId value, const at::Tensor& piece) {
  auto& target = action.flow == Flow::kValue ? results_[value] : input_gradients_[value];
  if (messages_.channel(action).kind != ChannelKind::kBatched) {
    target.add(piece);
    return;
  }
  const auto whole = messages_.local_samples();
  target.put(piece, runtime_.program().plan->type(value), ir::form_of(runtime_.graph().value(value), whole), whole,
             messages_.within_local(action), action.flow == Flow::kValue ? Into::kWrite : Into::kAdd);
}

at::Tensor BatchEdges::take(std::map<ValueId, Assembly>& from, ValueId value) const {
  auto whole = from[value].take();
  if (whole.defined()) return whole;
  return zeros_of(ir::form_of(runtime_.graph().value(value), messages_.local_samples()), runtime_.device());
}

}  // namespace autopar::engine
