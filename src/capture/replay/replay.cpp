#include "capture/replay/replay.hpp"

#include <algorithm>
#include <exception>
#include <numeric>
#include <unordered_map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <autopar/core/error.hpp>

#include "capture/ir/batch_number.hpp"
#include "capture/ir/shown_name.hpp"
#include "capture/replay/plain_message.hpp"
#include "capture/replay/replay_step.hpp"

namespace autopar::replay {
namespace {

constexpr std::size_t kRememberedSizes = 64;

/// Grad mode as the operators want it, changed only where it differs; the caller's on leaving.
class GradModeSwitch {
 public:
  GradModeSwitch() : outer_(at::GradMode::is_enabled()), current_(outer_) {}
  ~GradModeSwitch() { set(outer_); }
  GradModeSwitch(const GradModeSwitch&) = delete;
  GradModeSwitch& operator=(const GradModeSwitch&) = delete;

  void want(bool enabled) { set(enabled && outer_); }

 private:
  void set(bool enabled) {
    if (enabled == current_) return;
    at::GradMode::set_enabled(enabled);
    current_ = enabled;
  }

  bool outer_, current_;
};

void retarget(const OpNode& node, std::vector<c10::IValue>& args, c10::Device device) {
  const auto& arguments = node.op.schema().arguments();
  for (std::size_t i = 0; i < args.size(); ++i) {
    const bool default_device = args[i].isNone() && node.inputs.empty() && arguments[i].name() == "device";
    if (args[i].isDevice() || default_device) args[i] = device;
  }
}

void put_integers(const OpNode& node, BatchSizes sizes, std::vector<c10::IValue>& args) {
  ir::for_each_number(node, [&](ir::BatchFactors factors) {
    const auto& integer = factors.back();
    const auto batch = integer.role == IntegerRole::kArithmetic ? sizes.global : sizes.local;
    const auto value = ir::integer_at(factors, batch);
    auto& argument = args[static_cast<std::size_t>(integer.argument)];
    if (integer.element < 0) {
      argument = argument.isDouble() ? c10::IValue(ir::number_at(factors, batch)) : c10::IValue(value);
    } else {
      auto list = argument.toIntVector();  // a copy: the template's list is shared
      list[static_cast<std::size_t>(integer.element)] = value;
      argument = std::move(list);
    }
  });
}

c10::IValue gather(const Slot& slot, const Environment& environment) {
  const auto at = [&](ValueId value) { return value.valid() ? environment[value.index()] : at::Tensor(); };
  if (slot.kind == SlotKind::kOptionalList) {
    c10::List<std::optional<at::Tensor>> list;
    list.reserve(slot.values.size());
    for (auto value : slot.values) list.push_back(value.valid() ? std::optional(at(value)) : std::nullopt);
    return list;
  }
  c10::List<at::Tensor> list;
  list.reserve(slot.values.size());
  for (auto value : slot.values) list.push_back(at(value));
  return list;
}

void scatter(const OpNode& node, torch::jit::Stack& stack, Environment& environment) {
  for (const auto& slot : node.outputs) {
    auto& result = stack[static_cast<std::size_t>(slot.position)];
    if (slot.kind == SlotKind::kTensor) {
      if (slot.values.front().valid()) environment[slot.values.front().index()] = std::move(result).toTensor();
      continue;
    }
    const auto list = result.toTensorList();
    for (std::size_t k = 0; k < slot.values.size(); ++k) {
      if (slot.values[k].valid()) environment[slot.values[k].index()] = list.get(k);
    }
  }
}

bool may_be_dropped(const ValueInfo& info) {
  return info.kind == ValueKind::kComputed || info.kind == ValueKind::kInput;
}

}  // namespace

/// Arguments of the steps that have integers, for one pair of batch sizes.
struct Replayer::Resolved {
  std::vector<Arguments> arguments;
};

Replayer::Replayer(const OpGraph& graph, std::vector<OpId> ops, const std::vector<ValueId>& keep, c10::Device device)
    : graph_(&graph) {
  std::vector<bool> defined(graph.values.size(), false), kept(graph.values.size(), false);
  std::vector<std::size_t> last_use(graph.values.size(), 0);
  for (auto value : keep) kept[value.index()] = true;

  steps_.reserve(ops.size());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const auto& node = graph.op(ops[i]);
    auto args = node.args;
    retarget(node, args, device);
    steps_.push_back(make_step(node, ops[i], std::move(args)));
    for_each_input(node, [&](ValueId value) {
      last_use[value.index()] = i + 1;
      if (defined[value.index()]) return;
      defined[value.index()] = true;
      const auto& info = graph.value(value);
      if (info.kind != ValueKind::kConstant) return required_.push_back(value);
      const bool stays = info.constant.dim() == 0 || info.constant.device() == device;
      constants_.emplace_back(value, stays ? info.constant : info.constant.to(device));
    });
    for_each_output(node, [&](ValueId value) {
      defined[value.index()] = true;
      last_use[value.index()] = i + 1;
    });
  }
  by_op_.resize(steps_.size());
  std::iota(by_op_.begin(), by_op_.end(), std::size_t{0});
  std::sort(by_op_.begin(), by_op_.end(), [&](std::size_t a, std::size_t b) { return steps_[a].id < steps_[b].id; });
  for (auto value : keep) {  // a constant may be a result without any operator
    const auto& info = graph.value(value);
    if (info.kind == ValueKind::kConstant && !defined[value.index()])
      constants_.emplace_back(value, info.constant.to(device));
  }
  for (std::size_t v = 0; v < last_use.size(); ++v) {
    if (last_use[v] > 0 && !kept[v] && may_be_dropped(graph.values[v]))
      steps_[last_use[v] - 1].dead.push_back(ValueId::of(v));
  }
}

Replayer::~Replayer() = default;
Replayer::Replayer(Replayer&&) noexcept = default;
Replayer& Replayer::operator=(Replayer&&) noexcept = default;

void Replayer::handle(OpId op, OpHandler handler) {
  const auto found = std::lower_bound(by_op_.begin(), by_op_.end(), op,
                                      [&](std::size_t step, OpId id) { return steps_[step].id < id; });
  if (found == by_op_.end() || steps_[*found].id != op) {
    throw InvalidArgument("handle: operator " + graph_->describe(op) + " is not one that this replayer runs");
  }
  steps_[*found].handler = std::move(handler);
}

Environment Replayer::environment() const {
  Environment result(graph_->values.size());
  for (const auto& [value, tensor] : constants_) result[value.index()] = tensor;
  return result;
}

const Replayer::Resolved& Replayer::resolve(BatchSizes sizes) {
  const auto known = resolved_.find(sizes);
  if (known != resolved_.end()) return *known->second;
  if (resolved_.size() >= kRememberedSizes) resolved_.clear();
  auto made = std::make_unique<Resolved>();
  for (auto& step : steps_) {
    if (step.node->integers.empty()) continue;
    auto args = step.arguments.boxed;
    put_integers(*step.node, sizes, args);
    step.resolved = made->arguments.size();
    made->arguments.push_back(make_arguments(step.kind, std::move(args)));
  }
  return *resolved_.emplace(sizes, std::move(made)).first->second;
}

std::size_t Replayer::steps() const { return steps_.size(); }

void Replayer::run(Environment& environment, BatchSizes sizes, std::size_t first, std::size_t last,
                   OpObserver* observer) {
  const auto& resolved = resolve(sizes);
  GradModeSwitch grad_mode;
  for (std::size_t i = first; i < last; ++i) {
    const auto& step = steps_[i];
    grad_mode.want(step.node->grad_enabled);
    if (observer != nullptr) observer->begin(step.id);
    try {
      run_step(step, step.node->integers.empty() ? step.arguments : resolved.arguments[step.resolved], sizes,
               environment);
    } catch (const c10::Error& error) {
      stack_.clear();
      std::throw_with_nested(OperatorError(ir::shown_name(*graph_, step.id), step.node->path, plain_message(error)));
    }
    if (observer != nullptr) observer->end(step.id, *step.node, environment);
    for (auto value : step.dead) environment[value.index()].reset();
  }
}

void Replayer::run_step(const ReplayStep& step, const Arguments& arguments, BatchSizes sizes,
                        Environment& environment) {
  const auto& node = *step.node;
  if (step.kind != StepKind::kBoxed && !step.handler) {
    call_unboxed(step, arguments, environment);
    return;
  }
  stack_.assign(arguments.boxed.begin(), arguments.boxed.end());
  for (const auto& slot : node.inputs) {
    auto& argument = stack_[static_cast<std::size_t>(slot.position)];
    if (slot.kind != SlotKind::kTensor)
      argument = gather(slot, environment);
    else
      argument = slot.values.front().valid() ? environment[slot.values.front().index()] : at::Tensor();
  }
  if (step.handler) {
    ReplayCall call{step.id, node, sizes, stack_, environment};
    step.handler(call);
  } else {
    node.op.callBoxed(&stack_);
  }
  scatter(node, stack_, environment);
  stack_.clear();
}

std::vector<OpId> all_ops(const OpGraph& graph) {
  std::vector<OpId> ops;
  ops.reserve(graph.ops.size());
  for (std::size_t i = 0; i < graph.ops.size(); ++i) ops.push_back(OpId::of(i));
  return ops;
}

void bind_state(const OpGraph& graph, const torch::nn::Module& module, Environment& environment) {
  std::unordered_map<std::string, at::Tensor> state;
  for (const auto& item : module.named_parameters()) state.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers()) state.emplace(item.key(), item.value());
  for (const auto* list : {&graph.parameters, &graph.buffers}) {
    for (const auto& named : *list) {
      const auto found = state.find(named.name);
      if (found == state.end()) throw InvalidArgument("the module has no parameter or buffer '" + named.name + "'");
      environment[named.value.index()] = found->second;
    }
  }
}

}  // namespace autopar::replay
