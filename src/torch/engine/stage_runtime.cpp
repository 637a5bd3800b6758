#include <autopar/torch/engine/stage_runtime.hpp>

#include <map>
#include <set>
#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <autopar/core/assert.hpp>

namespace autopar {

namespace {

}  // namespace

std::vector<GlobalSum> global_sums(const OpGraph& graph, const BatchPlan& plan) {
  std::map<ValueId, GlobalSum::Share> sums;
  for (const auto& output : plan.outputs) {
    if (output.kind == OutputKind::kPartialSum) sums[output.value] = GlobalSum::Share::kAddend;
    if (output.kind == OutputKind::kReplicated) {
      sums[output.value] = output.differentiable ? GlobalSum::Share::kWeighted : GlobalSum::Share::kFirst;
    }
  }
  for (const auto& input : plan.epilogue_inputs) {
    const bool exact = !c10::isFloatingType(graph.value(input.value).dtype);
    sums[input.value] = !input.weighted ? GlobalSum::Share::kAddend
                        : exact         ? GlobalSum::Share::kFirst
                                        : GlobalSum::Share::kWeighted;
  }
  std::vector<GlobalSum> out;
  for (const auto& [value, share] : sums) out.push_back({value, share});
  return out;
}

std::vector<bool> reached_parameters(const OpGraph& graph, const std::vector<ValueId>& roots) {
  std::vector<bool> reached(graph.values.size(), false);
  std::vector<bool> read(static_cast<std::size_t>(graph.storage_count), false);  // by what comes later
  const auto visit = [&](ValueId value) {
    const auto& info = graph.value(value);
    if (!info.has_gradient()) return;
    reached[value.index()] = true;
    if (info.storage.valid()) read[info.storage.index()] = true;
  };
  for (const auto root : roots) visit(root);
  for (std::size_t i = graph.ops.size(); i-- > 0;) {
    bool leads_on = false;
    for_each_output(graph.ops[i], [&](ValueId value) {
      const auto& info = graph.value(value);
      // What is written through one view is read through all.
      const bool written = info.previous.valid() && info.storage.valid() && read[info.storage.index()];
      leads_on = leads_on || reached[value.index()] || (written && info.has_gradient());
    });
    if (leads_on) for_each_input(graph.ops[i], visit);
  }
  for (std::size_t i = 0; i < reached.size(); ++i) {
    reached[i] = reached[i] && graph.values[i].kind == ValueKind::kParameter;
  }
  return reached;
}

StageRuntime::StageRuntime(StageSpec spec, const Lookup& lookup) : spec_(std::move(spec)) {
  for (const auto& values : spec_.channel_values) {
    auto& gradients = channel_gradients_.emplace_back();
    for (const auto value : values) {
      if (graph().value(value).has_gradient()) gradients.push_back(value);
    }
  }
  find_boundary();
  auto kept = outgoing_;
  for (const auto& sum : sums_) kept.push_back(sum.value);
  for (const auto& update : plan().buffer_updates) kept.push_back(update.result);
  runner_ = std::make_unique<OpRunner>(graph(), plan(), spec_.ops, kept, spec_.device);
  environment_ = runner_->environment();
  handles_.resize(environment_.size());
  find_leaves(lookup);
  lay_out_buckets();
  refresh_leaves();
}

void StageRuntime::find_boundary() {
  if (!stage().valid()) return;
  std::set<ValueId> in, out;
  for (std::size_t c = 0; c < pipeline().channels.size(); ++c) {
    const auto& channel = pipeline().channels[c];
    const auto& values = spec_.channel_values[c];
    if (channel.to == stage()) in.insert(values.begin(), values.end());
    if (channel.from == stage()) out.insert(values.begin(), values.end());
  }
  incoming_.assign(in.begin(), in.end());
  outgoing_.assign(out.begin(), out.end());

  std::set<ValueId> made;
  for (const auto op : spec_.ops) {
    const auto note = [&](ValueId value) { made.insert(value); };
    for_each_output(graph().op(op), note);
    if (graph().op(op).inputs.empty()) continue;
    for_each_input(graph().op(op), [&](ValueId value) {
      if (graph().value(value).kind == ValueKind::kParameter) made.insert(value);
    });
  }
  for (const auto& sum : global_sums(graph(), plan())) {
    if (made.count(sum.value)) sums_.push_back(sum);
  }
}

void StageRuntime::find_leaves(const Lookup& lookup) {
  std::set<ValueId> read;
  for (const auto op : spec_.ops) {
    for_each_input(graph().op(op), [&](ValueId value) {
      if (graph().value(value).is_leaf()) read.insert(value);
    });
  }
  for (const auto leaf : read) {
    const auto& info = graph().value(leaf);
    if (info.kind != ValueKind::kParameter && info.kind != ValueKind::kBuffer) continue;
    handles_[leaf.index()] = lookup(leaf);
    state_.push_back(leaf);
    if (info.kind == ValueKind::kParameter) parameters_.push_back(leaf);
  }
  position_.resize(graph().values.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) position_[parameters_[i].index()] = i;
  for (const auto& update : plan().buffer_updates) {
    if (read.count(update.buffer)) private_buffers_.push_back(update.buffer);
  }
}

void StageRuntime::refresh_leaves() {
  for (const auto value : state_) {
    const auto& handle = handles_[value.index()];
    auto& leaf = environment_[value.index()];
    if (graph().value(value).kind == ValueKind::kBuffer) {
      leaf = handle;
      continue;
    }
    const bool same_memory = leaf.defined() && leaf.is_alias_of(handle) && leaf.sizes() == handle.sizes();
    if (same_memory && leaf.requires_grad() == handle.requires_grad()) continue;
    leaf = handle.detach();
    leaf.set_requires_grad(handle.requires_grad());
    accumulators_.erase(value);
    if (leaf.requires_grad()) hold_accumulator(value);
  }
}

bool StageRuntime::is_resident(ValueId value) const {
  const auto kind = graph().value(value).kind;
  return kind == ValueKind::kParameter || kind == ValueKind::kBuffer || kind == ValueKind::kConstant;
}

void StageRuntime::clear_environment() {
  for (std::size_t i = 0; i < environment_.size(); ++i) {
    if (!is_resident(ValueId::of(i))) environment_[i].reset();
  }
}

void StageRuntime::hold_accumulator(ValueId parameter) {
  auto& accumulator = accumulators_[parameter];
  accumulator = torch::autograd::impl::grad_accumulator(environment_[parameter.index()]);
  if (!grouped_[parameter.index()]) return;
  const auto tell = [added = gradient_added_, parameter](const torch::autograd::variable_list& outputs,
                                                         const torch::autograd::variable_list&) {
    if (*added) (*added)(parameter);
    return outputs;
  };
  accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(tell));
}

void StageRuntime::lay_out_buckets() {
  const std::set<ValueId> own(parameters_.begin(), parameters_.end());
  grouped_.resize(graph().values.size(), false);
  for (const auto& group : spec_.group_parameters) {
    std::vector<GradientForm> forms;
    bool member = true;
    for (const auto parameter : group) {
      const auto& info = graph().value(parameter);
      forms.push_back({parameter.index(), sizes_at(info, 0), info.dtype});
      member = member && own.count(parameter) > 0;
    }
    bucket_layouts_.emplace_back(forms);
    member_.push_back(member && !forms.empty());
    for (const auto& form : forms) grouped_[form.key] = grouped_[form.key] || member_.back();
  }
  for (std::size_t g = 0; g < bucket_layouts_.size(); ++g) {
    spec_.pipeline.groups[g].buckets = static_cast<int>(bucket_layouts_[g].buckets().size());
  }
}

}  // namespace autopar
