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

#include "torch/gradients/gradient_buckets.hpp"

namespace autopar::parameters {

/// Parameters of one element type, one behind the other in a flat memory of which every rank of a group owns an equal
/// part (ZeRO), or each rank all of it (only if it is offloaded). Gradients lie likewise, so that a sum into shards
/// gives each rank those of what it owns. The same on every rank.
/// @source Rajbhandari et al., "ZeRO", SC 2020
struct ShardUnit {
  struct Place {
    std::vector<std::string> names;   ///< of the parameter; several when tied
    std::vector<std::int64_t> sizes;  ///< of the whole; of the slice that the ranks' tensor shard has
    std::int64_t offset = 0;          ///< in elements
    [[nodiscard]] std::int64_t elements() const;
  };
  std::vector<Rank> ranks;                         ///< ascending
  int zero = 1;                                    ///< level; 0: each rank owns all of it
  bool offloaded = false;                          ///< owner handles refer to host memory
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< of owners and gradients
  /// Element type of what is gathered, and stages compute with: that of the copies that everything reads in place of
  /// the parameters, or `dtype`.
  c10::ScalarType gathered = c10::ScalarType::Float;
  std::int64_t elements = 0;  ///< a multiple of the number of ranks
  std::vector<Place> places;

  [[nodiscard]] bool gathers_copies() const { return gathered != dtype; }
  /// Null if it is not in this unit.
  [[nodiscard]] const Place* find(const std::string& name) const;
  /// Elements that each rank owns.
  [[nodiscard]] std::int64_t part() const {
    return zero == 0 ? elements : elements / static_cast<std::int64_t>(ranks.size());
  }
  /// Those that a rank owns, within the unit.
  [[nodiscard]] Interval part_of(Rank rank) const;
  /// Elements of a parameter that a rank owns, counted within the parameter; may be empty.
  [[nodiscard]] Interval shard_of(const Place& place, Rank rank) const;
};

/// Units for parameters of one group of ranks, in the order given, each of `limit` bytes at most, or of one parameter.
/// @param forms  `key` is a position in `names`
[[nodiscard]] std::vector<ShardUnit> make_units(const std::vector<std::vector<std::string>>& names,
                                                const std::vector<gradients::GradientForm>& forms,
                                                const std::vector<Rank>& ranks, int zero,
                                                Bytes limit = BucketPolicy{}.size, bool offloaded = false);

/// One unit's memory on one rank: its own part, which owner handles refer to, and the whole, which stages compute with.
///
/// Below ZeRO 3 the own part lies within the whole, so that what an optimizer writes is in its place, and gathering
/// needs no copies. From 3 on it lies apart, and the whole has memory between `allocate` and `release` only, always the
/// same storage, so that what refers to it (compute copies, what autograd saved of them) finds the data again. Where
/// the whole is of another element type the own part lies apart, too, and is cast into its place before each gathering.
/// Of an offloaded unit owner handles refer to memory of the host, and the own part is a copy of it in the element type
/// of the whole.
class ShardMemory {
 public:
  ShardMemory(ShardUnit unit, Rank rank, c10::Device device);

  [[nodiscard]] const ShardUnit& unit() const { return unit_; }
  /// Flat, all elements. Complete between a gathering and the next change of an owner.
  [[nodiscard]] const at::Tensor& whole() const { return whole_; }
  /// A parameter within the whole, with its sizes; the same tensor each time.
  [[nodiscard]] const at::Tensor& gathered(const ShardUnit::Place& place) const { return copies_[position(place)]; }
  /// Like `gathered`, of the parameter's own element type; without memory, ever, if the unit gathers copies.
  [[nodiscard]] const at::Tensor& compute_memory(const ShardUnit::Place& place) const {
    return unit_.gathers_copies() ? forms_[position(place)] : gathered(place);
  }
  /// Keeps this rank's elements of the whole value of a parameter.
  void take_over(const ShardUnit::Place& place, const at::Tensor& value);
  /// Brings the own part of an offloaded unit up to date, in the current stream: until it has done so the host's memory
  /// must stay as it is.
  void upload();
  /// Host memory for one set of gradients of an offloaded unit: flat, laid out like the own part, used by nobody else.
  [[nodiscard]] at::Tensor gradient_memory();
  /// Before a gathering: memory for the whole, with the own part in place.
  void allocate();
  void release();
  /// This rank's elements of a parameter, flat; if it owns all of it, with its sizes.
  [[nodiscard]] at::Tensor owner_memory(const ShardUnit::Place& place) const;
  /// Elements of a parameter that lie in this rank's part, counted within the part.
  [[nodiscard]] Interval within_part(const ShardUnit::Place& place) const;
  [[nodiscard]] Interval own() const { return unit_.part_of(rank_); }

 private:
  [[nodiscard]] std::size_t position(const ShardUnit::Place& place) const;
  [[nodiscard]] bool lies_apart() const { return unit_.zero >= 3 || (unit_.gathers_copies() && !unit_.offloaded); }

  ShardUnit unit_;
  Rank rank_;
  c10::Device device_;
  at::Tensor whole_, own_;
  at::Tensor host_;                    // if offloaded
  std::vector<at::Tensor> gradients_;  // likewise: sets that were given out
  std::vector<at::Tensor> copies_;     // by place
  std::vector<at::Tensor> forms_;      // likewise, if the unit gathers copies
};

/// A unit in one captured program: its reduction group, and which of the program's parameters are in it.
struct ShardedGroup {
  std::shared_ptr<ShardMemory> memory;  ///< null on ranks that are no members
  const ShardUnit* unit = nullptr;      ///< null: the group's gradients are summed whole
};

}  // namespace autopar::parameters
