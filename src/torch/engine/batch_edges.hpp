#pragma once

#include <cstddef>
#include <map>

#include <ATen/core/Tensor.h>

#include "torch/engine/message.hpp"
#include "torch/engine/message_forms.hpp"

namespace autopar::engine {

/// Where the pipeline meets this rank's batch: arguments and gradients of results go in, results and gradients of
/// arguments come out. Messages bring pieces of them.
class BatchEdges {
 public:
  /// @pre what is referred to outlives this
  BatchEdges(const RankRuntime& runtime, const CallContext& context, const MessageForms& messages)
      : runtime_(runtime), context_(context), messages_(messages) {}

  /// Adds the gradient of a batched result of this rank. Undefined ones count as zero.
  void add_result_gradient(ValueId value, at::Tensor gradient);
  /// The content of a message that leaves the edge: samples of an argument, or of a result's gradient.
  [[nodiscard]] at::Tensor pack(const Action& action, ValueId value) const;
  /// Adds what a message brings: a piece of a result, or of an argument's gradient.
  void unpack(const Action& action, ValueId value, const at::Tensor& piece);
  /// This rank's samples of a batched result. Without samples it is an empty tensor.
  [[nodiscard]] at::Tensor take_result(ValueId value) { return take(results_, value); }
  /// The gradient of an argument of this rank: complete if batched, else an addend.
  [[nodiscard]] at::Tensor take_input_gradient(ValueId value) { return take(input_gradients_, value); }

 private:
  [[nodiscard]] at::Tensor take(std::map<ValueId, Assembly>& from, ValueId value) const;

  const RankRuntime& runtime_;
  const CallContext& context_;
  const MessageForms& messages_;
  std::map<ValueId, Assembly> results_;          ///< of the whole local batch
  std::map<ValueId, Assembly> input_gradients_;  ///< likewise
  std::map<ValueId, at::Tensor> result_gradients_;
};

}  // namespace autopar::engine
