#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/plan/pipeline_of.hpp>
#include <autopar/plan/savings.hpp>
#include <autopar/plan/stage_memory.hpp>
#include <autopar/plan/staging.hpp>
#include <autopar/plan/workload.hpp>

namespace autopar {

namespace detail {

/// How a parameter is held under ZeRO: among the replicas of the stage that reads it; if several stages do, their ranks
/// have shares of its optimizer state alone.
class Sharing {
 public:
  Sharing(const Workload& work, const Staging& staging, int zero)
      : staging_(staging), zero_(zero), readers_(zero > 0 ? stages_of_parameters(work, staging) : ReadingStages{}) {}

  struct Level {
    int zero = 0, ranks = 1;
    bool tied = false;
  };
  [[nodiscard]] Level of(ParameterId parameter, std::size_t stage) const {
    if (zero_ == 0) return {};
    const auto tied = readers_.tied.find(parameter.index());
    if (tied == readers_.tied.end()) return {zero_, staging_.replicas[stage], false};
    std::map<int, int> replicas;  // by position
    int most = 0;
    for (const int s : tied->second) {
      replicas[staging_.position(s)] = staging_.replicas[static_cast<std::size_t>(s)];
      most = std::max(most, staging_.replicas[static_cast<std::size_t>(s)]);
    }
    int ranks = 0;
    for (const auto& [position, count] : replicas) ranks += count;
    return {most > 1 ? 1 : 0, ranks, true};
  }

 private:
  const Staging& staging_;
  int zero_;
  ReadingStages readers_;
};

/// What nodes that run again together read of parameters that ZeRO 3 has in shares.
[[nodiscard]] inline Bytes read_in_shares(const Workload& work, const std::vector<NodeId>& nodes) {
  std::set<ParameterId> read;
  for (const NodeId node : nodes) {
    const auto& own = work.graph[node].parameters;
    read.insert(own.begin(), own.end());
  }
  Bytes sum{};
  for (const ParameterId id : read) {
    const ParameterProfile& parameter = work.parameters[id.index()];
    if (parameter.trainable && parameter.highest_zero >= 3) sum += parameter.computed_with();
  }
  return sum;
}

/// Units of parameters are gathered and summed at a time: as large as a bucket or, from level 2 on, as what the
/// operator reads that reads most; or of one parameter. Under 1 a rank has its share of a sum beside the sum, when the
/// backward is over if the stage has one unit; from 2 on one unit of gradients fills while the one before is on its
/// way; under 3 an operator reads parameters of two units at most, of which one is no larger than a bucket, and the
/// next operator's are on their way. A unit with a parameter that several operators read fills first and is full last,
/// and the others wait for it, while one of the turn before is on its way. The input half of a parted backward, which
/// gives no gradients of parameters, ends with all that it gathered, and the other half begins with units for what was
/// not put off. What is gathered is what stages compute with.
struct GatheredUnits {
  Bytes largest{};          ///< trainable bytes that one operator of the stage reads at most
  Bytes of_all{};           ///< likewise, of any stage
  Bytes owned{};            ///< trainable bytes of the stage that are held in shares
  Bytes computed_with{};    ///< in their place
  bool read_again = false;  ///< some of them by several operators

  /// Of a stage with several replicas.
  void add_to(StageMemory& memory, int zero, const Staging& staging, int replicas) const {
    if (zero == 0 || replicas < 2) return;
    const Bytes bucket = zero == 1 ? kBucketBytes : std::min(kBucketBytes, of_all);
    const Bytes unit = std::min(owned, largest > kBucketBytes ? largest : bucket);
    if (zero == 1) {
      (unit == owned ? memory.summed : memory.gathered) = Bytes((unit.value() + replicas - 1) / replicas);
      return;
    }
    const bool at_once = read_again || !keeps_backwards_whole(staging.schedule);
    const Bytes gradients = std::min(at_once ? owned + unit : unit * 2, owned * staging.microbatches);
    const Bytes parameters = largest > kBucketBytes ? (largest + kBucketBytes) * 2 : unit * 3;
    memory.gathered = gradients;
    if (zero < 3) return;
    memory.in_shares = computed_with;
    memory.brought = owned > Bytes(0) ? in_proportion(std::min(parameters, owned), computed_with, owned) : Bytes(0);
  }
};

}  // namespace detail

}  // namespace autopar
