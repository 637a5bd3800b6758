#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/function.h>

#include "ops/rules.hpp"
#include "testing_torch/laws.hpp"

namespace autopar::testing::op_laws {

namespace {

constexpr auto kWorkLaw = "costs are finite, not negative, and do not fall with the batch";
constexpr auto kSavedLaw = "saved bytes cover what the backward holds";

void require_cost(const CapturedExample& example, const Affine& cost, const std::string& name) {
  const bool is_finite = std::isfinite(cost.per_sample) && std::isfinite(cost.fixed);
  if (is_finite && cost.per_sample >= 0 && cost.at(1) >= 0) return;
  std::ostringstream text;
  text << name << " are " << cost.per_sample << " a sample and " << cost.fixed;
  example.broken(kWorkLaw, text.str());
}

/// Memory of the CPU that is allocated by this thread and not yet freed, while it is pushed as the profiler's state.
class HeldMemory : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* place, std::int64_t bytes, std::size_t, std::size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    if (bytes > 0)
      held_[place] = bytes;
    else
      held_.erase(place);
  }
  [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }

  /// Held bytes, less 64 bytes per tensor for scalars and allocator overhead.
  [[nodiscard]] double bytes() const {
    constexpr std::int64_t kLittle = 64;
    std::int64_t sum = 0;
    for (const auto& [place, bytes] : held_) sum += std::max<std::int64_t>(0, bytes - kLittle);
    return static_cast<double>(sum);
  }

 private:
  std::map<void*, std::int64_t> held_;
};

/// Bytes that the autograd graphs of a call's results hold, besides shared arguments. Other operands are made for this
/// call only.
double held_by_backward(const CapturedExample& example, const RecordedCall& call) {
  const auto& graph = example.graph();
  replay::Environment leaves(graph.values.size());
  for (const auto& [value, tensor] : call.operands)
    leaves[value.index()] = tensor.detach().set_requires_grad(graph.value(value).has_gradient());
  const auto memory = std::make_shared<HeldMemory>();
  const c10::DebugInfoGuard measured(c10::DebugInfoKind::PROFILER_STATE, memory);
  std::vector<std::shared_ptr<torch::autograd::Node>> histories;
  {
    auto values = leaves;
    for (const auto& [value, tensor] : call.operands) {
      if (!example.is_shared(value)) values[value.index()] = leaves[value.index()].clone();
    }
    for (const auto& result : run_alone(graph, call.id, std::move(values), example.batch()))
      histories.push_back(result.grad_fn());
  }
  return memory->bytes();
}

/// Exact bytes of a value; planners see a linear function of the batch instead.
double bytes_of(const OpGraph& graph, ValueId value, std::int64_t batch) {
  const auto& info = graph.value(value);
  return static_cast<double>(info.elements(batch)) * static_cast<double>(c10::elementSize(info.dtype));
}

}  // namespace

void check_work(const CapturedExample& example, const RecordedCall& call) {
  const AlgebraOptions options;
  const OpCall op(example.graph(), example.plan().values, options, call.id);
  const auto work = ops::work_of(op);
  require_cost(example, work.forward.flops, "the forward's flops");
  require_cost(example, work.forward.bytes, "the forward's bytes");
  require_cost(example, work.backward.flops, "the backward's flops");
  require_cost(example, work.backward.bytes, "the backward's bytes");
  const auto workspace = ops::workspace_of(op);
  require_cost(example, workspace.forward, "the forward's bytes of workspace");
  require_cost(example, workspace.backward, "the backward's bytes of workspace");
  require_cost(example, ops::saved_by(op).internal, "the internal saved bytes");
}

void check_saved_bytes(const CapturedExample& example, const RecordedCall& call) {
  constexpr double kTolerance = 0.01;
  const auto& graph = example.graph();
  const AlgebraOptions options;
  const auto saved = ops::saved_by(OpCall(graph, example.plan().values, options, call.id));
  const auto batch = example.batch();
  double stated = saved.internal.at(static_cast<double>(batch));
  for (const auto value : std::set(saved.values.begin(), saved.values.end())) {
    if (!value.valid()) example.broken(kSavedLaw, "it names a value that there is not");
    if (!example.is_shared(value)) stated += bytes_of(graph, value, batch);
  }
  const auto held = held_by_backward(example, call);
  if (held <= stated * (1 + kTolerance)) return;
  std::ostringstream text;
  text << "its definition states " << stated << " bytes for " << batch << " samples, and autograd holds " << held
       << " and 64 a tensor; see OpDef::saved and saved_by";
  example.broken(kSavedLaw, text.str());
}

}  // namespace autopar::testing::op_laws
