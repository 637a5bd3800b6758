#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "testing_torch/captured_example.hpp"
#include "torch/interpret/slice.hpp"

namespace autopar::testing::op_laws {

/// Runs an example slice by slice, in one process, as the batch algebra says. Autograd connects the results with the
/// arguments.
class SlicedRun {
 public:
  /// @param arguments  of the whole batch
  /// @param lengths    samples of each slice, at least 1
  SlicedRun(const CapturedExample& example, const Arguments& arguments, const std::vector<std::int64_t>& lengths);
  SlicedRun(const SlicedRun&) = delete;
  SlicedRun& operator=(const SlicedRun&) = delete;

  /// Those of the whole batch. @throws what an operator throws
  [[nodiscard]] Tensors results();

 private:
  struct Slice {
    SliceContext context;
    Environment values;
  };

  [[nodiscard]] std::vector<Slice> slices() const;
  void run(const std::vector<OpId>& ops, const SliceContext& context, Environment& values) const;
  void run_prologue();
  void run_stage();
  void run_epilogue();
  [[nodiscard]] at::Tensor count_of(const LossCount& count, const std::vector<Slice>& slices) const;
  [[nodiscard]] at::Tensor total(const std::vector<Slice>& slices, ValueId value, bool is_weighted = false) const;
  [[nodiscard]] at::Tensor joined(ValueId value) const;
  [[nodiscard]] at::Tensor result_of(const OutputPlan& output) const;

  const CapturedExample& example_;
  const OpGraph& graph_;
  const BatchPlan& plan_;
  const Arguments& arguments_;
  std::vector<std::int64_t> lengths_;
  Tensors counts_;                       ///< by BatchPlan::counts
  std::map<ValueId, at::Tensor> known_;  ///< after the prologue
  std::vector<Slice> stage_;
  Environment late_;  ///< of the epilogue
};

}  // namespace autopar::testing::op_laws
