#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <autopar/core/ids.hpp>
#include <autopar/schedule/action.hpp>

#include "torch/parameters/gradient_buckets.hpp"

namespace autopar::parameters {

/// A flat parameter: parameters of one element type, contiguous in one memory. Every rank of a group owns an equal part
/// of it (ZeRO). If it is only offloaded, each rank owns all of it. Gradients have the same layout, so a reduce-scatter
/// gives each rank the gradients of its part. The same on every rank.
/// @source Rajbhandari et al., "ZeRO", SC 2020
struct ShardUnit {
  struct Place {
    std::vector<std::string> names;   ///< of the parameter; several if it is tied
    std::vector<std::int64_t> sizes;  ///< of the unsharded parameter, or of the slice of the ranks' tensor shard
    std::int64_t offset = 0;          ///< in elements
    [[nodiscard]] std::int64_t elements() const;
  };
  std::vector<Rank> ranks;                         ///< ascending
  int zero = 1;                                    ///< ZeRO level; 0: each rank owns all of it
  bool offloaded = false;                          ///< owner handles refer to host memory
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< of owners and gradients
  /// Element type of what is gathered and stages compute with: the type of 16-bit copies if every operator reads these,
  /// otherwise `dtype`.
  c10::ScalarType gathered = c10::ScalarType::Float;
  std::int64_t elements = 0;  ///< a multiple of the number of ranks
  std::vector<Place> places;

  [[nodiscard]] bool gathers_copies() const { return gathered != dtype; }
  /// Null if the parameter is not in this unit.
  [[nodiscard]] const Place* find(const std::string& name) const;
  /// Number of elements that each rank owns.
  [[nodiscard]] std::int64_t part() const {
    return zero == 0 ? elements : elements / static_cast<std::int64_t>(ranks.size());
  }
  /// The elements of the unit that a rank owns.
  [[nodiscard]] Interval part_of(Rank rank) const;
  /// The elements of a parameter that a rank owns, as indices of the parameter; may be empty.
  [[nodiscard]] Interval shard_of(const Place& place, Rank rank) const;
};

/// Divides parameters of one group of ranks into units, in the order given. A unit has at most `limit` bytes, or one
/// parameter.
/// @param forms  `key` is an index of `names`
[[nodiscard]] std::vector<ShardUnit> make_units(const std::vector<std::vector<std::string>>& names,
                                                const std::vector<GradientForm>& forms, const std::vector<Rank>& ranks,
                                                int zero, Bytes limit = BucketPolicy{}.size, bool offloaded = false);

/// One unit's memory on one rank: its local shard, which owner handles refer to, and the unsharded memory, which stages
/// compute with.
///
/// Below ZeRO 3 the local shard lies within the unsharded memory, so gathering needs no copies. In ZeRO 3 it is
/// separate. The unsharded storage then has memory only between `allocate` and `release`. It is always the same
/// storage, so that compute copies, and what autograd saved of them, find the data again.
///
/// If the unsharded memory has another element type, the local shard is also separate, and is cast into its place
/// before each gather. For an offloaded unit, owner handles refer to host memory. The local shard is then a device copy
/// in the element type of the unsharded memory.
class ShardMemory {
 public:
  ShardMemory(ShardUnit unit, Rank rank, c10::Device device);

  [[nodiscard]] const ShardUnit& unit() const { return unit_; }
  /// The flat unsharded memory, all elements. Valid from a gather until an owner is changed.
  [[nodiscard]] const at::Tensor& whole() const { return whole_; }
  /// A parameter within whole(), with its sizes; the same tensor each time.
  [[nodiscard]] const at::Tensor& gathered(const ShardUnit::Place& place) const { return copies_[position(place)]; }
  /// As `gathered`, in the parameter's own element type. If the unit gathers copies, this tensor never has memory.
  [[nodiscard]] const at::Tensor& compute_memory(const ShardUnit::Place& place) const {
    return unit_.gathers_copies() ? forms_[position(place)] : gathered(place);
  }
  /// Stores this rank's elements of a parameter's unsharded value.
  void take_over(const ShardUnit::Place& place, const at::Tensor& value);
  /// Copies host memory to the local shard of an offloaded unit, on the current stream. Host memory must not change
  /// until the copy is complete.
  void upload();
  /// Host memory for one set of gradients of an offloaded unit: flat, with the local shard's layout, not shared.
  [[nodiscard]] at::Tensor gradient_memory();
  /// Called before a gather: allocates the unsharded memory, with the local shard in place.
  void allocate();
  void release();
  /// This rank's elements of a parameter, flat; with the parameter's sizes if it owns all of it.
  [[nodiscard]] at::Tensor owner_memory(const ShardUnit::Place& place) const;
  /// This rank's elements of a parameter on the device, flat: what a gather sends.
  [[nodiscard]] at::Tensor local_shard(const ShardUnit::Place& place) const;
  /// The elements of a parameter in this rank's part, as indices of the part.
  [[nodiscard]] Interval within_part(const ShardUnit::Place& place) const;
  [[nodiscard]] Interval own() const { return unit_.part_of(rank_); }

 private:
  [[nodiscard]] std::size_t position(const ShardUnit::Place& place) const;
  [[nodiscard]] bool lies_apart() const { return unit_.zero >= 3 || (unit_.gathers_copies() && !unit_.offloaded); }

  ShardUnit unit_;
  Rank rank_;
  c10::Device device_;
  at::Tensor whole_, own_;
  at::Tensor host_;                    // of an offloaded unit
  std::vector<at::Tensor> gradients_;  // of an offloaded unit: sets that were given out
  std::vector<at::Tensor> copies_;     // by place
  std::vector<at::Tensor> forms_;      // by place, if the unit gathers copies
};

/// A unit in one captured program: its reduction group, and the program's parameters in it.
struct ShardedGroup {
  std::shared_ptr<ShardMemory> memory;  ///< null on ranks that are not members
  const ShardUnit* unit = nullptr;      ///< null: the group's gradients are all-reduced
};

}  // namespace autopar::parameters
