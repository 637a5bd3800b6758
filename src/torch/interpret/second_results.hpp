#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/capture/op_graph.hpp>

#include "torch/interpret/op_service.hpp"

namespace autopar {

/// Gives two readers of a value a tensor each, of the same memory, where its operator hands its result out twice
/// (`OpTrait::kDuplicatedOutputs`): that operator's backward then gets both gradients and adds them on the way, which
/// autograd would do in a kernel of its own. The last reader of a run takes the second tensor. Further readers, what a
/// run keeps, and other runs (the next segment, the next stage) have the first, whose gradients autograd adds as ever.
class SecondResults final : public OpService {
 public:
  /// @param ops   in the order of their runs
  /// @param keep  values that are also read after a run
  SecondResults(const OpGraph& graph, const std::vector<OpId>& ops, const std::vector<ValueId>& keep);

  [[nodiscard]] bool concerns(OpId op) const override { return made_by_.contains(op) || read_by_.contains(op); }
  /// What makes none after all.
  void exclude(OpId maker) { made_by_.erase(maker); }

  /// Puts second results in the place of first ones.
  void before(ReplayCall& call) override;
  /// Keeps the second result for its reader.
  void after(ReplayCall& call) override;
  void clear() override { waiting_.clear(); }

 private:
  std::map<OpId, ValueId> made_by_;
  std::map<OpId, std::vector<std::pair<std::int32_t, ValueId>>> read_by_;  ///< by reader, with the argument
  std::map<ValueId, at::Tensor> waiting_;
};

}  // namespace autopar
