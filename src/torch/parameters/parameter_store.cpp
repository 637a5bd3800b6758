#include "torch/parameters/parameter_store.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>

#include <autopar/capture/init_record.hpp>
#include <autopar/core/assert.hpp>
#include <autopar/core/error.hpp>

#include "capture/trace/fake_tensor.hpp"
#include "torch/device/host_memory.hpp"
#include "torch/parameters/part_layouts.hpp"
#include "torch/parameters/part_mark.hpp"
#include "torch/parameters/whole_handles.hpp"

namespace autopar::parameters {

namespace {

/// Splits a unit's places into rows of at most `limit` elements, or of one place.
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

}  // namespace

// ---------------------------------------------------------------- who holds what

bool ParameterStore::holds(const ManagedTensor& tensor) const {
  return std::binary_search(tensor.holders.begin(), tensor.holders.end(), self_);
}

bool ParameterStore::is_sharded(const ManagedTensor& tensor) const {
  const auto* unit = unit_of(tensor);
  return unit != nullptr && unit->zero > 0;
}

namespace {

/// The index of the rank's tensor shard; empty if there are none, or the rank holds nothing of the tensor.
std::optional<std::size_t> shard_on(const ManagedTensor& tensor, Rank rank) {
  const auto& shards = tensor.replicas_of_shard;
  const auto found = std::ranges::find_if(
      shards, [rank](const auto& replicas) { return std::binary_search(replicas.begin(), replicas.end(), rank); });
  return found == shards.end() ? std::nullopt : std::optional(static_cast<std::size_t>(found - shards.begin()));
}

ShardSlices slices_on(const ManagedTensor& tensor, Rank rank) {
  const auto shard = shard_on(tensor, rank);
  if (!shard) return {};
  return slices_of_shard(*tensor.slices, tensor.sizes, tensor.shards(), static_cast<int>(*shard));
}

/// @pre the tensor is in a unit
std::size_t unit_number_on(const ManagedTensor& tensor, Rank rank) {
  const auto shard = tensor.units.size() == 1 ? 0 : shard_on(tensor, rank).value_or(0);
  return static_cast<std::size_t>(tensor.units[shard]);
}

}  // namespace

const std::vector<Rank>& ParameterStore::replicas_of(const ManagedTensor& tensor) const {
  const auto shard = shard_on(tensor, self_);
  return shard ? tensor.replicas_of_shard[*shard] : tensor.holders;
}

int ParameterStore::shard_of(const ManagedTensor& tensor) const {
  const auto shard = shard_on(tensor, self_);
  AUTOPAR_ASSERT(shard, "a rank is asked for its tensor shard and is none");
  return static_cast<int>(*shard);
}

ShardSlices ParameterStore::elements_here(const ManagedTensor& tensor) const { return elements_on(tensor, self_); }

ShardSlices ParameterStore::elements_on(const ManagedTensor& tensor, Rank holder) const {
  if (!std::ranges::binary_search(tensor.holders, holder)) return {};
  ShardSlices elements = tensor.slices ? slices_on(tensor, holder) : Interval{0, c10::multiply_integers(tensor.sizes)};
  if (!is_sharded(tensor)) return elements;
  const auto& unit = *unit_on(tensor, holder);
  const auto part = unit.shard_of(*unit.find(tensor.name()), holder);
  if (!tensor.slices) return part;
  elements.part = part;
  return elements;
}

std::vector<ShardSlices> ParameterStore::elements_of_holders(const ManagedTensor& tensor) const {
  std::vector<ShardSlices> shards;
  if (is_whole(tensor)) return shards;
  for (const auto holder : tensor.holders) shards.push_back(elements_on(tensor, holder));
  return shards;
}

bool ParameterStore::counts_on(const ManagedTensor& tensor, Rank rank) const {
  if (!std::ranges::binary_search(tensor.holders, rank)) return false;
  if (is_whole(tensor)) return tensor.holders.front() == rank;
  const auto shard = shard_on(tensor, rank).value_or(0);
  const bool is_of_another_shard = !tensor.slices && tensor.shards() > 1 && shard > 0;
  if (is_of_another_shard) return false;
  return is_sharded(tensor) || tensor.holders_of_shard(static_cast<int>(shard)).front() == rank;
}

// One tensor at a time: a host may have memory for one unsharded tensor only.
void ParameterStore::hold_slices(InitRecord* init, c10::Device device) {
  for (auto& tensor : registry_.tensors()) {
    if (tensor.units.empty()) hold_slice(tensor, init, device);
  }
}

void ParameterStore::hold_slice(const ManagedTensor& tensor, InitRecord* init, c10::Device device) {
  if (!tensor.slices || !holds(tensor)) return;
  const at::NoGradGuard no_grad;
  auto handle = tensor.handle;
  const auto sizes = tensor.sizes_of_shard(shard_of(tensor));
  const auto slices = slices_on(tensor, self_);
  if (init != nullptr && trace::is_fake(handle)) {
    if (const auto alone = made_alone(*init, handle, slices)) {
      give_data(handle, alone->to(device).reshape(sizes));
      return;
    }
    init->materialise({handle});
  }
  const auto own = [&](const at::Tensor& whole) {
    return slices.of(whole.detach().contiguous()).to(device, whole.scalar_type(), false, /*copy=*/true).reshape(sizes);
  };
  const auto gradient = std::exchange(handle.mutable_grad(), at::Tensor());
  give_data(handle, own(handle));
  if (gradient.defined()) handle.mutable_grad() = own(gradient);
  devices::release_freed_memory();
}

// ---------------------------------------------------------------- units

const ShardUnit* ParameterStore::unit_on(const ManagedTensor& tensor, Rank rank) const {
  return tensor.units.empty() ? nullptr : &units_[unit_number_on(tensor, rank)];
}

ShardMemory& ParameterStore::memory_of(const ManagedTensor& tensor) const {
  AUTOPAR_ASSERT(!tensor.units.empty(), "a parameter that is in no unit has no memory there");
  return *memories_[unit_number_on(tensor, self_)];
}

const ShardUnit::Place* ParameterStore::place_of(const ManagedTensor& tensor) const {
  const auto* unit = unit_of(tensor);
  return unit == nullptr ? nullptr : unit->find(tensor.name());
}

void ParameterStore::add_units(std::vector<ShardUnit> units, c10::ScalarType gathered) {
  AUTOPAR_ASSERT(memories_.empty(), "units are added before any is held");
  for (auto& unit : units) {
    unit.gathered = gathered;
    for (const auto& place : unit.places) named(place.names.front()).units.push_back(static_cast<int>(units_.size()));
    units_.push_back(std::move(unit));
  }
}

// A host may have far less memory than the unsharded unit takes. Unsharded tensors are therefore made in groups that
// are no larger than one large tensor.
void ParameterStore::hold_shards(InitRecord* init, c10::Device device) {
  std::int64_t row = 1 << 18;  // elements for which one more pass through the recorded construction pays off
  for (const auto& unit : units_) {
    for (const auto& place : unit.places) row = std::max(row, place.elements());
  }
  // Permanent memory is allocated first, so that temporary memory leaves no gaps.
  for (const auto& unit : units_) {
    const bool is_member = std::binary_search(unit.ranks.begin(), unit.ranks.end(), self_);
    memories_.push_back(is_member ? std::make_shared<ShardMemory>(unit, self_, device) : nullptr);
  }
  for (const auto& memory : memories_) {
    if (memory == nullptr) continue;
    for (const auto places : rows_of(memory->unit(), row)) {
      std::vector<at::Tensor> handles;
      for (const auto& place : places) {
        hold_slice(named(place.names.front()), init, at::kCPU);
        handles.push_back(named(place.names.front()).handle);
      }
      std::vector<at::Tensor> unmade;
      std::ranges::copy_if(handles, std::back_inserter(unmade),
                           [](const auto& handle) { return trace::is_fake(handle); });
      if (init != nullptr && !unmade.empty()) init->materialise(unmade);
      for (std::size_t i = 0; i < places.size(); ++i) move_into(*memory, places[i], handles[i]);
      devices::release_freed_memory();
    }
  }
}

void ParameterStore::move_into(ShardMemory& memory, const ShardUnit::Place& place, const at::Tensor& handle) {
  const at::NoGradGuard no_grad;
  memory.take_over(place, handle);
  const auto gradient = std::exchange(handle.mutable_grad(), at::Tensor());
  const auto own = memory.owner_memory(place);
  give_data(handle, own);
  if (!gradient.defined()) return;
  if (memory.unit().zero == 0) {
    handle.mutable_grad() = gradient.to(handle.device());
    return;
  }
  const auto shard = memory.unit().shard_of(place, self_);
  handle.mutable_grad() = gradient.reshape({-1})
                              .narrow(0, shard.begin, shard.size())
                              .to(handle.device(), gradient.scalar_type(), false, true);
}

// ---------------------------------------------------------------- guard

namespace {

[[noreturn]] void refuse_shared(const ManagedTensor& tensor, const std::string& what) {
  throw InvalidArgument("parameter '" + tensor.name() + "' is another AutoParallel model's as well: " + what +
                        ". Two models cannot share a parameter that one of them divides. Wrap one module that has "
                        "both and run its parts with model->call(&Net::method, arguments...), or set zero = 0, "
                        "tensor_parallel = 1 and stages = 1 for both");
}

}  // namespace

void ParameterStore::require_undivided(bool has_placeholders) const {
  for (const auto& tensor : registry_.tensors()) {
    const auto* layout = layout_of(tensor.handle);
    if (layout != nullptr && layout->is_part())
      refuse_shared(tensor, "there '" + layout->name + "' " + layout->description);
    if (!has_placeholders && trace::is_fake(tensor.handle))
      refuse_shared(tensor, "rank " + std::to_string(self_.value()) + " holds nothing of it there");
  }
}

void ParameterStore::require_unshared() const {
  for (const auto& tensor : registry_.tensors()) {
    const auto* layout = layout_of(tensor.handle);
    if (layout == nullptr || (is_whole(tensor) && holds(tensor))) continue;
    refuse_shared(tensor, "there it " + layout->description + ", and this model would divide it");
  }
}

void ParameterStore::mark_handles() {
  for (const auto& tensor : registry_.tensors()) {
    if (!tensor.is_parameter || !holds(tensor) || tensor.holders.size() < 2) continue;
    set_mark(tensor.handle, c10::make_intrusive<PartMark>(layout_here(tensor)));
    mark_like(tensor.handle.grad(), tensor.handle);
  }
}

ParameterStore::~ParameterStore() {
  for (const auto& tensor : registry_.tensors()) {
    ComputeCopy::drop(tensor.handle);
    const auto* layout = layout_of(tensor.handle);
    if (layout != nullptr && !layout->is_part()) unset_mark(tensor.handle);
  }
}

PartLayout ParameterStore::layout_here(const ManagedTensor& tensor) const {
  PartLayout layout{PartLayout::Kind::kCopy, tensor.name(), tensor.sizes, elements_here(tensor), {}};
  if (is_sharded(tensor)) {
    layout.kind = PartLayout::Kind::kShard;
    layout.description = describe_shard(tensor, layout.elements, unit_of(tensor)->zero, self_);
  } else if (tensor.slices) {
    layout.kind = PartLayout::Kind::kSlice;
    layout.description = describe_slice(tensor, shard_of(tensor), self_);
  } else {
    layout.description = describe_copies(tensor.holders);
  }
  return layout;
}

void ParameterStore::upload() {
  for (const auto& memory : memories_) {
    if (memory == nullptr || !memory->unit().offloaded) continue;
    memory->upload();
    uploaded_.set(memory->whole().device());
  }
}

// ---------------------------------------------------------------- what stages compute with

at::Tensor ParameterStore::compute_memory(const std::string& name) const {
  if (units_.empty()) return {};
  const auto& tensor = named(name);
  const auto* place = place_of(tensor);
  return place == nullptr ? at::Tensor() : memory_of(tensor).compute_memory(*place);
}

at::Tensor ParameterStore::compute_copy(const std::string& name) const {
  if (units_.empty()) return {};
  const auto& tensor = named(name);
  const auto* unit = unit_of(tensor);
  return unit == nullptr || !unit->gathers_copies() ? at::Tensor() : memory_of(tensor).gathered(*place_of(tensor));
}

// Casts of parameters that are gathered within compute actions would outlive them. Copies are gathered in one element
// type.
void ParameterStore::require_readable(const ManagedTensor& tensor, const algebra::ParameterReads& reads) const {
  const auto* unit = unit_of(tensor);
  if (unit == nullptr || reads.none()) return;
  if (unit->gathers_copies() ? reads.only_copy() == unit->gathered : unit->zero < 3 || reads.copies.empty()) return;
  if (unit->zero == 0) {
    throw InvalidArgument(
        "parameter '" + tensor.name() + "' is on the device as " + c10::toString(unit->gathered) +
        " only (offload), but a later mode or signature of the model reads it in another element type; use " +
        "one setting of autocast in all modes, or call the model in this mode first, or set offload = none");
  }
  throw InvalidArgument(
      "parameter '" + tensor.name() + "' is gathered as " + c10::toString(unit->gathered) + " (ZeRO " +
      std::to_string(unit->zero) + "), but a later mode or signature of the model reads it in another " +
      "element type; use one setting of autocast in all modes, or call the model in this mode first, " +
      "with zero = 2 at most");
}

}  // namespace autopar::parameters
