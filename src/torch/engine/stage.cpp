#include "torch/engine/stage.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <autopar/core/assert.hpp>

#include "capture/ir/tensor_form.hpp"
#include "torch/autograd/parameter_cast.hpp"
#include "torch/autograd/side_stream.hpp"
#include "torch/device/device_context.hpp"
#include "torch/engine/gate_group.hpp"
#include "torch/interpret/backward_source.hpp"
#include "torch/parameters/compute_copy.hpp"

namespace autopar::engine {

Stage::Stage(const DividedProgram& program, StageId stage, const Leaves& leaves, const std::vector<bool>& reduced)
    : program_(program),
      stage_(stage),
      reduced_(reduced),
      compute_(leaves.compute),
      copy_(leaves.copy),
      accumulating_stream_(devices::current_stream(program.device)) {
  find_boundary();
  find_sums();
  find_casts();
  auto kept = outgoing_;
  for (const auto& sum : sums_) kept.push_back(sum.value);
  for (const auto& update : plan().buffer_updates) kept.push_back(update.result);
  const auto parts = interpret::parts_of_stage(graph(), each_slice_, program_.recomputed);
  find_readers_of_casts(parts);
  // Reduced gradients are added to buckets on the caller's stream, so there is no side stream for them.
  const bool any_reduced = std::ranges::any_of(parameters_read(graph(), this->ops()),
                                               [&](ValueId parameter) { return reduced[parameter.index()]; });
  if (device().is_cuda() && !any_reduced) side_ = std::make_shared<autograd::SideStream>(device());
  runner_ =
      std::make_unique<interpret::SegmentInterpreter>(graph(), plan(), parts, kept, device(), program_.splits_backwards,
                                                      interpret::StageServices{hooks(parts), side_, tensor_shards()});
  environment_ = runner_->environment();
  handles_.resize(environment_.size());
  find_leaves(leaves.handle);
  refresh_leaves();
}

namespace {

/// Unshards the parameters that an operator read, before its autograd node runs.
class UnshardHook : public torch::autograd::FunctionPreHook {
 public:
  UnshardHook(std::shared_ptr<const StageGate> gate, std::vector<int> groups)
      : gate_(std::move(gate)), groups_(std::move(groups)) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    gate_->unshard(groups_);
    return gradients;
  }

 private:
  std::shared_ptr<const StageGate> gate_;
  std::vector<int> groups_;
};

void unshard_before_backward(const at::Tensor& result, const std::shared_ptr<const StageGate>& gate,
                             const std::vector<int>& groups) {
  if (!result.defined() || !result.requires_grad() || !result.grad_fn()) return;
  result.grad_fn()->add_pre_hook(std::make_unique<UnshardHook>(gate, groups));
}

}  // namespace

interpret::OpHooks Stage::hooks(const std::vector<interpret::StagePart>& parts) {
  interpret::OpHooks hooks;
  std::map<int, OpId> last;  // last reader of each group, in execution order
  for (const auto& part : parts) {
    for (const auto op : part.ops) {
      if (casts_read_by_.contains(op)) hooks.ops.insert(op);
      const auto groups = program_.gathered_by.find(op);
      if (groups == program_.gathered_by.end()) continue;
      hooks.ops.insert(op);
      for (const int group : groups->second) last[group] = op;
    }
  }
  std::map<OpId, std::vector<int>> last_read_by;
  for (const auto& [group, op] : last) last_read_by[op].push_back(group);
  hooks.before = [this](OpId op) {
    const auto groups = program_.gathered_by.find(op);
    if (groups != program_.gathered_by.end()) gate_->unshard(groups->second);
    const auto casts = casts_read_by_.find(op);
    if (casts == casts_read_by_.end()) return;
    for (const auto cast : casts->second) make_cast(cast);
  };
  hooks.after = [this, last_read_by](OpId op, const torch::jit::Stack& results) {
    const auto groups = program_.gathered_by.find(op);
    if (groups == program_.gathered_by.end()) return;
    for (const auto& result : results) {
      if (result.isTensor()) unshard_before_backward(result.toTensor(), gate_, groups->second);
      if (!result.isTensorList()) continue;
      for (const at::Tensor& each : result.toTensorVector()) unshard_before_backward(each, gate_, groups->second);
    }
    const auto& resharded_after = gate_->backward ? program_.resharded_after : last_read_by;
    const auto no_more = resharded_after.find(op);
    if (no_more != resharded_after.end()) gate_->reshard(no_more->second);
  };
  return hooks;
}

std::shared_ptr<const interpret::TensorShards> Stage::tensor_shards() const {
  const auto& mesh = program_.pipeline.stages[stage_.index()];
  if (mesh.tensor() == 1) return nullptr;
  const auto ranks = mesh.tensor_group(*mesh.replica_of(program_.rank));
  auto shards = std::make_shared<interpret::TensorShards>();
  shards->group = Group(
      std::make_shared<GateGroup>(std::vector<Rank>(ranks.begin(), ranks.end()), *mesh.shard_of(program_.rank), gate_));
  for (const auto op : ops()) {
    const auto step = program_.shard_steps.find(op);
    if (step != program_.shard_steps.end()) shards->steps.insert(*step);
  }
  return shards;
}

void Stage::find_boundary() {
  std::set<ValueId> in, out;
  for (std::size_t c = 0; c < program_.pipeline.channels.size(); ++c) {
    const auto& channel = program_.pipeline.channels[c];
    const auto& values = program_.channel_values[c];
    if (channel.to == stage()) in.insert(values.begin(), values.end());
    if (channel.from == stage()) out.insert(values.begin(), values.end());
  }
  incoming_.assign(in.begin(), in.end());
  outgoing_.assign(out.begin(), out.end());
}

// A sum belongs to the stage that computes it. A parameter that is a sum belongs to the first stage that reads it.
void Stage::find_sums() {
  const auto reads = [&](StageId stage, ValueId parameter) {
    const auto read = parameters_read(graph(), program_.stage_ops[stage.index()]);
    return std::binary_search(read.begin(), read.end(), parameter);
  };
  for (const auto& sum : algebra::global_sums(graph(), plan())) {
    const auto& info = graph().value(sum.value);
    bool own = info.definer.valid() && std::binary_search(ops().begin(), ops().end(), info.definer);
    if (info.kind == ValueKind::kParameter) {
      own = reads(stage_, sum.value);
      for (StageId before(0); own && before < stage_; before = StageId(before.value() + 1))
        own = !reads(before, sum.value);
    }
    if (own) sums_.push_back(sum);
  }
}

void Stage::find_leaves(const Lookup& lookup) {
  std::set<ValueId> read;
  for (const auto op : ops()) {
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
  for (const auto& update : plan().buffer_updates) {
    if (read.count(update.buffer)) private_buffers_.push_back(update.buffer);
  }
}

void Stage::refresh_leaves() {
  const auto stream = devices::current_stream(device());
  if (stream != accumulating_stream_) {  // accumulators with hooks are kept, since their hooks would be added again
    std::erase_if(accumulators_, [&](const auto& each) { return !reduced_[each.first.index()]; });
    accumulating_stream_ = stream;
  }
  for (const auto value : state_) {
    const auto& handle = handles_[value.index()];
    auto& leaf = environment_[value.index()];
    if (graph().value(value).kind == ValueKind::kBuffer) {
      leaf = handle;
      continue;
    }
    const auto memory = compute_memory(value);
    const bool same_memory = leaf.defined() && leaf.is_alias_of(memory) && leaf.sizes() == memory.sizes() &&
                             leaf.strides() == memory.strides() && leaf.storage_offset() == memory.storage_offset();
    if (!same_memory || leaf.requires_grad() != handle.requires_grad()) {
      leaf = memory.detach();
      leaf.set_requires_grad(handle.requires_grad());
      accumulators_.erase(value);
    }
    if (leaf.requires_grad() && !accumulators_.contains(value)) hold_accumulator(value);
  }
}

void Stage::add_kept_casts(std::vector<const void*>& memory) const {
  for (const auto& cast : casts_) {
    auto* const kept = kept_copy(cast.parameter, graph().value(cast.result));
    memory.push_back(kept != nullptr ? kept->current(handle(cast.parameter)).const_data_ptr() : nullptr);
  }
}

at::Tensor Stage::compute_memory(ValueId parameter) const {
  auto memory = compute_(parameter);
  return memory.defined() ? memory : handles_[parameter.index()];
}

bool Stage::defers(ValueId parameter) const {
  return std::binary_search(runner_->deferrable().begin(), runner_->deferrable().end(), parameter);
}

void Stage::find_casts() {
  for (const auto& info : graph().values) {
    resident_.push_back(info.kind == ValueKind::kParameter || info.kind == ValueKind::kBuffer ||
                        info.kind == ValueKind::kConstant);
  }
  for (const auto op : ops()) {
    if (!plan().handling(op).once) {
      each_slice_.push_back(op);
      continue;
    }
    casts_.push_back({graph().input(op, 0), graph().output(op)});
    resident_[casts_.back().result.index()] = true;
  }
}

// Segments save their inputs before they run, and an element of a list cannot be missing. Casts for these are made
// first.
void Stage::find_readers_of_casts(const std::vector<interpret::StagePart>& parts) {
  const auto cast_behind = [&](ValueId value) {
    const auto definer = value.valid() ? graph().value(value).definer : OpId::none();
    return definer.valid() && plan().handling(definer).once ? definer : OpId::none();
  };
  const bool has_segments =
      std::any_of(parts.begin(), parts.end(), [](const interpret::StagePart& part) { return part.recomputed; });
  std::set<OpId> first;
  for (const auto op : each_slice_) {
    for (const auto& slot : graph().op(op).inputs) {
      for (const auto value : slot.values) {
        const auto cast = cast_behind(value);
        if (!cast.valid()) continue;
        if (has_segments || slot.kind != SlotKind::kTensor)
          first.insert(cast);
        else
          casts_read_by_[op].push_back(cast);
      }
    }
  }
  made_first_.assign(first.begin(), first.end());
}

at::Tensor Stage::copy_elsewhere(ValueId parameter, const ValueInfo& form) const {
  if (auto copy = copy_(parameter); copy.defined()) {
    AUTOPAR_ASSERT(copy.scalar_type() == form.dtype,
                   "a parameter is gathered in another element type than it is read in");
    return copy;
  }
  auto* const kept = kept_copy(parameter, form);
  return kept != nullptr ? kept->current(handle(parameter)) : at::Tensor();
}

parameters::ComputeCopy* Stage::kept_copy(ValueId parameter, const ValueInfo& form) const {
  auto* const kept = parameters::ComputeCopy::of(handle(parameter));
  if (kept == nullptr || kept->type() != form.dtype) return nullptr;
  const bool has_layout =
      !ir::is_channels_last(form) || handle(parameter).is_contiguous(at::MemoryFormat::ChannelsLast);
  return has_layout ? kept : nullptr;
}

at::Tensor Stage::cast(ValueId parameter, const ValueInfo& form) const {
  const auto& leaf = environment_[parameter.index()];
  const auto copy = copy_elsewhere(parameter, form);
  return autograd::with_history_of(leaf, copy.defined() ? copy : autograd::cast_of(leaf, form));
}

void Stage::start_casts(bool differentiate) {
  differentiates_ = differentiate;
  for (const auto op : made_first_) make_cast(op);
}

// A parameter with several readers is cast once.
void Stage::make_cast(OpId op) {
  auto& copy = environment_[graph().output(op).index()];
  if (copy.defined()) return;
  const bool with_history = differentiates_ && graph().op(op).grad_enabled;
  const at::AutoGradMode mode(with_history);
  const auto parameter = graph().input(op, 0);
  const auto& form = graph().value(graph().output(op));
  auto& known = made_casts_[{parameter, form.dtype, with_history}];
  if (!known.defined()) known = cast(parameter, form);
  copy = known;
}

void Stage::drop_casts() {
  for (const auto& cast : casts_) environment_[cast.result.index()].reset();
  made_casts_.clear();
}

bool Stage::is_resident(ValueId value) const { return resident_[value.index()]; }

void Stage::backward(std::vector<at::Tensor> roots, std::vector<at::Tensor> gradients) {
  torch::autograd::edge_list results;
  for (const auto& root : roots) results.push_back(torch::autograd::impl::gradient_edge(root));
  roots.clear();
  try {
    interpret::BackwardSource::run(std::move(results), std::move(gradients));
  } catch (...) {
    if (side_) side_->drop();
    throw;
  }
  if (side_) side_->join();
}

void Stage::clear_environment() {
  for (std::size_t i = 0; i < environment_.size(); ++i) {
    if (!is_resident(ValueId::of(i))) environment_[i].reset();
  }
}

void Stage::hold_accumulator(ValueId parameter) {
  auto& accumulator = accumulators_[parameter];
  accumulator = torch::autograd::impl::grad_accumulator(environment_[parameter.index()]);
  if (!reduced_[parameter.index()]) return;
  const auto tell = [added = gradient_added_, parameter](const torch::autograd::variable_list& outputs,
                                                         const torch::autograd::variable_list&) {
    if (*added) (*added)(parameter);
    return outputs;
  };
  accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(tell));
}

}  // namespace autopar::engine
