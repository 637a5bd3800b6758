#pragma once

#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "capture/ir/batch_number.hpp"
#include "capture/trace/capture.hpp"

namespace autopar::test {

using at::Tensor;
using Tensors = std::vector<Tensor>;

/// A module whose parameters and buffers are made by a test: `net[0]` is the first parameter, `net.state(0)` the first
/// buffer.
class Net : public torch::nn::Module {
 public:
  Net(const std::vector<std::vector<std::int64_t>>& parameters, const Tensors& buffers) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      parameters_.push_back(
          register_parameter("p" + std::to_string(i), torch::randn(parameters[i], torch::kDouble) * 0.5));
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      states_.push_back(register_buffer("s" + std::to_string(i), buffers[i].clone()));
    }
  }
  Tensor& operator[](std::size_t i) { return parameters_.at(i); }
  Tensor& state(std::size_t i) { return states_.at(i); }

 private:
  Tensors parameters_, states_;
};

/// A tensor argument: `sizes` with -1 for the batch; `classes` > 0 makes integers below it (one in five is -100 if
/// `holes`).
struct Arg {
  std::vector<std::int64_t> sizes = {};
  std::int64_t classes = 0;
  bool holes = false;
  bool positive = false;
  bool requires_grad = true;
};

using Function = std::function<Tensors(Net&, const Tensors&)>;

struct Case {
  std::vector<Arg> args = {};
  std::vector<std::vector<std::int64_t>> parameters = {};
  Function function = {};
  Tensors buffers = {};
  BatchNormMode batch_norm = BatchNormMode::kMicrobatch;
};

inline std::optional<std::int64_t> batch_dim(const Arg& arg) {
  for (std::size_t i = 0; i < arg.sizes.size(); ++i) {
    if (arg.sizes[i] < 0) return static_cast<std::int64_t>(i);
  }
  return std::nullopt;
}

inline Tensor make(const Arg& arg, std::int64_t batch) {
  auto sizes = arg.sizes;
  for (auto& size : sizes) size = size < 0 ? batch : size;
  if (arg.classes == 0) {
    auto data = torch::randn(sizes, torch::kDouble);
    if (arg.positive) data = data.abs() + 0.1;
    return data.set_requires_grad(arg.requires_grad);
  }
  auto data = torch::randint(arg.classes, sizes, torch::kLong);
  if (arg.holes) data.masked_fill_(torch::rand(sizes) < 0.2, -100);
  return data;
}

/// Runs a captured program slice by slice as BatchSemantics says, in the plainest way.
class SliceInterpreter {
 public:
  struct BatchSlice {
    std::int64_t begin, end;
    [[nodiscard]] std::int64_t size() const { return end - begin; }
  };

  SliceInterpreter(const OpGraph& graph, const algebra::BatchSemantics& plan, Net& net, Tensors inputs,
                   std::int64_t batch)
      : graph_(graph), plan_(plan), net_(net), inputs_(std::move(inputs)), batch_(batch) {}

  /// From now on runs each slice stage by stage, in memory that stages do not share. @param stage_of  by OpId, from 0
  void cut(std::vector<int> stage_of, int stages) {
    stage_of_ = std::move(stage_of);
    stages_ = stages;
  }

  /// Results of the whole batch; autograd connects them with the inputs and the parameters of the net.
  Tensors run(const std::vector<BatchSlice>& ranks, const std::vector<BatchSlice>& slices) {
    run_prologue(ranks);
    std::vector<std::vector<Tensor>> environments;
    for (const auto& slice : slices) {
      if (slice.size() > 0) environments.push_back(run_stage(slice));
    }
    run_epilogue(slices, environments);
    Tensors results;
    for (const auto& output : plan_.outputs) results.push_back(result_of(output, slices, environments));
    update_buffers(environments);
    return results;
  }

 private:
  using Environment = std::vector<Tensor>;

  Environment leaves(const BatchSlice& slice) {
    Environment values(graph_.values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto& info = graph_.values[i];
      const auto& type = plan_.values[i];
      if (info.kind == ValueKind::kConstant) values[i] = info.constant;
      if (info.kind == ValueKind::kParameter) values[i] = net_.named_parameters()[info.name];
      if (info.kind == ValueKind::kBuffer) values[i] = net_.named_buffers()[info.name].clone();
      if (info.kind == ValueKind::kInput) {
        values[i] = inputs_.at(static_cast<std::size_t>(info.position));
        if (type.is_batched()) values[i] = values[i].narrow(type.dim, slice.begin, slice.size());
      }
    }
    for (const auto& [value, tensor] : early_) values[value.index()] = tensor;
    return values;
  }

  void call(const OpNode& node, const OpHandling& handling, Environment& values, std::int64_t n) {
    const double weight = static_cast<double>(n) / static_cast<double>(batch_);
    if (handling.replace_squeeze) {
      values[node.outputs[0].values[0].index()] =
          values[node.inputs[0].values[0].index()].squeeze(handling.squeeze_dims);
      return;
    }
    torch::jit::Stack stack = node.args;
    for (const auto& slot : node.inputs) {
      const auto at = static_cast<std::size_t>(slot.position);
      const auto value_of = [&](ValueId id) { return id.valid() ? values[id.index()] : Tensor(); };
      if (slot.kind == SlotKind::kTensor) {
        stack[at] = value_of(slot.values[0]);
      } else if (slot.kind == SlotKind::kList) {
        c10::List<Tensor> list;
        for (const auto id : slot.values) list.push_back(value_of(id));
        stack[at] = list;
      } else {
        c10::List<std::optional<Tensor>> list;
        for (const auto id : slot.values)
          list.push_back(id.valid() ? std::optional<Tensor>(value_of(id)) : std::nullopt);
        stack[at] = list;
      }
    }
    ir::for_each_number(node, [&](ir::BatchFactors factors) {
      const auto& integer = factors.back();
      const auto at = static_cast<std::size_t>(integer.argument);
      const auto batch = integer.role == IntegerRole::kArithmetic ? batch_ : n;
      const auto value = ir::integer_at(factors, batch);
      if (integer.element < 0) {
        stack[at] = stack[at].isDouble() ? c10::IValue(ir::number_at(factors, batch)) : c10::IValue(value);
      } else {
        auto list = stack[at].toIntVector();
        list[static_cast<std::size_t>(integer.element)] = value;
        stack[at] = list;
      }
    });
    for (const auto position : handling.weighted_arguments) {
      auto& argument = stack[static_cast<std::size_t>(position)];
      argument = argument.isTensor() ? c10::IValue(argument.toTensor() * weight)
                                     : c10::IValue(argument.toScalar().toDouble() * weight);
    }
    if (handling.copy_written) stack[0] = stack[0].toTensor().clone();
    if (handling.reduction_argument >= 0)
      stack[static_cast<std::size_t>(handling.reduction_argument)] = at::Reduction::Sum;
    if (handling.batch_norm >= 0) {
      observe(handling.batch_norm, stack[0].toTensor());
      stack[3] = stack[4] = Tensor();
    }
    node.op.callBoxed(stack);
    for (const auto& slot : node.outputs) {
      const auto& result = stack[static_cast<std::size_t>(slot.position)];
      for (std::size_t k = 0; k < slot.values.size(); ++k) {
        if (!slot.values[k].valid()) continue;
        auto tensor = slot.kind == SlotKind::kTensor ? result.toTensor() : result.toTensorList().get(k);
        if (handling.count >= 0) tensor = tensor / counts_[static_cast<std::size_t>(handling.count)];
        if (handling.scale_output) tensor = tensor * weight;
        values[slot.values[k].index()] = tensor;
      }
    }
  }

  void call(OpId op, Environment& values, std::int64_t n) {
    at::AutoGradMode mode(graph_.op(op).grad_enabled && at::GradMode::is_enabled());
    call(graph_.op(op), plan_.handling(op), values, n);
  }

  void run_prologue(const std::vector<BatchSlice>& ranks) {
    counts_.assign(plan_.counts.size(), Tensor());
    std::vector<Environment> locals;
    at::NoGradGuard no_grad;
    for (const auto& rank : ranks) locals.push_back(leaves(rank));
    for (const auto& level : plan_.prologue) {
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        for (const auto op : level.ops) {
          bool shared = true;
          for_each_output(graph_.op(op),
                          [&](ValueId v) { shared = shared && plan_.type(v).is(BatchKind::kReplicated); });
          bool early = false;
          for (const auto sum : level.sums) early = early || graph_.value(sum).definer == op;
          if (ranks[r].size() > 0 || (shared && !early)) call(op, locals[r], ranks[r].size());
        }
      }
      for (const auto value : level.sums) {
        Tensor total;
        for (std::size_t r = 0; r < ranks.size(); ++r) {
          if (ranks[r].size() == 0) continue;
          const auto& addend = locals[r][value.index()];
          total = total.defined() ? total + addend : addend.clone();
        }
        for (auto& local : locals) local[value.index()] = total.clone();
      }
      for (const auto k : level.counts) {
        const auto& count = plan_.counts[static_cast<std::size_t>(k)];
        double total = 0;
        for (std::size_t r = 0; r < ranks.size(); ++r) {
          if (ranks[r].size() == 0) continue;
          const auto& target = locals[r][count.target.index()];
          const auto counted = target.masked_select(target.ne(count.ignore_index));
          total += count.weight.valid() ? locals[r][count.weight.index()].index({counted}).sum().item<double>()
                                        : static_cast<double>(counted.numel());
        }
        counts_[static_cast<std::size_t>(k)] = torch::tensor(total, torch::kDouble);
      }
    }
    for (const auto value : plan_.prologue_values) early_[value] = locals.front()[value.index()].detach();
  }

  [[nodiscard]] int stage_of(OpId op) const { return stage_of_.empty() ? 0 : stage_of_[op.index()]; }

  Environment run_stage(const BatchSlice& slice) {
    std::vector<Environment> stages;
    for (int stage = 0; stage < stages_; ++stage) {
      auto& values = stages.emplace_back(leaves(slice));
      for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
        const auto op = OpId::of(i);
        if (!plan_.ops[i].in_stage || stage_of(op) != stage) continue;
        for_each_input(graph_.op(op), [&](ValueId value) {
          const auto definer = graph_.value(value).definer;
          if (!definer.valid() || values[value.index()].defined()) return;
          const auto from = stage_of(definer);
          REQUIRE(from < stage);
          values[value.index()] = stages[static_cast<std::size_t>(from)][value.index()].clone();
        });
        call(op, values, slice.size());
      }
    }
    return merge(stages);
  }

  // Of every value the one of the stage that makes it; of a buffer that of the stage that works on it.
  Environment merge(const std::vector<Environment>& stages) {
    auto values = stages.front();
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      if (!plan_.ops[i].in_stage) continue;
      const auto& own = stages[static_cast<std::size_t>(stage_of(OpId::of(i)))];
      for_each_input(graph_.ops[i], [&](ValueId value) {
        if (graph_.value(value).kind == ValueKind::kBuffer) values[value.index()] = own[value.index()];
      });
      for_each_output(graph_.ops[i], [&](ValueId value) { values[value.index()] = own[value.index()]; });
    }
    return values;
  }

  Tensor total(ValueId value, bool weighted, const std::vector<BatchSlice>& slices,
               const std::vector<Environment>& environments) {
    Tensor sum;
    std::size_t k = 0;
    for (const auto& slice : slices) {
      if (slice.size() == 0) continue;
      const double weight = weighted ? static_cast<double>(slice.size()) / static_cast<double>(batch_) : 1;
      auto addend = environments[k++][value.index()];
      if (weighted) addend = addend * weight;
      sum = sum.defined() ? sum + addend : addend;
    }
    return sum;
  }

  void run_epilogue(const std::vector<BatchSlice>& slices, const std::vector<Environment>& environments) {
    late_ = Environment(graph_.values.size());
    for (std::size_t i = 0; i < late_.size(); ++i) {
      if (graph_.values[i].kind == ValueKind::kConstant) late_[i] = graph_.values[i].constant;
      if (graph_.values[i].kind == ValueKind::kBuffer) late_[i] = net_.named_buffers()[graph_.values[i].name].clone();
    }
    for (const auto& [value, tensor] : early_) late_[value.index()] = tensor;
    for (const auto& input : plan_.epilogue_inputs) {
      late_[input.value.index()] = total(input.value, input.weighted, slices, environments).clone();
    }
    for (const auto op : plan_.epilogue) call(op, late_, batch_);
  }

  Tensor result_of(const algebra::OutputPlan& output, const std::vector<BatchSlice>& slices,
                   const std::vector<Environment>& environments) {
    switch (output.kind) {
      case algebra::OutputKind::kInput:
        return inputs_.at(static_cast<std::size_t>(graph_.value(output.value).position));
      case algebra::OutputKind::kPrologue:
        return early_.at(output.value);
      case algebra::OutputKind::kEpilogue:
        return late_[output.value.index()];
      case algebra::OutputKind::kPartialSum:
        return total(output.value, false, slices, environments);
      case algebra::OutputKind::kReplicated:
        if (output.differentiable) return total(output.value, true, slices, environments);
        return environments.front()[output.value.index()];
      case algebra::OutputKind::kBatched:
        break;
    }
    const auto& type = plan_.type(output.value);
    Tensors pieces;
    for (const auto& values : environments) {
      const auto& piece = values[output.value.index()];
      const auto n = piece.size(type.dim) / (type.outer * type.inner);
      pieces.push_back(piece.unflatten(type.dim, {type.outer, n, type.inner}));
    }
    return torch::cat(pieces, type.dim + 1).flatten(type.dim, type.dim + 2);
  }

  void observe(std::int32_t index, const Tensor& input) {
    at::NoGradGuard no_grad;
    const bool by_sample = plan_.batch_norms[static_cast<std::size_t>(index)].by_sample;
    observed_[index].push_back(by_sample ? input.flatten(2) : input.transpose(0, 1).flatten(1));
  }

  void update_buffers(const std::vector<Environment>& environments) {
    at::NoGradGuard no_grad;
    std::vector<std::pair<Tensor, Tensor>> replicated;  // all read what the forward began with
    for (const auto& update : plan_.buffer_updates) {
      if (update.kind != algebra::BufferUpdateKind::kReplicated) continue;
      auto values = leaves({0, batch_});
      for (const auto op : update.ops) call(graph_.op(op), plan_.handling(op), values, batch_);
      replicated.emplace_back(net_.named_buffers()[graph_.value(update.buffer).name], values[update.result.index()]);
    }
    for (auto& [buffer, written] : replicated) buffer.copy_(written);
    for (const auto& update : plan_.buffer_updates) {
      if (update.kind == algebra::BufferUpdateKind::kReplicated) continue;
      auto buffer = net_.named_buffers()[graph_.value(update.buffer).name];
      const auto definer = graph_.value(update.result).definer;  // none if a norm works on the buffer
      if (definer.valid() && plan_.handling(definer).in_epilogue) {
        buffer.copy_(late_[update.result.index()]);
        continue;
      }
      Tensor sum;
      for (const auto& values : environments) {
        const auto& addend = values[update.result.index()];
        sum = sum.defined() ? sum + addend : addend;
      }
      buffer.copy_(update.kind == algebra::BufferUpdateKind::kPartialSum ? sum
                                                                         : environments.front()[update.result.index()]);
    }
    for (std::size_t i = 0; i < plan_.batch_norms.size(); ++i) {
      const auto& norm = plan_.batch_norms[i];
      if (!norm.running_mean.valid() || norm.samples == SizeExpr{}) continue;
      const auto all = torch::cat(observed_[static_cast<std::int32_t>(i)], norm.by_sample ? 0 : 1);
      const auto mean = norm.by_sample ? all.mean(2).mean(0) : all.mean(1);
      const auto variance = norm.by_sample ? all.var(2).mean(0) : all.var(1);
      net_.named_buffers()[graph_.value(norm.running_mean).name].mul_(1 - norm.momentum).add_(mean * norm.momentum);
      net_.named_buffers()[graph_.value(norm.running_var).name].mul_(1 - norm.momentum).add_(variance * norm.momentum);
    }
  }

  const OpGraph& graph_;
  const algebra::BatchSemantics& plan_;
  Net& net_;
  Tensors inputs_;
  std::int64_t batch_;
  std::vector<int> stage_of_;
  int stages_ = 1;
  std::map<ValueId, Tensor> early_;
  Environment late_;
  Tensors counts_;
  std::map<std::int32_t, Tensors> observed_;
};

}  // namespace autopar::test
