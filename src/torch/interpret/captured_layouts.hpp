#pragma once

#include <vector>

#include <c10/core/Device.h>

#include "torch/interpret/op_service.hpp"

namespace autopar {

/// Gives results whose memory has views the strides that they were captured with, which are those of the CPU's kernels.
/// Another device may lay them out otherwise (attention on CUDA does), and a view would fail or see other elements.
class CapturedLayouts final : public OpService {
 public:
  /// @param graph  must outlive this
  CapturedLayouts(const OpGraph& graph, c10::Device device);

  [[nodiscard]] bool concerns(OpId op) const override { return concerned_[op.index()]; }
  /// Leaves the operator's results as they are. @pre what reads them takes any layout
  void exclude(OpId op) { concerned_[op.index()] = false; }
  void after(ReplayCall& call) override;

 private:
  const OpGraph& graph_;
  std::vector<bool> concerned_;  ///< by op
};

}  // namespace autopar
