#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/capture/op_graph.hpp>

#include "torch/interpret/op_service.hpp"

namespace autopar::interpret {

/// Gives two readers of a value one tensor each, with the same memory. This applies to operators that return their
/// result twice (`OpTrait::kDuplicatedOutputs`). The operator's backward then receives both gradients and adds them in
/// its own kernel; autograd would add them in a separate one. The last reader of a run takes the second tensor. All
/// others have the first tensor, and autograd adds their gradients as usual. Others are further readers, values that a
/// run keeps, and other runs (the next segment, the next stage).
class SecondResults final : public OpService {
 public:
  /// @param ops   in the order in which they run
  /// @param keep  values that are also read after a run
  SecondResults(const OpGraph& graph, const std::vector<OpId>& ops, const std::vector<ValueId>& keep);

  [[nodiscard]] bool concerns(OpId op) const override { return made_by_.contains(op) || read_by_.contains(op); }
  /// Excludes an operator that returns no second result.
  void exclude(OpId maker) { made_by_.erase(maker); }

  /// Replaces first results by second ones.
  void before(replay::ReplayCall& call) override;
  /// Keeps the second result for its reader.
  void after(replay::ReplayCall& call) override;
  void clear() override { waiting_.clear(); }

 private:
  std::map<OpId, ValueId> made_by_;
  std::map<OpId, std::vector<std::pair<std::int32_t, ValueId>>> read_by_;  ///< by reader: argument positions and values
  std::map<ValueId, at::Tensor> waiting_;
};

}  // namespace autopar::interpret
