#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include <autopar/plan/memory/stage_memory.hpp>
#include <autopar/plan/model/pipeline_of.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

namespace detail {

/// How ZeRO shards a parameter: among the replicas of the stage that reads it. If several stages read it, their ranks
/// shard its optimizer state only.
class Sharing {
 public:
  /// @param sums  whether `is_summed` or `is_tied` is asked for
  Sharing(const Workload& work, const Staging& staging, int zero, bool sums)
      : staging_(staging),
        zero_(zero),
        readers_(zero > 0 || sums ? stages_of_parameters(work, staging) : ReadingStages{}) {}

  struct Level {
    int zero = 0, ranks = 1;
    bool tied = false;
  };
  [[nodiscard]] Level of(ParameterId parameter, std::size_t stage) const {
    if (zero_ == 0) return {};
    const auto tied = readers_.tied.find(parameter.index());
    if (tied == readers_.tied.end()) return {zero_, staging_.replicas[stage], false};
    const auto is_replicated = [&](int s) { return staging_.replicas[static_cast<std::size_t>(s)] > 1; };
    return {std::ranges::any_of(tied->second, is_replicated) ? 1 : 0, ranks_of(parameter, stage), true};
  }
  /// Whether several stages read it.
  [[nodiscard]] bool is_tied(ParameterId parameter) const { return readers_.tied.contains(parameter.index()); }
  /// Ranks, or groups of tensor shards, that read the parameter.
  [[nodiscard]] int ranks_of(ParameterId parameter, std::size_t stage) const {
    const auto tied = readers_.tied.find(parameter.index());
    if (tied == readers_.tied.end()) return staging_.replicas[stage];
    std::map<int, int> replicas;  // by position
    for (const int s : tied->second) replicas[staging_.position(s)] = staging_.replicas[static_cast<std::size_t>(s)];
    return std::accumulate(replicas.begin(), replicas.end(), 0,
                           [](int sum, const auto& of) { return sum + of.second; });
  }
  /// Whether several ranks add up its gradients. Of a tied parameter, all tensor shards do.
  [[nodiscard]] bool is_summed(ParameterId parameter, std::size_t stage) const {
    const bool has_shards = !staging_.tensor.empty() && staging_.tensor[stage] > 1;
    return ranks_of(parameter, stage) > 1 || (has_shards && readers_.tied.contains(parameter.index()));
  }

 private:
  const Staging& staging_;
  int zero_;
  ReadingStages readers_;
};

/// What recomputed segments of a stage gather under ZeRO 3, if backwards are whole. A segment keeps up to
/// kKeptForBackward of it for its backward; the rest is resharded and gathered again. Parameters that other nodes of
/// the stage read, too, stay unsharded anyway.
class Regathered {
 public:
  /// @param stage  nodes of the stage
  Regathered(const Workload& work, const std::vector<NodeId>& stage) : work_(work) {
    for (const NodeId node : stage) {
      for (const ParameterId id : read_by(node)) ++readers_[id];
    }
  }

  struct OfSegment {
    Bytes kept{};       ///< until its backward
    Bytes once_more{};  ///< gathered again by a micro-batch
  };
  [[nodiscard]] OfSegment of(const std::vector<NodeId>& segment) const {
    std::map<ParameterId, int> inside;
    for (const NodeId node : segment) {
      for (const ParameterId id : read_by(node)) ++inside[id];
    }
    Bytes own{};
    for (const auto& [id, count] : inside) {
      if (count == readers_.at(id)) own += work_.parameters[id.index()].computed_with();
    }
    const Bytes kept = std::min(own, kKeptForBackward);
    return {kept, own - kept};
  }

 private:
  /// Sharded parameters that the node reads.
  [[nodiscard]] std::set<ParameterId> read_by(NodeId node) const {
    std::set<ParameterId> read;
    for (const ParameterId id : work_.graph[node].parameters) {
      const ParameterProfile& parameter = work_.parameters[id.index()];
      if (parameter.trainable && parameter.highest_zero >= 3) read.insert(id);
    }
    return read;
  }

  const Workload& work_;
  std::map<ParameterId, int> readers_;
};

/// What is unsharded beside the shards. A unit is as large as `BucketPolicy::unit_size`, or it is one parameter. What
/// is gathered is what stages compute with.
/// - ZeRO 1: a rank has its shard of a sum beside the sum; if the stage has one unit, when the backward is over.
/// - ZeRO 2 and 3: one unit of gradients fills while the one before is sent. A unit with a parameter that several
///   operators read fills first and is full last. All others wait for it, while one of the compute action before is
///   sent. Likewise for the second half of a split backward.
/// - ZeRO 3: also parameters, see Unsharded.
///
/// At every level, gradients that are sent rounded are copied: what is sent and what is received together are as large
/// as the bucket. One bucket at a time is in such a copy.
struct GatheredUnits {
  Bytes largest{};  ///< most trainable bytes that one operator of the stage reads
  Bytes of_all{};   ///< likewise, of any stage
  BucketPolicy buckets{};
  Bytes owned{};          ///< trainable bytes of the stage that are held in shards
  Bytes computed_with{};  ///< bytes that are computed with in their place
  Bytes of_several{};     ///< units of those that several operators read
  Bytes rounded_units{};  ///< of gradients that are sent rounded, those that are summed into shards
  Bytes rounded_whole{};  ///< and those that are summed whole

  /// Adds a parameter of the stage.
  void add(const ParameterProfile& profile) {
    owned += profile.bytes;
    computed_with += profile.computed_with();
  }
  /// Several operators read one that was added.
  void read_by_several(const ParameterProfile& profile, int zero) {
    of_several += std::max(profile.bytes, buckets.unit_size(zero, of_all));
  }
  /// Adds the units of a stage with several replicas, and the copy.
  void add_to(StageMemory& memory, int zero, const Staging& staging, int replicas) const {
    const Bytes bucket = buckets.size;
    const Bytes limit = largest > bucket ? largest : buckets.unit_size(zero, of_all), unit = std::min(owned, limit);
    const Bytes whole = std::min(rounded_whole, std::max(largest, bucket));
    const Bytes copy = std::max(std::min(rounded_units, limit), whole);
    const bool in_shards = zero > 0 && replicas > 1;
    if (zero < 2 || !in_shards) {
      const bool all_in_one = copy == rounded_units + rounded_whole && (!in_shards || unit == owned);
      (all_in_one ? memory.summed : memory.gathered) = copy + (in_shards ? shard_of(unit, replicas) : Bytes(0));
      return;
    }
    const bool is_whole = keeps_backwards_whole(staging.schedule), at_once = of_several > Bytes(0) || !is_whole;
    memory.gathered = std::min(at_once ? owned + unit : unit * 2, owned * staging.microbatches) + copy;
    memory.unsharded = {.unit = buckets.unit_size(zero, of_all),
                        .owned = owned,
                        .computed_with = zero == 3 ? computed_with : Bytes(0),
                        .of_several = of_several,
                        .whole_backwards = is_whole};
  }
};

}  // namespace detail

}  // namespace autopar
