#pragma once

#include <functional>
#include <set>
#include <utility>

#include "torch/interpret/op_service.hpp"

namespace autopar::interpret {

/// The engine's hooks around some operators. `before` may put tensors that the operator reads into the environment.
struct OpHooks {
  std::set<OpId> ops;
  std::function<void(OpId)> before;
  std::function<void(OpId, const torch::jit::Stack& results)> after;
};

class HookService final : public OpService {
 public:
  explicit HookService(OpHooks hooks) : hooks_(std::move(hooks)) {}

  [[nodiscard]] bool concerns(OpId op) const override { return hooks_.ops.contains(op); }
  void before(replay::ReplayCall& call) override {
    hooks_.before(call.id);
    take_given(call);
  }
  void after(replay::ReplayCall& call) override { hooks_.after(call.id, call.stack); }

 private:
  /// Replaces the call's arguments by tensors that the hook has made.
  static void take_given(replay::ReplayCall& call) {
    for (const auto& slot : call.node.inputs) {
      const auto value = slot.values.front();
      if (slot.kind != SlotKind::kTensor || !value.valid()) continue;
      auto& given = call.stack[static_cast<std::size_t>(slot.position)];
      if (given.isTensor() && !given.toTensor().defined()) given = call.environment[value.index()];
    }
  }

  OpHooks hooks_;
};

}  // namespace autopar::interpret
