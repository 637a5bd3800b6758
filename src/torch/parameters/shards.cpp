#include "torch/parameters/shards.hpp"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <autopar/core/assert.hpp>
#include <autopar/plan/memory/optimizations.hpp>

#include "torch/device/host_copies.hpp"
#include "torch/parameters/flat_memory.hpp"

namespace autopar::parameters {

std::int64_t ShardUnit::Place::elements() const {
  std::int64_t elements = 1;
  for (const auto size : sizes) elements *= size;
  return elements;
}

Interval ShardUnit::part_of(Rank rank) const {
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), rank);
  AUTOPAR_ASSERT(found != ranks.end() && *found == rank, "a rank owns nothing of this unit");
  const auto begin = zero == 0 ? 0 : part() * (found - ranks.begin());
  return {begin, begin + part()};
}

Interval ShardUnit::shard_of(const Place& place, Rank rank) const {
  const auto own = intersect(part_of(rank), {place.offset, place.offset + place.elements()});
  return own.empty() ? Interval{} : Interval{own.begin - place.offset, own.end - place.offset};
}

const ShardUnit::Place* ShardUnit::find(const std::string& name) const {
  for (const auto& place : places) {
    if (std::find(place.names.begin(), place.names.end(), name) != place.names.end()) return &place;
  }
  return nullptr;
}

std::vector<ShardUnit> make_units(const std::vector<std::vector<std::string>>& names,
                                  const std::vector<GradientForm>& forms, const std::vector<Rank>& ranks, int zero,
                                  Bytes limit, bool offloaded) {
  const BucketLayout layout(forms, limit);
  std::vector<ShardUnit> units;
  for (const auto& bucket : layout.buckets()) {
    const auto members = zero == 0 ? 1 : static_cast<std::int64_t>(ranks.size());
    units.push_back({ranks,
                     zero,
                     offloaded,
                     bucket.dtype,
                     bucket.dtype,
                     BucketCut::Bucket{bucket.elements}.elements_in_shards(members),
                     {}});
  }
  for (const auto& place : layout.places()) {
    units[static_cast<std::size_t>(place.bucket)].places.push_back(
        {names[place.form.key], place.form.sizes, place.offset});
  }
  return units;
}

namespace {

std::vector<at::Tensor> places_in(const at::Tensor& flat, const ShardUnit& unit) {
  std::vector<at::Tensor> parts;
  for (const auto& place : unit.places) parts.push_back(part_of(flat, place.offset, place.sizes));
  return parts;
}

}  // namespace

ShardMemory::ShardMemory(ShardUnit unit, Rank rank, c10::Device device)
    : unit_(std::move(unit)),
      rank_(rank),
      device_(device),
      whole_(at::empty({unit_.elements}, at::TensorOptions().dtype(unit_.gathered).device(device))),
      own_(lies_apart()
               ? at::empty({own().size()}, whole_.options().dtype(unit_.offloaded ? unit_.gathered : unit_.dtype))
               : parameters::part_of(whole_, own().begin, {own().size()})),
      copies_(places_in(whole_, unit_)) {
  own_.zero_();  // the gaps between places; other ranks' parts are not touched until they are gathered
  release();
  if (unit_.offloaded) host_ = devices::host_memory(unit_.part(), unit_.dtype, device_).zero_();
  if (!unit_.gathers_copies()) return;
  const auto form = at::empty({unit_.elements}, whole_.options().dtype(unit_.dtype));
  forms_ = places_in(form, unit_);
  drop_memory(form);
}

std::size_t ShardMemory::position(const ShardUnit::Place& place) const {
  const auto* known = unit_.find(place.names.front());
  AUTOPAR_ASSERT(known != nullptr, "a unit of shards is asked for a parameter that is not in it");
  return static_cast<std::size_t>(known - unit_.places.data());
}

Interval ShardMemory::within_part(const ShardUnit::Place& place) const {
  const auto shard = unit_.shard_of(place, rank_);
  const auto shift = place.offset - own().begin;
  return shard.empty() ? Interval{} : Interval{shard.begin + shift, shard.end + shift};
}

at::Tensor ShardMemory::owner_memory(const ShardUnit::Place& place) const {
  const auto within = within_part(place);
  const auto& memory = unit_.offloaded ? host_ : own_;
  if (unit_.zero == 0) return parameters::part_of(memory, within.begin, place.sizes);
  return parameters::part_of(memory, within.begin, {within.size()});
}

at::Tensor ShardMemory::local_shard(const ShardUnit::Place& place) const {
  const auto within = within_part(place);
  return own_.narrow(0, within.begin, within.size());
}

void ShardMemory::take_over(const ShardUnit::Place& place, const at::Tensor& value) {
  const auto shard = unit_.shard_of(place, rank_);
  if (shard.empty()) return;
  const at::NoGradGuard no_grad;
  owner_memory(place).view({-1}).copy_(value.reshape({-1}).narrow(0, shard.begin, shard.size()));
}

void ShardMemory::upload() {
  if (!unit_.offloaded) return;
  const at::NoGradGuard no_grad;
  constexpr bool kNonBlocking = true;
  if (own_.scalar_type() == host_.scalar_type() || own_.device() == host_.device()) {
    own_.copy_(host_, kNonBlocking);
    return;
  }
  // A copy between devices that changes the type converts on the host, which would wait. So the device converts, in
  // pieces.
  const auto piece = std::min(unit_.part(), kLandingBytes.value() / static_cast<std::int64_t>(host_.element_size()));
  const auto landing = at::empty({piece}, own_.options().dtype(unit_.dtype));
  for (std::int64_t begin = 0; begin < unit_.part(); begin += piece) {
    const auto elements = std::min(piece, unit_.part() - begin);
    auto landed = landing.narrow(0, 0, elements);
    landed.copy_(host_.narrow(0, begin, elements), kNonBlocking);
    own_.narrow(0, begin, elements).copy_(landed);
  }
}

at::Tensor ShardMemory::gradient_memory() {
  const auto is_free = [](const at::Tensor& set) { return set.storage().use_count() == 1; };
  const auto free = std::find_if(gradients_.begin(), gradients_.end(), is_free);
  if (free != gradients_.end()) return *free;
  return gradients_.emplace_back(devices::host_memory(unit_.part(), unit_.dtype, device_));
}

void ShardMemory::allocate() {
  if (!lies_apart()) return;
  if (unit_.zero >= 3) {
    if (has_memory(whole_)) return;
    give_memory(whole_, static_cast<std::size_t>(unit_.elements) * whole_.element_size());
  }
  const at::NoGradGuard no_grad;
  whole_.narrow(0, own().begin, own().size()).copy_(own_);
}

void ShardMemory::release() {
  if (unit_.zero >= 3 && has_memory(whole_)) drop_memory(whole_);
}

}  // namespace autopar::parameters
