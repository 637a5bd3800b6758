#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/core/error.hpp>

#include "shard/group_state.hpp"
#include "shard/tensor_buffer.hpp"
#include "torch/engine/stage.hpp"

namespace autopar::engine {

/// The tensor shards of a replica. Their exchanges go through the gate of the current compute action.
class GateGroup : public detail::GroupState {
 public:
  GateGroup(std::vector<Rank> ranks, int place, std::shared_ptr<const StageGate> gate)
      : GroupState(std::move(ranks), place), gate_(std::move(gate)) {}

  void all_reduce(const at::Tensor& tensor, const std::function<void()>& meanwhile) override {
    exchange(Exchange::kAllReduce, tensor, meanwhile);
  }
  void reduce_scatter(const at::Tensor& parts, const std::function<void()>& meanwhile) override {
    exchange(Exchange::kReduceScatter, parts, meanwhile);
  }
  void all_gather(const at::Tensor& parts) override {
    gate_->gate->exchange(Exchange::kAllGather, buffer_of(parts), DType::kU8);
  }
  void send(const at::Tensor&, int) override { refuse(); }
  void receive(const at::Tensor&, int) override { refuse(); }

 private:
  void exchange(Exchange kind, const at::Tensor& tensor, const std::function<void()>& meanwhile) {
    gate_->gate->exchange(kind, buffer_of(tensor), summed_dtype(tensor.scalar_type()), meanwhile);
  }
  [[noreturn]] static void refuse() {
    throw InvalidArgument("tensor shards of a stage exchange what all of them have, and send no single messages");
  }

  std::shared_ptr<const StageGate> gate_;
};

}  // namespace autopar::engine
