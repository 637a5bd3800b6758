#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>
#include <torch/optim/optimizer.h>

#include <autopar/core/assert.hpp>
#include <autopar/core/error.hpp>

#include "capture/trace/fake_tensor.hpp"
#include "torch/engine/message.hpp"
#include "torch/engine/stage.hpp"
#include "torch/parameters/compute_copy.hpp"
#include "torch/parameters/optimizer_state.hpp"
#include "torch/session/session_collectives.hpp"
#include "torch/session/session_impl.hpp"
#include "torch/staging/shard_units.hpp"

namespace autopar::session {

namespace {

/// Parameters of a unit, or of several.
struct UnitInMaking {
  std::vector<std::vector<std::string>> names;
  std::vector<gradients::GradientForm> forms;

  void add(const std::vector<std::string>& its_names, const std::vector<std::int64_t>& sizes, c10::ScalarType type) {
    forms.push_back({names.size(), sizes, type});
    names.push_back(its_names);
  }
};

}  // namespace

// ---------------------------------------------------------------- deployment

void Impl::require_optimizers(const Plan& plan) const {
  const auto sliced = std::ranges::find_if(plan.stages, [](const StagePlan& stage) { return stage.mesh.tensor() > 1; });
  if (sliced != plan.stages.end() && !may_slice()) {
    throw InvalidArgument("tensor_parallel = " + std::to_string(sliced->mesh.tensor()) +
                          " needs to know the optimizer, which steps on slices of parameters: call "
                          "model->attach(optimizer) before the first call, or set tensor_parallel = 1, or inference = "
                          "true where nothing is trained");
  }
  const auto has_replicas = [](const StagePlan& stage) { return stage.mesh.replicas() > 1; };
  if (plan.offload != Offload::kNone && optimizers_.empty()) {
    throw InvalidArgument("offload = " + name_of(plan.offload) +
                          " needs to know the optimizer, which then steps on the host: " +
                          "call model->attach(optimizer) before the first call, or set offload = none");
  }
  if (plan.zero == 0 || std::none_of(plan.stages.begin(), plan.stages.end(), has_replicas)) return;
  if (optimizers_.empty()) {
    throw InvalidArgument(
        "ZeRO " + std::to_string(plan.zero) +
        " needs to know the optimizer, which steps on shards: call model->attach(optimizer) before the "
        "first call, or set zero = 0");
  }
  for (const auto* optimizer : optimizers_) static_cast<void>(parameters::descriptor_of(*optimizer));
}

void Impl::plan_shards(const CapturedProgram& program) {
  const auto& plan = deployment_.plan();
  if (plan.zero > 0) {
    const auto tensor_of = [&](ValueId value) -> const parameters::StateTensor& {
      return parameters_.named(program.graph.value(value).name);
    };
    const auto atoms =
        program.tensor_stages.empty() ? planned_atoms_ : cost::with_operators(planned_atoms_, program.sharded.made_for);
    for (auto& unit : staging::shard_units(program.graph, program.plan, program.division, atoms, plan, tensor_of)) {
      const auto gathered = unit.gathered;
      parameters_.add_units({std::move(unit)}, gathered);
    }
  }
  offload_rest(program);
}

// What the first program trains and no one shares, each holder's whole on its host.
void Impl::offload_rest(const CapturedProgram& program) {
  if (deployment_.plan().offload == Offload::kNone) return;
  const auto outside = algebra::read_outside_stages(program.graph, program.plan);
  const auto reads = algebra::parameter_reads(program.graph, program.plan);
  using Kind = std::tuple<int, std::vector<Rank>, c10::ScalarType>;  // tensor shard, holders, what they compute with
  std::map<Kind, UnitInMaking> by_kind;
  std::set<const parameters::StateTensor*> seen;  // what has several names comes once for each
  for (const auto& [name, value] : program.graph.parameters) {
    const auto& tensor = parameters_.named(name);
    if (!seen.insert(&tensor).second) continue;
    if (!program.graph.value(value).requires_grad || outside[value.index()] || !tensor.units.empty()) continue;
    const auto type = tensor.handle.scalar_type();
    const auto gathered = reads[value.index()].smaller_copy(type).value_or(type);
    for (int shard = 0; shard < tensor.shards(); ++shard)
      by_kind[{shard, tensor.holders_of_shard(shard), gathered}].add(tensor.names, tensor.sizes_of_shard(shard), type);
  }
  for (const auto& [kind, parameters] : by_kind) {
    const auto& [shard, holders, gathered] = kind;
    parameters_.add_units(
        parameters::make_units(parameters.names, parameters.forms, holders, 0, deployment_.plan().buckets.size, true),
        gathered);
  }
}

// Modules may outlive their sessions.
Impl::~Impl() {
  for (const auto& tensor : parameters_.tensors()) parameters::ComputeCopy::drop(tensor.handle);
  parameters_.unmark_copies();
}

// Units have copies of their own.
void Impl::keep_copies(const CapturedProgram& program) {
  const auto reads = algebra::parameter_reads(program.graph, program.plan);
  for (const auto& [name, value] : program.graph.parameters) {
    const auto& tensor = parameters_.named(name);
    if (!tensor.units.empty() || !parameters_.holds(tensor)) continue;
    const auto copy = reads[value.index()].smaller_copy(tensor.handle.scalar_type());
    if (copy) parameters::ComputeCopy::keep(tensor.handle, *copy);
  }
}

// Some optimizers make their state when they are made, of whole parameters, also of those of other ranks.
void Impl::fit_optimizer(torch::optim::Optimizer& optimizer) {
  const auto& descriptor = parameters::descriptor_of(optimizer);
  for (const auto& tensor : parameters_.tensors()) {
    if (!tensor.is_parameter || optimizer.state().count(tensor.handle.unsafeGetTensorImpl()) == 0) continue;
    if (!parameters_.holds(tensor)) {
      optimizer.state().erase(tensor.handle.unsafeGetTensorImpl());
      continue;
    }
    auto entries = parameters::state_of(optimizer, tensor.handle);
    if (entries.empty()) continue;
    const auto here = parameters_.elements_here(tensor);
    std::vector<at::Tensor> recorded;
    for (auto& [name, value] : entries) {
      if (!init_ || !trace::is_fake(value)) continue;
      const bool in_slices = tensor.slices && value.sizes() == at::IntArrayRef(tensor.sizes);
      const auto slice = in_slices ? parameters::made_alone(*init_, value, here) : std::nullopt;
      if (!slice) {
        recorded.push_back(value);
        continue;
      }
      const auto own = slice->narrow(0, here.part.begin, here.part.size());
      value = here.is_partial() ? own.clone() : own;
    }
    if (!recorded.empty()) init_->materialise(recorded);
    for (auto& [name, value] : entries) {
      const auto kind = parameters::state_slot(descriptor, name).kind();
      if (kind == parameters::StateKind::kCounter || kind == parameters::StateKind::kScalar) continue;
      if (kind == parameters::StateKind::kWhole) {
        value = value.to(tensor.handle.device());
        continue;
      }
      auto fitted = value.to(tensor.handle.device());
      const bool is_of_whole = value.sizes() == at::IntArrayRef(tensor.sizes) && value.numel() != tensor.handle.numel();
      if (!parameters_.is_whole(tensor) && is_of_whole) fitted = here.of(fitted.contiguous()).clone();
      value = parameters_.is_whole(tensor) ? fitted : fitted.reshape(tensor.handle.sizes());
    }
    parameters::set_state(optimizer, tensor.handle, entries);
  }
  refuse_to_save_parts(optimizer);
}

void Impl::refuse_to_save_parts(torch::optim::Optimizer& optimizer) const {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (!parameters_.has(parameter)) continue;
      const auto& tensor = parameters_.of(parameter);
      if (parameters_.holds(tensor) && parameters_.is_whole(tensor)) continue;
      return parameters::refuse_to_save(optimizer, std::string("torch::save: this rank has ") +
                                                       (parameters_.holds(tensor) ? "a shard" : "nothing") +
                                                       " of the state of '" + tensor.name() +
                                                       "'; use model->save(folder, optimizer), "
                                                       "which all ranks call, or save on rank 0 what "
                                                       "model->gather_optimizer(optimizer) gives");
    }
  }
}

void Impl::attach(torch::optim::Optimizer& optimizer) {
  early_loads_.require_same_groups(optimizer);
  watch_.watch(optimizer);
  unattached_.cover(optimizer);
  optimizers_.push_back(&optimizer);
  if (auto* described = dynamic_cast<DescribedOptimizer*>(&optimizer); described != nullptr) {
    const std::shared_ptr<parameters::ParameterStore> parameters(shared_from_this(), &parameters_);
    described->set_collectives(
        std::make_shared<SessionCollectives>(described->descriptor(), parameters, deployment_, world_));
  }
  if (deployed_) fit_optimizer(optimizer);
}

// ---------------------------------------------------------------- programs

staging::ShardedParameters Impl::sharded_parameters(const CapturedProgram& program) const {
  staging::ShardedParameters sharded{parameters_.units(), std::vector<std::vector<int>>(program.graph.values.size())};
  const auto whole = algebra::read_outside_stages(program.graph, program.plan);
  const auto leaving = algebra::read_after_computes(program.graph, program.plan, program.division.channel_values);
  const auto reads = algebra::parameter_reads(program.graph, program.plan);
  for (const auto& [name, value] : program.graph.parameters) {
    const auto& tensor = parameters_.named(program.graph.value(value).name);
    if (parameters_.is_sharded(tensor)) sharded.units_of[value.index()] = tensor.units;
    const auto* unit = parameters_.unit_of(tensor);
    const bool in_computes = unit != nullptr && unit->zero >= 3;
    if (in_computes && leaving[value.index()] && program.graph.value(value).requires_grad) {
      throw InvalidArgument("parameter '" + name +
                            "' is gathered within compute actions (ZeRO 3), but a later mode or signature of the " +
                            "model reads it elsewhere; call the model in this mode first, or set zero = 2");
    }
    parameters_.require_readable(tensor, reads[value.index()]);
    if (unit == nullptr || !whole[value.index()]) continue;
    if (!parameters_.is_sharded(tensor)) {
      throw InvalidArgument(
          "parameter '" + name + "' is kept in host memory (offload), but a later mode or signature of the " +
          "model needs it outside the pipeline; call the model in this mode first, or set offload = none");
    }
    throw InvalidArgument("parameter '" + name +
                          "' is held in shards (ZeRO), but a later mode or signature of the model " +
                          "needs it whole outside the pipeline; call the model in this mode first, or set zero = 0");
  }
  return sharded;
}

// ---------------------------------------------------------------- what a rank holds

ParameterShard Impl::shard(const at::Tensor& handle) const {
  require_deployed("shard");
  const auto& tensor = parameters_.of(handle);
  const auto here = parameters_.elements_here(tensor);
  const auto begin = here.ranges.empty() ? 0 : here.ranges.front().begin + here.part.begin;
  ParameterShard shard{tensor.sizes, begin, begin + here.size(), parameters_.is_whole(tensor)};
  if (!tensor.slices || here.block_size() == 0) return shard;
  const auto& slices = *tensor.slices;
  shard.dim = slices.dim;
  for (std::int64_t b = 0; b < slices.outer.fixed; ++b) {
    const auto block = b * slices.units * slices.width();
    for (const auto& [first, last] : slices.ranges(tensor.shards(), parameters_.shard_of(tensor)))
      shard.indices.emplace_back(block + first, block + last);
  }
  if (!here.is_one_range()) shard.begin = shard.end = 0;
  if (parameters_.is_sharded(tensor)) shard.of_slice.emplace(here.part.begin, here.part.end);
  return shard;
}

}  // namespace autopar::session
