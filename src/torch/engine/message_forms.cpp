#include "torch/engine/message_forms.hpp"

namespace autopar::engine {

const Channel& MessageForms::channel(const Action& action) const {
  return runtime_.pipeline().channels[static_cast<std::size_t>(action.channel)];
}

const std::vector<ValueId>& MessageForms::values(const Action& action) const {
  const auto& program = runtime_.program();
  const auto number = static_cast<std::size_t>(action.channel);
  return action.flow == Flow::kValue ? program.channel_values[number] : program.channel_gradients[number];
}

std::vector<ir::TensorForm> MessageForms::forms(const Action& action) const {
  std::vector<ir::TensorForm> all;
  // A value that is sent whole and whose size depends on the batch belongs to all samples: an operator mixed them.
  const auto samples = channel(action).kind == ChannelKind::kBatched ? action.samples.size() : context_.batch;
  for (const auto value : values(action)) {
    all.push_back(ir::form_of(runtime_.graph().value(value), samples));
  }
  return all;
}

std::int64_t MessageForms::local_samples() const {
  return context_.split.local(context_.rank, context_.split.microbatches() - 1).end;
}

Interval MessageForms::within_local(const Action& action) const {
  const auto& split = context_.split;
  const auto shift =
      split.local(context_.rank, action.microbatch).begin - split.piece(context_.rank, action.microbatch).begin;
  return {action.samples.begin + shift, action.samples.end + shift};
}

}  // namespace autopar::engine
