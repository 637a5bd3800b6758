#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <autopar/capture/init_record.hpp>
#include <autopar/capture/op_graph.hpp>
#include <autopar/core/ids.hpp>

#include "capture/algebra/parameter_reads.hpp"
#include "torch/device/host_copies.hpp"
#include "torch/parameters/compute_copy.hpp"
#include "torch/parameters/part_mark.hpp"
#include "torch/parameters/shard_slices.hpp"
#include "torch/parameters/shards.hpp"
#include "torch/parameters/state_registry.hpp"

namespace autopar::parameters {

/// The parameters and buffers of a module on one rank. It alone relates names, handles, tensors, the ranks that hold a
/// tensor, this rank's shard, and the memory that stages compute with.
///
///   ParameterStore parameters(*module, rank);
///   parameters.named("fc.weight").holders = {Rank(0), Rank(1)};
///   parameters.add_units(make_units({{"fc.weight"}}, forms, {Rank(0), Rank(1)}, /*zero=*/1), at::kFloat);
///   parameters.hold_shards(nullptr, at::kCPU);       // the handle is now this rank's half, flat
///   parameters.compute_memory("fc.weight");          // unsharded, once it is gathered
///
/// Used by one thread at a time.
///
/// Size: it is the one owner, and two thirds of its members are questions of one line.
class ParameterStore {
 public:
  /// Takes the handles of the module.
  /// @param self  this rank
  ParameterStore(const torch::nn::Module& module, Rank self) : registry_(module), self_(self) {}
  /// The module may live on: its parameters become ordinary tensors again, except shards and slices.
  ~ParameterStore();
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  // ---- names and handles

  [[nodiscard]] const StateRegistry& registry() const { return registry_; }
  [[nodiscard]] std::vector<ManagedTensor>& tensors() { return registry_.tensors(); }
  [[nodiscard]] const std::vector<ManagedTensor>& tensors() const { return registry_.tensors(); }
  [[nodiscard]] const ManagedTensor& at(StateId id) const { return registry_.at(id); }
  /// @throws InvalidArgument if the module has no such parameter or buffer
  [[nodiscard]] ManagedTensor& named(const std::string& name) { return registry_.named(name); }
  [[nodiscard]] const ManagedTensor& named(const std::string& name) const { return registry_.named(name); }
  [[nodiscard]] const ManagedTensor& of(const at::Tensor& handle) const { return registry_.of(handle); }
  [[nodiscard]] bool has(const at::Tensor& handle) const { return registry_.has(handle); }
  /// Of a parameter or buffer of a program.
  [[nodiscard]] const at::Tensor& handle_of(const OpGraph& graph, ValueId leaf) const {
    return named(graph.value(leaf).name).handle;
  }

  // ---- who holds what

  /// Whether this rank holds the tensor or a shard of it.
  [[nodiscard]] bool holds(const ManagedTensor& tensor) const;
  /// Whether holders have flat shards of it (ZeRO), and none holds all of it.
  [[nodiscard]] bool is_sharded(const ManagedTensor& tensor) const;
  /// Whether every holder has all of it.
  [[nodiscard]] bool is_whole(const ManagedTensor& tensor) const { return !is_sharded(tensor) && !tensor.slices; }
  /// The holders that have the same part of it as this rank and with which its gradients are summed.
  /// @pre holds(tensor)
  [[nodiscard]] const std::vector<Rank>& replicas_of(const ManagedTensor& tensor) const;
  /// The index of this rank's tensor shard.
  /// @pre the rank holds one of several
  [[nodiscard]] int shard_of(const ManagedTensor& tensor) const;
  /// The elements that this rank holds, in the memory order of the unsharded tensor.
  [[nodiscard]] ShardSlices elements_here(const ManagedTensor& tensor) const;
  /// The elements that a rank holds; none if it holds nothing.
  [[nodiscard]] ShardSlices elements_on(const ManagedTensor& tensor, Rank rank) const;
  /// The elements of each holder, in the order of `holders`; empty if each has all of it.
  [[nodiscard]] std::vector<ShardSlices> elements_of_holders(const ManagedTensor& tensor) const;
  /// Whether this rank counts its elements in sums over all ranks in which every element counts once.
  [[nodiscard]] bool counts(const ManagedTensor& tensor) const { return counts_on(tensor, self_); }
  /// As counts(), for any rank.
  [[nodiscard]] bool counts_on(const ManagedTensor& tensor, Rank rank) const;

  // ---- tensor shards

  /// Makes handles and gradients refer to this rank's slice alone, except tensors in units.
  void hold_slices(InitRecord* init, c10::Device device);

  // ---- units of shards, and of what is offloaded

  /// Adds units; call it before `hold_shards`.
  /// @param gathered  element type that stages compute with
  void add_units(std::vector<ShardUnit> units, c10::ScalarType gathered);
  /// Makes handles and gradients refer to what this rank owns of each unit. Values come from the handles or from
  /// `init`. Takes the additional memory of one large parameter.
  void hold_shards(InitRecord* init, c10::Device device);
  /// The units of all ranks.
  [[nodiscard]] const std::vector<ShardUnit>& units() const { return units_; }
  /// By unit; null if this rank is not a member.
  [[nodiscard]] const std::vector<std::shared_ptr<ShardMemory>>& memories() const { return memories_; }
  /// The unit of the tensor. Null if every holder has the whole tensor or a whole slice. On ranks that hold none of
  /// several tensor shards, the first shard's unit, which differs from the others' in ranks and sizes only.
  [[nodiscard]] const ShardUnit* unit_of(const ManagedTensor& tensor) const { return unit_on(tensor, self_); }
  /// @pre this rank is a member of the tensor's unit
  [[nodiscard]] ShardMemory& memory_of(const ManagedTensor& tensor) const;
  /// Null if the tensor is in no unit.
  [[nodiscard]] const ShardUnit::Place* place_of(const ManagedTensor& tensor) const;
  /// Updates devices' copies of offloaded parameters, since optimizers may have stepped on the host.
  void upload();
  /// Waits until the latest `upload` is complete: an optimizer may then step.
  void wait_for_upload() { uploaded_.wait(); }

  // ---- guard of parts (part_guard.hpp)

  /// Called before a capture.
  /// @param has_placeholders  whether this model itself has placeholders, from a recorded construction
  /// @throws InvalidArgument if another model has sharded one of the parameters
  void require_undivided(bool has_placeholders) const;
  /// Called when this rank's holders, slices and units are known.
  /// @throws InvalidArgument if this model shards a parameter and another model holds copies of it
  void require_unshared() const;
  /// Called when handles refer to what this rank has: from then on operators on parts and copies, and on their
  /// gradients, are checked.
  void mark_handles();

  // ---- what stages compute with

  /// The unsharded parameter in its own element type; undefined if that is the handle itself.
  [[nodiscard]] at::Tensor compute_memory(const std::string& name) const;
  /// The unsharded parameter in the gathered element type; undefined unless that is another type.
  [[nodiscard]] at::Tensor compute_copy(const std::string& name) const;
  /// The copy that programs read in place of the parameter stays from call to call, as plans count it.
  void keep_copy(const ManagedTensor& tensor, c10::ScalarType type) { ComputeCopy::keep(tensor.handle, type); }
  /// @throws InvalidArgument if what is gathered for the parameter does not provide what `reads` need
  void require_readable(const ManagedTensor& tensor, const algebra::ParameterReads& reads) const;

 private:
  [[nodiscard]] const ShardUnit* unit_on(const ManagedTensor& tensor, Rank rank) const;
  void hold_slice(const ManagedTensor& tensor, InitRecord* init, c10::Device device);
  void move_into(ShardMemory& memory, const ShardUnit::Place& place, const at::Tensor& handle);
  [[nodiscard]] PartLayout layout_here(const ManagedTensor& tensor) const;

  StateRegistry registry_;
  Rank self_;
  std::vector<ShardUnit> units_;
  std::vector<std::shared_ptr<ShardMemory>> memories_;
  devices::DeviceEvent uploaded_;  ///< after the latest `upload`
};

}  // namespace autopar::parameters
