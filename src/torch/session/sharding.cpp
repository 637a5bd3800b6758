#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <torch/optim/optimizer.h>

#include <autopar/core/assert.hpp>
#include <autopar/core/error.hpp>
#include <autopar/torch/shard_sums.hpp>

#include "torch/capture/phantom.hpp"
#include "torch/device/host_memory.hpp"
#include "torch/engine/message.hpp"
#include "torch/engine/stage.hpp"
#include "torch/parameters/optimizer_state.hpp"
#include "torch/parameters/whole_handles.hpp"
#include "torch/session/session_impl.hpp"
#include "torch/session/share_guard.hpp"

namespace autopar {

namespace {

/// `set_data`, which keeps what autograd knows of the handle.
void give_data(const at::Tensor& handle, const at::Tensor& data) {
  const bool requires_grad = handle.requires_grad();
  auto same = handle;
  same.set_data(data);
  same.set_requires_grad(requires_grad);
}

/// A unit's places in rows that are no larger than so many elements, or of one place.
std::vector<std::span<const ShardUnit::Place>> rows_of(const ShardUnit& unit, std::int64_t limit) {
  std::vector<std::span<const ShardUnit::Place>> rows;
  const std::span all(unit.places);
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    elements += all[i].elements();
    if (rows.empty() || elements > limit) {
      rows.push_back(all.subspan(i, 1));
      elements = all[i].elements();
    } else {
      rows.back() = std::span(rows.back().data(), rows.back().size() + 1);
    }
  }
  return rows;
}

/// Parameters of a unit, or of several.
struct UnitInMaking {
  std::vector<std::vector<std::string>> names;
  std::vector<GradientForm> forms;
  std::int64_t bytes = 0;

  /// Whether one more stays within the limit.
  [[nodiscard]] bool has_room(const std::vector<std::int64_t>& sizes, c10::ScalarType type, Bytes limit) const {
    return forms.empty() || bytes + bytes_of(sizes, type) <= limit.value();
  }
  void add(const std::vector<std::string>& its_names, const std::vector<std::int64_t>& sizes, c10::ScalarType type) {
    forms.push_back({names.size(), sizes, type});
    names.push_back(its_names);
    bytes += bytes_of(sizes, type);
  }

 private:
  [[nodiscard]] static std::int64_t bytes_of(const std::vector<std::int64_t>& sizes, c10::ScalarType type) {
    return BucketLayout::aligned(c10::multiply_integers(sizes)) * static_cast<std::int64_t>(c10::elementSize(type));
  }
};

/// What operators read last comes first. @param last  see `last_reads`
std::vector<ValueId> in_order_of_gradients(std::vector<ValueId> parameters, const std::map<ValueId, OpId>& last) {
  const auto when = [&](ValueId parameter) {
    const auto found = last.find(parameter);
    return found == last.end() ? OpId::none() : found->second;
  };
  std::stable_sort(parameters.begin(), parameters.end(), [&](ValueId a, ValueId b) { return when(a) > when(b); });
  return parameters;
}

/// Bytes of the parameters that one operator reads, of the one that reads most.
Bytes largest_read(const OpGraph& graph) {
  std::int64_t largest = 1;
  for (const auto& op : graph.ops) {
    std::int64_t bytes = 0;
    for_each_input(op, [&](ValueId value) {
      const auto& info = graph.value(value);
      if (info.kind != ValueKind::kParameter) return;
      bytes += c10::multiply_integers(sizes_at(info, 0)) * static_cast<std::int64_t>(c10::elementSize(info.dtype));
    });
    largest = std::max(largest, bytes);
  }
  return Bytes(largest);
}

}  // namespace

// ---------------------------------------------------------------- handles while a model is captured

WholeHandles::WholeHandles(const StateRegistry& registry) {
  for (const auto& tensor : registry.tensors()) {
    if (tensor.unit < 0 || is_phantom(tensor.handle)) continue;
    kept_.push_back(
        {tensor.handle, tensor.handle.variable_data(), std::exchange(tensor.handle.mutable_grad(), at::Tensor())});
    const auto phantom = make_phantom(tensor.sizes, tensor.handle.scalar_type(), false,
                                      "parameter '" + tensor.name() + "' is held in shares; use model->gather(p)");
    give_data(tensor.handle, phantom);
  }
}

WholeHandles::~WholeHandles() {
  for (const auto& [handle, data, gradient] : kept_) {
    give_data(handle, data);
    handle.mutable_grad() = gradient;
  }
}

// ---------------------------------------------------------------- deployment

void Session::Impl::require_optimizers(const Plan& plan) const {
  const auto has_replicas = [](const StagePlan& stage) { return stage.ranks.size() > 1; };
  if (plan.offload != Offload::kNone && optimizers_.empty()) {
    throw InvalidArgument("offload = " + name_of(plan.offload) +
                          " needs to know the optimizer, which then steps on the host: " +
                          "call model->attach(optimizer) before the first call, or set offload = none");
  }
  if (plan.zero == 0 || std::none_of(plan.stages.begin(), plan.stages.end(), has_replicas)) return;
  if (optimizers_.empty()) {
    throw InvalidArgument(
        "ZeRO " + std::to_string(plan.zero) +
        " needs to know the optimizer, which steps on shares: call model->attach(optimizer) before the "
        "first call, or set zero = 0");
  }
  for (const auto* optimizer : optimizers_) static_cast<void>(optimizer_kind(*optimizer));
}

// Groups of the first program: what they train and no one needs whole outside the pipeline is held in shares. Units are
// filled as backwards make gradients. One of a kind ends where one of another does: if it went on, its sum and those
// behind it would wait for gradients that come much later, and all that come meanwhile would stay whole.
void Session::Impl::plan_shards(const CapturedProgram& program) {
  const bool offloads = plan_->offload == Offload::kOptimizer;
  if (plan_->zero == 0) return offload_rest(program);
  const auto& division = program.division;
  const auto levels = highest_zero_levels(program.graph, program.plan, division.channel_values);
  const auto reads = parameter_reads(program.graph, program.plan);
  const auto last = last_reads(program.graph, program.plan);
  const Bytes limit = plan_->zero < 2 ? kGradientBucket : std::min(kGradientBucket, largest_read(program.graph));
  for (std::size_t g = 0; g < division.pipeline.groups.size(); ++g) {
    const auto& group = division.pipeline.groups[g];
    const auto tensor_of = [&](ValueId value) -> const StateTensor& {
      return registry_.named(program.graph.value(value).name);
    };
    std::size_t replicas = 0;  // of the stage that has most
    for (const auto parameter : division.group_parameters[g]) {
      for (const auto stage : tensor_of(parameter).stages)
        replicas = std::max(replicas, plan_->stages[stage.index()].ranks.size());
    }
    if (replicas < 2) continue;
    using Kind = std::pair<int, c10::ScalarType>;  // level, what is gathered
    std::map<Kind, UnitInMaking> open;
    const auto close = [&] {
      for (const auto& [kind, parameters] : std::exchange(open, {}))
        add_units(make_units(parameters.names, parameters.forms, group.ranks, kind.first, limit, offloads),
                  kind.second);
    };
    for (const auto parameter : in_order_of_gradients(division.group_parameters[g], last)) {
      const auto& tensor = tensor_of(parameter);
      const int highest = group.stage.valid() ? levels[parameter.index()] : std::min(levels[parameter.index()], 1);
      if (highest == 0) continue;
      const auto type = tensor.handle.scalar_type();
      const Kind kind{std::min(plan_->zero, highest), reads[parameter.index()].smaller_copy(type).value_or(type)};
      if (!open[kind].has_room(tensor.sizes, type, limit)) close();
      open[kind].add(tensor.names, tensor.sizes, type);
    }
    close();
  }
  offload_rest(program);
}

/// @param gathered  what stages compute with
void Session::Impl::add_units(std::vector<ShardUnit> units, c10::ScalarType gathered) {
  for (auto& unit : units) {
    unit.gathered = gathered;
    for (const auto& place : unit.places) registry_.named(place.names.front()).unit = static_cast<int>(units_.size());
    units_.push_back(std::move(unit));
  }
}

// What the first program trains and no one shares, each holder's whole on its host.
void Session::Impl::offload_rest(const CapturedProgram& program) {
  if (plan_->offload == Offload::kNone) return;
  const auto outside = read_outside_stages(program.graph, program.plan);
  const auto reads = parameter_reads(program.graph, program.plan);
  using Kind = std::pair<std::vector<Rank>, c10::ScalarType>;  // holders, what they compute with
  std::map<Kind, UnitInMaking> by_kind;
  for (const auto& [name, value] : program.graph.parameters) {
    const auto& tensor = registry_.named(name);
    if (!program.graph.value(value).requires_grad || outside[value.index()] || tensor.unit >= 0) continue;
    const auto type = tensor.handle.scalar_type();
    by_kind[{tensor.holders, reads[value.index()].smaller_copy(type).value_or(type)}].add(tensor.names, tensor.sizes,
                                                                                          type);
  }
  for (const auto& [kind, parameters] : by_kind)
    add_units(make_units(parameters.names, parameters.forms, kind.first, 0, kGradientBucket, true), kind.second);
}

/// Whether holders have shares of it, and not all of it.
bool Session::Impl::in_shares(const StateTensor& tensor) const { return autopar::in_shares(tensor, units_); }

// A host may hold far less than what the ranks of a unit have together: whole tensors are made as few at a time as one
// large one takes.
void Session::Impl::hold_shards() {
  std::int64_t row = 1 << 18;  // elements, for which it pays to go through the construction once more
  for (const auto& unit : units_) {
    for (const auto& place : unit.places) row = std::max(row, place.elements());
  }
  // First what stays, so that what does not leaves no gaps behind.
  for (const auto& unit : units_) {
    const bool is_member = std::binary_search(unit.ranks.begin(), unit.ranks.end(), world_.rank_id());
    shards_.push_back(is_member ? std::make_shared<ShardMemory>(unit, world_.rank_id(), device_) : nullptr);
  }
  for (const auto& memory : shards_) {
    if (memory == nullptr) continue;
    for (const auto places : rows_of(memory->unit(), row)) {
      std::vector<at::Tensor> handles;
      for (const auto& place : places) handles.push_back(registry_.named(place.names.front()).handle);
      if (init_) init_->materialise(handles);
      for (std::size_t i = 0; i < places.size(); ++i) move_into(*memory, places[i], handles[i]);
      release_freed_memory();
    }
  }
}

std::string Session::Impl::description_of_share(const ShardUnit& unit, const ShardUnit::Place& place) const {
  return "'" + place.names.front() + "' is held in shares (ZeRO " + std::to_string(unit.zero) + "), of which rank " +
         std::to_string(world_.rank()) + " has " + std::to_string(unit.shard_of(place, world_.rank_id()).size()) +
         " of " + std::to_string(place.elements()) + " elements";
}

/// What a handle refers to, and its gradient, go into a unit, and the handle refers to what this rank owns there.
void Session::Impl::move_into(ShardMemory& memory, const ShardUnit::Place& place, const at::Tensor& handle) {
  const at::NoGradGuard no_grad;
  memory.take_over(place, handle);
  const auto gradient = std::exchange(handle.mutable_grad(), at::Tensor());
  const auto own = memory.owner_memory(place);
  give_data(handle, memory.unit().zero == 0 ? own : guarded_share(own, description_of_share(memory.unit(), place)));
  if (!gradient.defined()) return;
  if (memory.unit().zero == 0) {
    handle.mutable_grad() = gradient.to(handle.device());
    return;
  }
  const auto shard = memory.unit().shard_of(place, world_.rank_id());
  handle.mutable_grad() = gradient.reshape({-1})
                              .narrow(0, shard.begin, shard.size())
                              .to(handle.device(), gradient.scalar_type(), false, true);
}

// Optimizers may have stepped since the last call.
void Session::Impl::upload_owners() {
  bool any = false;
  for (const auto& memory : shards_) {
    if (memory == nullptr || !memory->unit().offloaded) continue;
    memory->upload();
    any = true;
  }
  if (any) uploaded_.set(device_);
}

// Some optimizers make their state when they are made, of whole parameters, also of those of other ranks.
void Session::Impl::fit_optimizer(torch::optim::Optimizer& optimizer) {
  for (const auto& tensor : registry_.tensors()) {
    if (!tensor.is_parameter || optimizer.state().count(tensor.handle.unsafeGetTensorImpl()) == 0) continue;
    if (!holds(tensor)) {
      optimizer.state().erase(tensor.handle.unsafeGetTensorImpl());
      continue;
    }
    auto entries = state_of(optimizer, tensor.handle);
    if (entries.empty()) continue;
    std::vector<at::Tensor> recorded;
    for (const auto& [name, value] : entries) {
      if (is_phantom(value)) recorded.push_back(value);
    }
    if (init_ && !recorded.empty()) init_->materialise(recorded);
    const auto elements = shard(tensor.handle);
    for (auto& [name, value] : entries) {
      if (value.dim() == 0 && name == "step") continue;
      auto fitted = value.to(tensor.handle.device());
      if (!elements.whole && value.sizes() == at::IntArrayRef(elements.sizes) &&
          value.numel() != tensor.handle.numel()) {
        fitted = fitted.reshape({-1}).narrow(0, elements.begin, elements.end - elements.begin).clone();
      } else if (!elements.whole) {
        fitted = fitted.reshape({-1});
      }
      value = fitted;
    }
    set_state(optimizer, tensor.handle, entries);
  }
  refuse_to_save_parts(optimizer);
}

void Session::Impl::refuse_to_save_parts(torch::optim::Optimizer& optimizer) const {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (!registry_.has(parameter)) continue;
      const auto& tensor = registry_.of(parameter);
      if (holds(tensor) && !in_shares(tensor)) continue;
      return refuse_to_save(optimizer, std::string("torch::save: this rank has ") +
                                           (holds(tensor) ? "a share" : "nothing") + " of the state of '" +
                                           tensor.name() +
                                           "'; use model->save(folder, optimizer), "
                                           "which all ranks call, or save on rank 0 what "
                                           "model->gather_optimizer(optimizer) gives");
    }
  }
}

void Session::Impl::attach(torch::optim::Optimizer& optimizer) {
  watch_.watch(optimizer);
  optimizers_.push_back(&optimizer);
  if (auto* needs = dynamic_cast<NeedsShardSums*>(&optimizer); needs != nullptr) {
    needs->set_sum_over_shards(
        [self = weak_from_this()](const std::vector<at::Tensor>& parameters, const at::Tensor& partial) {
          const auto session = self.lock();
          return session ? session->sum_over_shards(parameters, partial) : partial;
        });
  }
  if (deployed_) fit_optimizer(optimizer);
}

// ---------------------------------------------------------------- programs

SharedParameters Session::Impl::shared_parameters(const CapturedProgram& program) const {
  SharedParameters shared{units_, std::vector<int>(program.graph.values.size(), -1)};
  const auto whole = read_outside_stages(program.graph, program.plan);
  const auto leaving = read_after_computes(program.graph, program.plan, program.division.channel_values);
  const auto reads = parameter_reads(program.graph, program.plan);
  for (const auto& [name, value] : program.graph.parameters) {
    const auto& tensor = registry_.named(program.graph.value(value).name);
    if (in_shares(tensor)) shared.unit_of[value.index()] = tensor.unit;
    const bool in_computes = tensor.unit >= 0 && units_[static_cast<std::size_t>(tensor.unit)].zero >= 3;
    if (in_computes && leaving[value.index()] && program.graph.value(value).requires_grad) {
      throw InvalidArgument("parameter '" + name +
                            "' is gathered within compute actions (ZeRO 3), but a later mode or signature of the " +
                            "model reads it elsewhere; call the model in this mode first, or set zero = 2");
    }
    require_readable(tensor, reads[value.index()]);
    if (tensor.unit < 0 || !whole[value.index()]) continue;
    if (!in_shares(tensor)) {
      throw InvalidArgument(
          "parameter '" + name + "' is kept in host memory (offload), but a later mode or signature of the " +
          "model needs it outside the pipeline; call the model in this mode first, or set offload = none");
    }
    throw InvalidArgument("parameter '" + name +
                          "' is held in shares (ZeRO), but a later mode or signature of the model " +
                          "needs it whole outside the pipeline; call the model in this mode first, or set zero = 0");
  }
  return shared;
}

/// Casts of what is gathered within compute actions would outlive it, and copies are gathered in one element type.
void Session::Impl::require_readable(const StateTensor& tensor, const ParameterReads& reads) const {
  if (tensor.unit < 0 || reads.none()) return;
  const auto& unit = units_[static_cast<std::size_t>(tensor.unit)];
  if (unit.gathers_copies() ? reads.only_copy() == unit.gathered : unit.zero < 3 || reads.copies.empty()) return;
  if (unit.zero == 0) {
    throw InvalidArgument(
        "parameter '" + tensor.name() + "' is on the device as " + c10::toString(unit.gathered) +
        " only (offload), but a later mode or signature of the model reads it in another element type; use " +
        "one setting of autocast in all modes, or call the model in this mode first, or set offload = none");
  }
  throw InvalidArgument(
      "parameter '" + tensor.name() + "' is gathered as " + c10::toString(unit.gathered) + " (ZeRO " +
      std::to_string(unit.zero) + "), but a later mode or signature of the model reads it in another " +
      "element type; use one setting of autocast in all modes, or call the model in this mode first, " +
      "with zero = 2 at most");
}

std::vector<ShardedGroup> Session::Impl::sharded_groups(const StagedGraph& division) const {
  std::vector<ShardedGroup> groups;
  for (const int unit : division.group_units) {
    auto& group = groups.emplace_back();
    if (unit < 0) continue;
    group.memory = shards_[static_cast<std::size_t>(unit)];
    group.unit = &units_[static_cast<std::size_t>(unit)];
  }
  return groups;
}

const ShardUnit::Place* Session::Impl::place_of(const StateTensor& tensor) const {
  return tensor.unit < 0 ? nullptr : units_[static_cast<std::size_t>(tensor.unit)].find(tensor.name());
}

at::Tensor Session::Impl::compute_memory_of(const OpGraph& graph, ValueId leaf) const {
  if (units_.empty()) return {};
  const auto& tensor = registry_.named(graph.value(leaf).name);
  const auto* place = place_of(tensor);
  if (place == nullptr) return {};
  return shards_[static_cast<std::size_t>(tensor.unit)]->compute_memory(*place);
}

at::Tensor Session::Impl::copy_of(const OpGraph& graph, ValueId leaf) const {
  const auto& tensor = registry_.named(graph.value(leaf).name);
  const auto* place = place_of(tensor);
  if (place == nullptr || !units_[static_cast<std::size_t>(tensor.unit)].gathers_copies()) return {};
  return shards_[static_cast<std::size_t>(tensor.unit)]->gathered(*place);
}

// ---------------------------------------------------------------- what a rank holds

ParameterShard Session::Impl::shard(const at::Tensor& handle) const {
  require_deployed("shard");
  const auto& tensor = registry_.of(handle);
  ParameterShard out{tensor.sizes, 0, 0, !in_shares(tensor)};
  if (!holds(tensor)) return out;
  if (const auto* place = place_of(tensor); place != nullptr && in_shares(tensor)) {
    const auto own = units_[static_cast<std::size_t>(tensor.unit)].shard_of(*place, world_.rank_id());
    out.begin = own.begin;
    out.end = own.end;
  } else {
    out.end = c10::multiply_integers(tensor.sizes);
  }
  return out;
}

at::Tensor Session::Impl::sum_over_shards(const std::vector<at::Tensor>& handles, const at::Tensor& partial) {
  require_deployed("sum_over_shards");
  const at::NoGradGuard no_grad;
  expect(partial.dim() == 1 && partial.size(0) == static_cast<std::int64_t>(handles.size()),
         "sum_over_shards: `partial` needs one element a parameter");
  auto counted = at::zeros({partial.size(0)}, at::TensorOptions().dtype(at::kDouble).device(device_));
  std::vector<std::int64_t> here;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const auto& tensor = registry_.of(handles[i]);
    const bool counts = in_shares(tensor) ? holds(tensor) : tensor.holders.front() == world_.rank_id();
    if (counts) here.push_back(static_cast<std::int64_t>(i));
  }
  for (const auto i : here) counted.select(0, i).copy_(partial.select(0, i));
  return world_sums_.sum({counted})[0].to(partial.device());
}

}  // namespace autopar
