#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <autopar/capture/init_record.hpp>
#include <autopar/core/ids.hpp>

#include "capture/algebra/parameter_reads.hpp"
#include "torch/device/host_copies.hpp"
#include "torch/parameters/part_mark.hpp"
#include "torch/parameters/shards.hpp"
#include "torch/parameters/slab.hpp"
#include "torch/parameters/state_registry.hpp"

namespace autopar::parameters {

/// The parameters and buffers of a module on one rank: which name and which handle is which tensor, which ranks hold
/// it, which shard of it this rank owns, and what stages compute with in its place. Nobody else knows how these belong
/// together.
///
///   ParameterStore parameters(*module, rank);
///   parameters.named("fc.weight").holders = {Rank(0), Rank(1)};
///   parameters.add_units(make_units({{"fc.weight"}}, forms, {Rank(0), Rank(1)}, /*zero=*/1), at::kFloat);
///   parameters.hold_shards(nullptr, at::kCPU);       // the handle is now this rank's half, flat
///   parameters.compute_memory("fc.weight");          // the whole, once it is gathered
///
/// From one thread at a time.
class ParameterStore {
 public:
  /// Handles are those of the module. @param self  this rank
  ParameterStore(const torch::nn::Module& module, Rank self) : registry_(module), self_(self) {}

  // ---- names and handles

  [[nodiscard]] const StateRegistry& registry() const { return registry_; }
  [[nodiscard]] std::vector<StateTensor>& tensors() { return registry_.tensors(); }
  [[nodiscard]] const std::vector<StateTensor>& tensors() const { return registry_.tensors(); }
  /// @throws InvalidArgument if the module has no such parameter or buffer
  [[nodiscard]] StateTensor& named(const std::string& name) { return registry_.named(name); }
  [[nodiscard]] const StateTensor& named(const std::string& name) const { return registry_.named(name); }
  [[nodiscard]] const StateTensor& of(const at::Tensor& handle) const { return registry_.of(handle); }
  [[nodiscard]] bool has(const at::Tensor& handle) const { return registry_.has(handle); }

  // ---- who holds what

  /// Whether this rank holds it, or a shard of it.
  [[nodiscard]] bool holds(const StateTensor& tensor) const;
  /// Whether holders have flat shards of it (ZeRO), and none has all of it.
  [[nodiscard]] bool is_sharded(const StateTensor& tensor) const;
  /// Whether every holder has all of it.
  [[nodiscard]] bool is_whole(const StateTensor& tensor) const { return !is_sharded(tensor) && !tensor.slices; }
  /// Holders that have the same of it as this rank, and sum its gradients. @pre holds(tensor)
  [[nodiscard]] const std::vector<Rank>& replicas_of(const StateTensor& tensor) const;
  /// Which tensor shard this rank is. @pre it is one of several
  [[nodiscard]] int shard_of(const StateTensor& tensor) const;
  /// Elements that this rank holds, counted in the memory order of the whole.
  [[nodiscard]] Slab elements_here(const StateTensor& tensor) const;
  /// Elements that a rank holds; none if it holds nothing.
  [[nodiscard]] Slab elements_on(const StateTensor& tensor, Rank rank) const;
  /// Elements of each holder, in the order of `holders`; empty if each has all of it.
  [[nodiscard]] std::vector<Slab> elements_of_holders(const StateTensor& tensor) const;
  /// Whether this rank counts what it holds where every element is to count once.
  [[nodiscard]] bool counts(const StateTensor& tensor) const { return counts_on(tensor, self_); }
  /// The same of any rank.
  [[nodiscard]] bool counts_on(const StateTensor& tensor, Rank rank) const;

  // ---- tensor shards

  /// Makes handles refer to this rank's slice alone, but for what is in units. Their gradients go along.
  void hold_slices(InitRecord* init, c10::Device device);

  // ---- units of shards, and of what is offloaded

  /// Before `hold_shards`. @param gathered  element type that stages compute with
  void add_units(std::vector<ShardUnit> units, c10::ScalarType gathered);
  /// Makes handles refer to what this rank owns of each unit, whose values they have, or get from `init`. Their
  /// gradients go along. Takes one large parameter of additional memory.
  void hold_shards(InitRecord* init, c10::Device device);
  /// Of all ranks.
  [[nodiscard]] const std::vector<ShardUnit>& units() const { return units_; }
  /// By unit; null where this rank is no member.
  [[nodiscard]] const std::vector<std::shared_ptr<ShardMemory>>& memories() const { return memories_; }
  /// Null if every holder has the whole, or a whole slice. On ranks that are none of several tensor shards, the first
  /// one's, which is like the others' but for ranks and sizes.
  [[nodiscard]] const ShardUnit* unit_of(const StateTensor& tensor) const { return unit_on(tensor, self_); }
  /// @pre this rank is a member of the tensor's unit
  [[nodiscard]] ShardMemory& memory_of(const StateTensor& tensor) const;
  /// Null if it is in no unit.
  [[nodiscard]] const ShardUnit::Place* place_of(const StateTensor& tensor) const;
  /// Brings devices' copies of offloaded parameters up to date: optimizers may have stepped on the host.
  void upload();
  /// Returns when the latest `upload` has ended: an optimizer may step again.
  void wait_for_upload() { uploaded_.wait(); }

  // ---- guard of parts (part_guard.hpp)

  /// Before a capture: @throws InvalidArgument if another model has divided one of the parameters.
  /// @param has_placeholders  of this model's own, for what a constructor has recorded
  void require_undivided(bool has_placeholders) const;
  /// Once this rank's holders, slices and units are known: @throws InvalidArgument if this model divides what another
  /// one has copies of.
  void require_unshared() const;
  /// Once handles refer to what this rank has: from now on operators on parts and copies, and on their gradients, are
  /// looked at.
  void mark_handles();
  /// When the model ends: what is whole is an ordinary parameter again.
  void unmark_copies();

  // ---- what stages compute with

  /// The whole in its own element type; undefined if that is the handle itself.
  [[nodiscard]] at::Tensor compute_memory(const std::string& name) const;
  /// The whole in the element type that is gathered; undefined unless that is another one.
  [[nodiscard]] at::Tensor compute_copy(const std::string& name) const;
  /// @throws InvalidArgument if what is gathered of it does not give `reads` what they need
  void require_readable(const StateTensor& tensor, const algebra::ParameterReads& reads) const;

 private:
  [[nodiscard]] const ShardUnit* unit_on(const StateTensor& tensor, Rank rank) const;
  void hold_slice(const StateTensor& tensor, InitRecord* init, c10::Device device);
  void move_into(ShardMemory& memory, const ShardUnit::Place& place, const at::Tensor& handle);
  [[nodiscard]] PartLayout layout_here(const StateTensor& tensor) const;

  StateRegistry registry_;
  Rank self_;
  std::vector<ShardUnit> units_;
  std::vector<std::shared_ptr<ShardMemory>> memories_;
  devices::DeviceEvent uploaded_;  ///< after the latest `upload`
};

}  // namespace autopar::parameters
