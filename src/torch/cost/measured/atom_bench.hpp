#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <autopar/core/units.hpp>

#include "torch/cost/measured/step_stopwatch.hpp"
#include "torch/cost/partition.hpp"
#include "torch/interpret/op_interpreter.hpp"

namespace autopar::cost::detail {

/// One atom with everything that it needs to be run alone.
class AtomBench {
 public:
  struct Times {
    StepStopwatch::Seconds forward, backward;  ///< of the host without the start of the backward
    bool has_backward = false;
  };

  /// `graph`, `plan` and `stopwatch` must outlive it
  /// @param adds_gradients  parameters have gradients, to which the backward adds; else it assigns them
  AtomBench(const OpGraph& graph, const algebra::BatchSemantics& plan, const std::vector<OpId>& ops,
            StepStopwatch& stopwatch, bool adds_gradients);

  /// Runs it on `samples` samples and takes the time of one run.
  /// @param elsewhere  bytes that the model's other atoms move between two compute actions of this one: a CPU's caches
  /// hold as much
  ///                   less of its parameters and of what it saved
  /// @param start  what starting a backward takes of the host: a stage starts one for all its atoms
  [[nodiscard]] Times run(std::int64_t samples, Bytes elsewhere, double start);

 private:
  void find_boundary(const std::vector<OpId>& ops);
  [[nodiscard]] at::Tensor make_input(ValueId value, bool of_both_signs, std::int64_t samples) const;
  [[nodiscard]] bool differentiable(ValueId value) const;
  void bring(std::int64_t samples);
  [[nodiscard]] replay::Environment fresh_environment() const;
  [[nodiscard]] interpret::SliceContext slice(std::int64_t samples) const;
  /// Leaves in a CPU's caches what a step leaves there when a compute action comes to the atom: what others moved, then
  /// `fresh`.
  void pass_through_caches(Bytes elsewhere, const std::vector<at::Tensor>& fresh);
  [[nodiscard]] std::vector<at::Tensor> made_by_others() const;

  const OpGraph& graph_;
  const algebra::BatchSemantics& plan_;
  StepStopwatch& stopwatch_;
  c10::Device device_;
  bool adds_gradients_;
  std::vector<ValueId> incoming_;    ///< what the ops take and do not make, constants left out
  std::vector<bool> of_both_signs_;  ///< likewise: numbers of either sign, as a product's
  std::vector<ValueId> outgoing_;    ///< what others take
  bool whole_batch_ = false;
  std::vector<OpId> casts_;  ///< of parameters: made before each run, as they are before each call
  interpret::OpInterpreter runner_;
  std::vector<at::Tensor> counts_;
  std::vector<at::Tensor> inputs_;  ///< like incoming_, for the samples of the latest run
  at::Tensor others_;               ///< stands for the memory of other atoms
  std::int64_t samples_ = 0;
  double latest_ = 1;  ///< seconds of the latest forward on the device; much until one is known
};

/// Seconds that starting a backward takes of the host, whatever it consists of.
[[nodiscard]] double start_of_backward(StepStopwatch& stopwatch);

}  // namespace autopar::cost::detail
