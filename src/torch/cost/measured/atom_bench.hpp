#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <autopar/core/units.hpp>

#include "torch/cost/measured/step_stopwatch.hpp"
#include "torch/cost/partition.hpp"
#include "torch/fp8/layers.hpp"
#include "torch/interpret/op_interpreter.hpp"

namespace autopar::cost::detail {

/// One atom with everything that it needs to run alone.
class AtomBench {
 public:
  struct Times {
    StepStopwatch::Seconds forward, backward;  ///< host times exclude starting the backward
    bool has_backward = false;
  };

  /// What is referred to must outlive the object.
  /// @param fp8  layers that run in 8 bits once they have scales
  AtomBench(const OpGraph& graph, const algebra::BatchSemantics& plan, const std::vector<OpId>& ops,
            StepStopwatch& stopwatch, fp8::Layers& fp8);

  /// Runs the atom on `samples` samples and times one run.
  /// @param elsewhere  bytes that the model's other atoms move between two compute actions of this one. They displace
  /// its parameters and saved values from a CPU's caches.
  /// @param start  host seconds to start a backward, which a stage does once for all its atoms
  [[nodiscard]] Times run(std::int64_t samples, Bytes elsewhere, double start);
  /// Forward and backward, without waiting for a device.
  void run_untimed(std::int64_t samples);
  [[nodiscard]] c10::Device device() const { return device_; }

 private:
  struct Boundary {
    std::vector<ValueId> incoming;    ///< inputs of the ops, without constants
    std::vector<bool> of_both_signs;  ///< by incoming value: numbers with either sign, as a product has
    std::vector<ValueId> outgoing;    ///< values that other atoms read
  };
  /// A cast of a parameter. As in training calls, a layer that alone reads it has it in 8 bits.
  struct Cast {
    OpId op;
    const fp8::Layer* in_8_bits = nullptr;
  };
  void find_boundary(const std::vector<OpId>& ops);
  void find_casts(const std::vector<OpId>& ops, fp8::Layers& fp8);
  [[nodiscard]] at::Tensor cast_of(const Cast& cast, const at::Tensor& parameter) const;
  [[nodiscard]] at::Tensor make_input(ValueId value, bool of_both_signs, std::int64_t samples) const;
  [[nodiscard]] bool differentiable(ValueId value) const;
  void bring(std::int64_t samples);
  [[nodiscard]] replay::Environment fresh_environment() const;
  [[nodiscard]] interpret::SliceContext slice(std::int64_t samples) const;
  /// Brings a CPU's caches into the state of a step when a compute action reaches the atom: other atoms' data, then
  /// `fresh`.
  void pass_through_caches(Bytes elsewhere, const std::vector<at::Tensor>& fresh);
  [[nodiscard]] std::vector<at::Tensor> made_by_others() const;

  const OpGraph& graph_;
  const algebra::BatchSemantics& plan_;
  StepStopwatch& stopwatch_;
  c10::Device device_;
  Boundary boundary_;
  bool whole_batch_ = false;
  std::vector<Cast> casts_;  ///< made before each timed run, as before each call
  interpret::OpInterpreter runner_;
  std::vector<at::Tensor> counts_;
  std::vector<at::Tensor> inputs_;  ///< by incoming value, for the samples of the latest run
  at::Tensor others_;               ///< represents the memory of other atoms
  std::int64_t samples_ = 0;
  double latest_ = 1;  ///< device seconds of the latest forward; large until one is known
};

/// Host seconds to start a backward, whatever it consists of.
[[nodiscard]] double start_of_backward(StepStopwatch& stopwatch);

}  // namespace autopar::cost::detail
