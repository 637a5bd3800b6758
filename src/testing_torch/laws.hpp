#pragma once

#include <map>
#include <vector>

#include "testing_torch/captured_example.hpp"

namespace autopar::testing::op_laws {

/// One call of the operator on the whole batch, without an autograd graph.
struct RecordedCall {
  OpId id;
  std::map<ValueId, at::Tensor> operands;  ///< values before the call
  Tensors results;                         ///< as `for_each_output` visits them
};

/// Results of the operator in the order of `for_each_output`, from an environment with its operands.
[[nodiscard]] Tensors run_alone(const OpGraph& graph, OpId id, replay::Environment values, std::int64_t batch);

/// @return the calls on the whole batch
/// @throws LawBroken, like all functions below
[[nodiscard]] std::vector<RecordedCall> check_forms(const CapturedExample& example);

/// @return whether the batch may be sliced
[[nodiscard]] bool check_slices(const CapturedExample& example);

/// @return whether the call works on slices of some operand
[[nodiscard]] bool check_shards(const CapturedExample& example, const RecordedCall& call);

/// @return whether the call's backward can be split
[[nodiscard]] bool check_split_backward(const CapturedExample& example, const RecordedCall& call);

void check_work(const CapturedExample& example, const RecordedCall& call);

void check_saved_bytes(const CapturedExample& example, const RecordedCall& call);

}  // namespace autopar::testing::op_laws
