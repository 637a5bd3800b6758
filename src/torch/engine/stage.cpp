#include "torch/engine/stage.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "torch/autograd/side_stream.hpp"
#include "torch/device/device_context.hpp"
#include "torch/engine/gate_group.hpp"
#include "torch/interpret/backward_source.hpp"

namespace autopar::engine {

namespace {

/// By ValueId: whether a value stays in the environment across slices: parameters, buffers, constants, casts.
std::vector<bool> resident_values(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                  const std::vector<OpId>& ops) {
  std::vector<bool> resident;
  for (const auto& info : graph.values) {
    resident.push_back(info.kind == ValueKind::kParameter || info.kind == ValueKind::kBuffer ||
                       info.kind == ValueKind::kConstant);
  }
  for (const auto op : ops) {
    if (plan.handling(op).once) resident[graph.output(op).index()] = true;
  }
  return resident;
}

}  // namespace

Stage::Stage(const PartitionedProgram& program, StageId stage, const Leaves& leaves, const std::vector<bool>& reduced,
             std::shared_ptr<autograd::UnwrittenSums> unwritten)
    : program_(program),
      stage_(stage),
      compute_(leaves.compute),
      casts_(*program.graph, *program.plan, program.stage_ops[stage.index()], leaves.copy),
      accumulators_(reduced, program.device, unwritten) {
  find_boundary();
  find_sums();
  resident_ = resident_values(graph(), plan(), ops());
  auto kept = boundary_.outgoing;
  for (const auto& sum : boundary_.sums) kept.push_back(sum.value);
  for (const auto& update : plan().buffer_updates) kept.push_back(update.result);
  const auto parts = interpret::parts_of_stage(graph(), casts_.each_slice(), program_.recomputed);
  casts_.find_readers(parts);
  // Reduced gradients are added to buckets on the caller's stream, so there is no side stream for them.
  const bool any_reduced = std::ranges::any_of(parameters_read(graph(), this->ops()),
                                               [&](ValueId parameter) { return reduced[parameter.index()]; });
  if (device().is_cuda() && !any_reduced) side_ = std::make_shared<autograd::SideStream>(device());
  runner_ = std::make_unique<interpret::SegmentInterpreter>(
      graph(), plan(), parts, kept, device(), program_.splits_backwards,
      interpret::StageServices{hooks(parts), side_, tensor_shards(), leaves.fp8, std::move(unwritten)});
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
      if (casts_.are_read_by(op)) hooks.ops.insert(op);
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
    casts_.make_for(op, environment_, handles_);
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
  boundary_.incoming.assign(in.begin(), in.end());
  boundary_.outgoing.assign(out.begin(), out.end());
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
    if (own) boundary_.sums.push_back(sum);
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
    state_.all.push_back(leaf);
    if (info.kind == ValueKind::kParameter) state_.parameters.push_back(leaf);
  }
  for (const auto& update : plan().buffer_updates) {
    if (read.count(update.buffer)) state_.updated_buffers.push_back(update.buffer);
  }
}

void Stage::refresh_leaves() {
  accumulators_.follow_stream();
  for (const auto value : state_.all) {
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
      accumulators_.drop(value);
    }
    if (leaf.requires_grad()) accumulators_.hold(value, leaf);
  }
}

at::Tensor Stage::compute_memory(ValueId parameter) const {
  auto memory = compute_(parameter);
  return memory.defined() ? memory : handles_[parameter.index()];
}

bool Stage::defers(ValueId parameter) const {
  return std::binary_search(runner_->deferrable().begin(), runner_->deferrable().end(), parameter);
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

}  // namespace autopar::engine
