#pragma once

#include <string>
#include <vector>

#include "capture/algebra/batch_algebra.hpp"
#include "capture/algebra/graph_facts.hpp"
#include "ops/rules.hpp"

namespace autopar::algebra {

using ops::batch_dims, ops::broadcast, ops::draws, ops::has_elements, ops::Sizes, ops::type_by_sizes, ops::typed,
    ops::wrap_dim;

/// The typing of one graph. `run` repeats a forward pass until no more sums are needed early, before all slices are
/// done. A sum that is needed early becomes a prologue value. If it depends on parameters, its readers become
/// whole-batch ops instead.
class Analysis {
 public:
  Analysis(const OpGraph& graph, const AlgebraOptions& options);
  /// @throws CaptureError
  [[nodiscard]] BatchSemantics run();

 private:
  // --- typing
  /// @return whether the pass was completed; if not, it must be repeated
  bool type_all();
  bool type_op(OpId id);
  [[nodiscard]] BatchTyping decide(const OpCall& op, bool& again);
  [[nodiscard]] BatchTyping decide_over_sums(const OpCall& op, bool& again);
  [[nodiscard]] BatchTyping decide_epilogue(const OpCall& op, bool& again);
  bool force_operands_whole(const OpCall& op);
  [[nodiscard]] BatchTyping whole_batch(const OpCall& op, const std::string& reason) const;
  [[nodiscard]] bool is_without_elements(const OpCall& op) const;
  [[nodiscard]] BatchTyping epilogue(const OpCall& op) const;
  [[nodiscard]] bool may_be_epilogue(const OpCall& op) const;
  [[nodiscard]] bool may_be_prologue(ValueId value) const;
  void force_whole(ValueId epilogue_value);
  [[nodiscard]] bool fits_sizes(const OpCall& op, const BatchTyping& result) const;
  [[nodiscard]] bool leaves_aliases_stale(const OpCall& op, const BatchTyping& result) const;
  void refuse_writes(const OpCall& op) const;
  void apply(const OpCall& op, const BatchTyping& result);

  // --- the plan
  void find_prologue();
  void order_prologue();
  void find_epilogue();
  void find_outputs();
  void find_buffer_updates();
  [[nodiscard]] std::vector<std::vector<OpId>> ops_of_buffers() const;
  [[nodiscard]] bool writes_buffer(OpId id, StorageId storage) const;
  void find_stage_ops();
  void use_prologue_value(ValueId value);
  void find_parameter_casts();
  void decide_loss_mode();

  const OpGraph& graph_;
  const AlgebraOptions options_;
  const GraphFacts facts_;
  BatchSemantics plan_;

  std::vector<bool> summed_early_;  ///< by value: completed in the prologue
  std::vector<bool> forced_whole_;  ///< by op
  std::vector<bool> is_epilogue_;   ///< by op
  std::vector<bool> known_early_;   ///< by value: available after the prologue
};

}  // namespace autopar::algebra
