#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <autopar/core/ids.hpp>
#include <autopar/schedule/batch_split.hpp>

#include "torch/calls/call_arguments.hpp"
#include "torch/engine/torch_engine.hpp"
#include "torch/interpret/slice.hpp"
#include "torch/programs/captured_program.hpp"
#include "torch/programs/epilogue.hpp"
#include "torch/programs/prologue.hpp"
#include "torch/programs/reached_parameters.hpp"
#include "torch/results/own_region.hpp"

namespace autopar::steps {

/// How a call runs where calls repeat (graphs/repeated_calls.hpp).
enum class CudaGraphPhase : std::uint8_t { kEager, kWarmup, kCapture, kReplay };

/// What running a call has made so far.
struct StepState {
  std::vector<at::Tensor> inputs;  ///< arguments, on the device
  programs::PrologueResult known;
  std::shared_ptr<engine::TorchEngine> engine;
  std::map<ValueId, at::Tensor> sums;  ///< completed
  std::optional<programs::EpilogueRun> tail;
  std::vector<at::Tensor> results;                  ///< of a CUDA graph
  std::optional<std::deque<at::Tensor>> gradients;  ///< likewise, by position
  bool has_updated_buffers = false;
  bool may_fail = false;  ///< what runs is captured into a CUDA graph, or will run again: its failure is not the call's

  /// Frees what `StepRunner::forward` has made, but for inputs.
  void drop_run() {
    known = {};
    engine.reset();
    sums.clear();
    tail.reset();
  }
};

/// One call on its way.
struct Call {
  calls::CallArguments arguments;
  std::shared_ptr<programs::CapturedProgram> program;
  BatchLayout layout;
  std::int64_t batch = 0;
  bool differentiate = false;
  bool loss_mode = false;   ///< forward and backward in this call
  bool accumulate = false;  ///< inside no_sync
  double loss_scale = 1;    ///< of its gradients, until GradientApplier::unscale
  interpret::RngKey draws;
  std::shared_ptr<results::OwnRegion> region;            ///< see History
  const programs::ReachedParameters* offered = nullptr;  ///< that autograd may ask for by name
  CudaGraphPhase phase = CudaGraphPhase::kEager;
  std::vector<std::int64_t> versions{};  ///< of parameters and buffers, when a forward was replayed
  StepState state;
};

/// Gradients that the backward pass of this rank's stages has made.
struct StageGradients {
  std::shared_ptr<const void> program;                          ///< keeps the lists below
  const programs::ReachedParameters* reached = nullptr;         ///< parameters whose gradient is defined
  const programs::ReachedParameters* offered = nullptr;         ///< see Call
  std::deque<at::Tensor> by_position;                           ///< of the rank's parameters
  std::vector<std::shared_ptr<torch::autograd::Node>> retired;  ///< see TorchEngine::take_retired
};

}  // namespace autopar::steps
