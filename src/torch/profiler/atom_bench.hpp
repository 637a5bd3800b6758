#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <autopar/torch/engine/op_runner.hpp>
#include <autopar/torch/partition.hpp>

namespace autopar::detail {

/// One atom with everything that it needs to be run alone.
class AtomBench {
 public:
  struct Times {
    double forward = 0;   ///< seconds
    double backward = 0;  ///< seconds, with the start of the backward
    bool has_backward = false;
  };

  /// `graph` and `plan` must outlive it
  AtomBench(const OpGraph& graph, const BatchPlan& plan, const std::vector<OpId>& ops, c10::Device device);

  /// Runs it on `samples` samples and takes the time of one run.
  [[nodiscard]] Times run(std::int64_t samples);

 private:
  void find_boundary(const std::vector<OpId>& ops);
  [[nodiscard]] at::Tensor make_input(ValueId value, std::int64_t samples) const;
  [[nodiscard]] bool differentiable(ValueId value) const;
  void bring(std::int64_t samples);
  [[nodiscard]] Environment fresh_environment() const;
  [[nodiscard]] ShareContext share(std::int64_t samples) const;

  const OpGraph& graph_;
  const BatchPlan& plan_;
  c10::Device device_;
  std::vector<ValueId> incoming_;   ///< what the ops take and do not make, constants left out
  std::vector<ValueId> outgoing_;   ///< what others take
  bool whole_batch_ = false;
  OpRunner runner_;
  std::vector<at::Tensor> counts_;
  std::vector<at::Tensor> inputs_;  ///< like incoming_, for the samples of the latest run
  std::int64_t samples_ = 0;
  double latest_ = 1;               ///< seconds of the latest forward; much until one is known
};

/// Seconds that starting a backward takes, whatever it consists of.
[[nodiscard]] double start_of_backward(c10::Device device);

}  // namespace autopar::detail
