#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Scalar.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "torch/interpret/op_interpreter.hpp"

namespace autopar::programs {

/// Buffers that follow parameters and buffers alone (BufferUpdateKind::kReplicated): counters of batches, decays, power
/// iterations. Prepared once a program, run once a call by every rank that holds them.
class ReplicatedUpdates {
 public:
  using Lookup = std::function<at::Tensor(ValueId)>;  ///< handle of a buffer or parameter leaf

  /// @param held  of the plan's updates, those that this rank runs
  ReplicatedUpdates(const OpGraph& graph, const algebra::BatchSemantics& plan,
                    const std::vector<const algebra::BufferUpdate*>& held, c10::Device device, Lookup lookup);

  /// Before other buffers of the call are written: updates read what the buffers held when forward began.
  void run(std::int64_t batch);

 private:
  /// Buffers that grow by the same number, as the counters of all batch norms do: one kernel for all of them.
  struct Counters {
    at::Scalar step;
    std::vector<ValueId> buffers;
  };
  void add_counter(const OpGraph& graph, ValueId buffer, const at::Scalar& step);
  void run_others(std::int64_t batch);

  const algebra::BatchSemantics& plan_;
  Lookup lookup_;
  std::vector<Counters> counters_;
  std::vector<const algebra::BufferUpdate*> others_;
  std::vector<ValueId> read_;                         ///< leaves that the others' operators read, each once
  std::unique_ptr<interpret::OpInterpreter> runner_;  ///< of the others
};

}  // namespace autopar::programs
