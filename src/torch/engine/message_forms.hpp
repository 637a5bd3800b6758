#pragma once

#include <cstdint>
#include <vector>

#include <autopar/schedule/action.hpp>

#include "capture/ir/tensor_form.hpp"
#include "torch/engine/rank_runtime.hpp"
#include "torch/engine/stage_execution.hpp"

namespace autopar::engine {

/// What the messages of one call hold: values of their channel, or gradients of these, in order.
class MessageForms {
 public:
  /// @pre what is referred to outlives this
  MessageForms(const RankRuntime& runtime, const CallContext& context) : runtime_(runtime), context_(context) {}

  [[nodiscard]] const Channel& channel(const Action& action) const;
  [[nodiscard]] const std::vector<ValueId>& values(const Action& action) const;
  [[nodiscard]] std::vector<ir::TensorForm> forms(const Action& action) const;
  /// Samples of this rank's batch.
  [[nodiscard]] std::int64_t local_samples() const;
  /// The samples of a message among these.
  [[nodiscard]] Interval within_local(const Action& action) const;

 private:
  const RankRuntime& runtime_;
  const CallContext& context_;
};

}  // namespace autopar::engine
