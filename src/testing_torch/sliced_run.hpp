#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "testing_torch/captured_example.hpp"
#include "torch/interpret/slice.hpp"

namespace autopar::testing::op_laws {

/// Runs an example slice by slice, in one process, by the batch algebra's rules. Autograd connects the results with the
/// arguments.
class SlicedRun {
 public:
  /// @param arguments  arguments of the whole batch
  /// @param lengths    samples of each slice, at least 1
  SlicedRun(const CapturedExample& example, const Arguments& arguments, const std::vector<std::int64_t>& lengths);
  SlicedRun(const SlicedRun&) = delete;
  SlicedRun& operator=(const SlicedRun&) = delete;

  /// Results of the whole batch. @throws the exceptions of the operators
  [[nodiscard]] Tensors results();

 private:
  struct Slice {
    interpret::SliceContext context;
    replay::Environment values;
  };

  [[nodiscard]] std::vector<Slice> slices() const;
  void run(const std::vector<OpId>& ops, const interpret::SliceContext& context, replay::Environment& values) const;
  void run_prologue();
  void run_stage();
  void run_epilogue();
  [[nodiscard]] at::Tensor count_of(const LossCount& count, const std::vector<Slice>& slices) const;
  [[nodiscard]] at::Tensor total(const std::vector<Slice>& slices, ValueId value, bool is_weighted = false) const;
  [[nodiscard]] at::Tensor joined(ValueId value) const;
  [[nodiscard]] at::Tensor result_of(const algebra::OutputPlan& output) const;

  const CapturedExample& example_;
  const OpGraph& graph_;
  const algebra::BatchSemantics& plan_;
  const Arguments& arguments_;
  std::vector<std::int64_t> lengths_;
  Tensors counts_;                       ///< by BatchSemantics::counts
  std::map<ValueId, at::Tensor> known_;  ///< values known after the prologue
  std::vector<Slice> stage_;
  replay::Environment late_;  ///< environment of the epilogue
};

}  // namespace autopar::testing::op_laws
