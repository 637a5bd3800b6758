#pragma once

#include <vector>

#include <c10/core/Device.h>

#include "torch/interpret/op_service.hpp"

namespace autopar::interpret {

/// Restores the captured strides of results that have views; the CPU's kernels chose these strides. Another device may
/// lay out results differently, as attention on CUDA does. A view would then fail or see other elements.
class CapturedLayouts final : public OpService {
 public:
  /// @param graph  must outlive this
  CapturedLayouts(const OpGraph& graph, c10::Device device);

  [[nodiscard]] bool concerns(OpId op) const override { return concerned_[op.index()]; }
  /// Excludes an operator: its results keep their strides. @pre their readers accept any layout
  void exclude(OpId op) { concerned_[op.index()] = false; }
  void after(replay::ReplayCall& call) override;

 private:
  const OpGraph& graph_;
  std::vector<bool> concerned_;  ///< by op
};

}  // namespace autopar::interpret
