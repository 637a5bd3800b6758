#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <autopar/plan/pipeline_of.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/plan/savings.hpp>
#include <autopar/plan/shares.hpp>
#include <autopar/plan/staging.hpp>
#include <autopar/plan/workload.hpp>
#include <autopar/schedule/gpipe.hpp>
#include <autopar/schedule/one_f_one_b.hpp>
#include <autopar/schedule/zb_h1.hpp>

namespace autopar {

/// Peak bytes of the worst rank of a stage, term by term.
struct StageMemory {
  Bytes parameters{};  ///< parameters, copies that are read in their place, buffers, and what nodes hold besides; a tied one
                       ///< counts in every stage that reads it
  Bytes gradients{};   ///< `gradient_copies` x trainable
  Bytes optimizer{};   ///< `optimizer_state_factor` x trainable
  Bytes saved{};       ///< activations of all micro-batches that are forward but not yet backward, and what is put off
  Bytes boundary{};    ///< values and gradients that come from and go to other stages
  Bytes workspace{};   ///< of the largest operator, and gradients of parameters that wait for those of their other readers
  Bytes rebuilt{};     ///< activations of the largest segment that is run again
  Bytes gathered{};    ///< under ZeRO, units of gradients and parameters that are whole, or summed, beside the shares
  Bytes update{};  ///< temporaries of the optimizer's step, when nothing but parameters and their state is left; or of
                   ///< bringing new values from the host
  Bytes host{};        ///< in the host's memory, of what is offloaded; where that is the device's own, it is in the terms above

  /// Of one turn at a time: stages that share their ranks take their turns one after the other.
  [[nodiscard]] Bytes transient() const { return workspace + rebuilt + gathered; }
  [[nodiscard]] Bytes total() const {
    return parameters + gradients + optimizer + std::max(saved + boundary + transient(), update);
  }
  friend bool operator==(const StageMemory&, const StageMemory&) = default;
};

/// Most micro-batches whose activations a stage holds, by the schedule's own law; an estimate for schedules of several
/// stages a rank and for synthesised ones, whose orders must be counted (`in_flight_of`).
[[nodiscard]] inline int peak_in_flight(ScheduleKind schedule, bool loss_mode, int stage, int stages,
                                        int microbatches) {
  if (schedule == ScheduleKind::kGPipe || !loss_mode) {
    return GPipe{}.peak_activations(StageId(stage), stages, microbatches);
  }
  if (schedule == ScheduleKind::kZbH1) return ZbH1{}.peak_activations(StageId(stage), stages, microbatches);
  return OneFOneB{}.peak_activations(StageId(stage), stages, microbatches);
}

/// Bytes that one more micro-batch in flight takes, by stage.
struct HeldByMicrobatch {
  std::vector<Bytes> next;  ///< while more are to come
  std::vector<Bytes> last;  ///< of all there are: no other's values arrive meanwhile
};

/// Micro-batches of each stage that are forward but not wholly backward when their ranks hold most; of a stage's
/// replicas the one that holds most. @param orders  [rank]
[[nodiscard]] inline std::vector<int> in_flight_of(const std::vector<std::vector<Turn>>& orders, int microbatches,
                                                   const HeldByMicrobatch& weights) {
  const auto weight = [&](std::size_t stage, int held) {
    return held == microbatches ? weights.last[stage] : weights.next[stage];
  };
  std::vector<int> most(weights.next.size(), 0);
  for (const auto& turns : orders) {
    std::vector<int> held(most.size(), 0), at_peak = held;
    Bytes sum{}, peak{-1};
    for (const Turn turn : turns) {
      const std::size_t s = turn.stage.index();
      if (turn.kind == ActionKind::kForward) {
        ++held[s];
        sum += weight(s, held[s]);
      }
      if (sum > peak) {
        peak = sum;
        at_peak = held;
      }
      if (gives_weight_gradients(turn.kind)) {
        sum -= weight(s, held[s]);
        --held[s];
      }
    }
    for (std::size_t s = 0; s < most.size(); ++s) most[s] = std::max(most[s], at_peak[s]);
  }
  return most;
}

/// What one parameter costs a rank that holds it, or its share of it. Of what is offloaded, what stages compute with
/// stays on the device, in its smaller element type if they read it in one, and gradients are made there; the host has
/// the optimizer's own.
[[nodiscard]] inline StageMemory parameter_memory(const ParameterProfile& parameter, const Constraints& constraints,
                                                  int zero = 0, int replicas = 1, Offload offload = Offload::kNone) {
  StageMemory memory;
  zero = std::min(zero, parameter.highest_zero);
  if (parameter.highest_zero == 0) offload = Offload::kNone;
  const auto share = [&](Bytes bytes, int level) {
    return zero >= level ? Bytes((bytes.value() + replicas - 1) / replicas) : bytes;
  };
  memory.parameters = parameter.bytes + parameter.copy;
  if (parameter.trainable) {
    // Where all read a copy, that is what is gathered, and the parameter itself is held in shares from 1 on; if it is
    // offloaded, the share of the copy is what is left of it.
    const bool is_copied = parameter.copy > Bytes(0);
    if (is_copied && offload == Offload::kNone) {
      memory.parameters = share(parameter.bytes, 1);
      if (zero < 3 || replicas < 2) memory.parameters += parameter.copy;
    } else {
      memory.parameters = share(parameter.computed_with(), 3);
    }
    memory.gradients = share(parameter.bytes, 2) * constraints.gradient_copies;  // whole at level 1: no_sync keeps them so
    memory.optimizer = share(Bytes(static_cast<std::int64_t>(std::ceil(static_cast<double>(parameter.bytes.value()) *
                                                                       constraints.optimizer_state_factor))),
                             1);
    const Bytes stepped = share(parameter.bytes, 1);
    if (offload == Offload::kOptimizer && constraints.host_memory) {
      memory.host = stepped + stepped * constraints.gradient_copies + memory.optimizer;
      memory.optimizer = {};
    } else if (offload == Offload::kOptimizer) {
      memory.parameters += stepped;
    }
  }
  return memory;
}

/// What one parameter costs a rank at least, whatever the savings that are allowed: this, and so much of every replica's
/// share.
struct LeastHeld {
  std::int64_t whole = 0, shared = 0;  ///< bytes

  /// On one of so many replicas.
  [[nodiscard]] std::int64_t at(int replicas) const { return whole + shared / replicas; }
  LeastHeld& operator+=(const LeastHeld& other) {
    whole += other.whole;
    shared += other.shared;
    return *this;
  }
  friend LeastHeld operator-(LeastHeld a, const LeastHeld& b) { return {a.whole - b.whole, a.shared - b.shared}; }
  friend LeastHeld operator+(LeastHeld a, const LeastHeld& b) { return a += b; }
};
/// @param readers  nodes that read it: of several, in several stages, all ranks may have shares
[[nodiscard]] inline LeastHeld least_held(const ParameterProfile& parameter, const Constraints& constraints,
                                          std::size_t readers) {
  const Offload offload = parameter.highest_zero > 0 ? constraints.offloads.back() : Offload::kNone;
  const StageMemory least = parameter_memory(parameter, constraints, 0, 1, offload);
  const int zero = std::min(constraints.zero_levels.back(), parameter.highest_zero);
  LeastHeld held;
  const auto add = [&](Bytes bytes, int level) { (zero >= level ? held.shared : held.whole) += bytes.value(); };
  const auto add_among_all = [&](Bytes bytes) {
    if (zero >= 1 && readers > 1)
      held.whole += bytes.value() / constraints.world;
    else
      add(bytes, 1);
  };
  if (!parameter.trainable) {
    held.whole += parameter.bytes.value() + parameter.copy.value();
    return held;
  }
  if (parameter.copy > Bytes(0) && offload == Offload::kNone) {
    if (zero < 3) held.whole += parameter.copy.value();
    add_among_all(parameter.bytes);
  } else {
    add(parameter.computed_with(), 3);
    add_among_all(least.parameters -
                  parameter.computed_with());  // the optimizer's own, where it is offloaded in one memory
  }
  add(least.gradients, 2);
  add_among_all(least.optimizer);
  return held;
}

namespace detail {

/// Gradients of values of other stages that a stage holds: one in use, and the next one arrives.
[[nodiscard]] constexpr int gradients_arriving(int microbatches) { return microbatches < 2 ? microbatches : 2; }
/// Gradients that a stage made for others: the last one is on its way; the next is in the operators' workspace.
[[nodiscard]] constexpr int gradients_going(int microbatches) { return microbatches < 2 ? 0 : 1; }

/// Values wait on both sides as long as their micro-batch is in flight (one more arrives ahead of its use): at their
/// maker's those that it would not keep anyway, and within a rank one that travels alone is the same memory on both.
inline void add_boundary(std::vector<StageMemory>& memory, const SizedPipeline& sized,
                         const std::vector<std::int64_t>& share, const std::vector<int>& in_flight, int microbatches) {
  const auto& stages = sized.pipeline.stages;
  for (std::size_t c = 0; c < sized.channels.size(); ++c) {
    const auto [from, to] = std::pair(sized.pipeline.channels[c].from, sized.pipeline.channels[c].to);
    const SizedPipeline::ChannelSize& size = sized.channels[c];
    if (from.valid()) {
      const std::size_t s = from.index();
      memory[s].boundary += bytes_at(size.held, share[s]) * std::min(microbatches, in_flight[s]) +
                            bytes_at(size.gradient, share[s]) * gradients_arriving(microbatches);
    }
    const bool within = from.valid() && to.valid() && stages[from.index()] == stages[to.index()];
    if (!to.valid() || (within && size.values == 1)) continue;
    const std::size_t s = to.index();
    memory[s].boundary += bytes_at(size.value, share[s]) * std::min(microbatches, in_flight[s] + 1) +
                          bytes_at(size.gradient, share[s]) * gradients_going(microbatches);
  }
}

}  // namespace detail

/// Micro-batches that each stage holds at the peak, by the laws of schedules with one stage a rank.
[[nodiscard]] inline std::vector<int> in_flight_by_law(const Workload& work, const Staging& staging) {
  std::vector<int> out;
  for (int s = 0; s < staging.stages(); ++s) {
    out.push_back(peak_in_flight(staging.schedule, work.loss_mode, s, staging.stages(), staging.microbatches));
  }
  return out;
}

namespace detail {

/// Segments that are run again keep what enters them, and one of them is rebuilt at a time.
inline void apply_recomputation(std::vector<StageMemory>& memory, const Workload& work, const Staging& staging,
                                const std::vector<std::int64_t>& share, const std::vector<int>& in_flight,
                                const Savings& savings) {
  if (!savings.recomputes()) return;
  const auto pieces = measured_pieces(work, staging, savings.recomputed, share);
  for (std::size_t s = 0; s < memory.size(); ++s) {
    for (const SegmentPiece& piece : pieces[s]) {
      memory[s].saved -= piece.freed() * in_flight[s];
      memory[s].rebuilt = std::max(memory[s].rebuilt, piece.saved);
    }
  }
}

}  // namespace detail

namespace detail {

/// Of stages that share their ranks the one whose turns need most room states it; the others use the same room.
inline void take_turns(std::vector<StageMemory>& memory, const Staging& staging) {
  if (staging.position_of.empty()) return;
  std::map<int, std::size_t> most;  // by position
  for (std::size_t s = 0; s < memory.size(); ++s) {
    std::size_t& of = most.try_emplace(staging.position_of[s], s).first->second;
    if (memory[s].transient() > memory[of].transient()) of = s;
  }
  for (std::size_t s = 0; s < memory.size(); ++s) {
    if (most.at(staging.position_of[s]) != s) memory[s].workspace = memory[s].rebuilt = memory[s].gathered = Bytes(0);
  }
}

}  // namespace detail

/// What libtorch's optimizers make beside the state of a parameter while they step it: as many tensors as its state has,
/// two at most (Adam's denominator).
/// @param largest  of the parameters, at least; of which the rank steps one of so many shares
[[nodiscard]] inline Bytes update_memory(Bytes largest, double optimizer_state_factor, int shares) {
  const auto tensors = static_cast<std::int64_t>(std::min(2.0, std::ceil(optimizer_state_factor)));
  return Bytes((largest.value() + shares - 1) / shares * tensors);
}

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

/// Units of parameters are gathered and summed at a time: as large as a bucket or, from level 2 on, as what the operator
/// reads that reads most; or of one parameter. Under 1 a rank has its share of a sum beside the sum; from 2 on one unit of
/// gradients fills while the one before is on its way; under 3 an operator reads parameters of two units at most, of which
/// one is no larger than a bucket, and the next operator's are on their way. A unit with a parameter that several operators
/// read fills first and is full last, and the others wait for it, while one of the turn before is on its way. The input half
/// of a parted backward, which gives no gradients of parameters, ends with all that it gathered, and the other half begins
/// with units for what was not put off.
struct GatheredUnits {
  Bytes largest{};          ///< trainable bytes that one operator of the stage reads at most
  Bytes of_all{};           ///< likewise, of any stage
  Bytes owned{};            ///< trainable bytes of the stage that are held in shares
  bool read_again = false;  ///< some of them by several operators

  [[nodiscard]] Bytes bytes(int zero, const Staging& staging, int replicas) const {
    if (zero == 0 || replicas < 2) return Bytes(0);
    const Bytes bucket = zero == 1 ? kBucketBytes : std::min(kBucketBytes, of_all);
    const Bytes unit = std::min(owned, largest > kBucketBytes ? largest : bucket);
    if (zero == 1) return Bytes((unit.value() + replicas - 1) / replicas);
    const bool at_once = read_again || !keeps_backwards_whole(staging.schedule);
    const Bytes gradients = std::min(at_once ? owned + unit : unit * 2, owned * staging.microbatches);
    const Bytes parameters = largest > kBucketBytes ? (largest + kBucketBytes) * 2 : unit * 3;
    return zero == 2 ? gradients : gradients + std::min(parameters, owned);
  }
};

}  // namespace detail

/// What the parameters of each stage take, and whatever else does not depend on the batch.
[[nodiscard]] inline std::vector<StageMemory> fixed_memory(const Workload& work, const Constraints& constraints,
                                                           const Staging& staging, int zero,
                                                           Offload offload = Offload::kNone) {
  const auto nodes = nodes_by_stage(staging);
  const detail::Sharing sharing(work, staging, zero);
  Bytes of_all{};
  for (const NodeId node : work.graph.nodes()) of_all = std::max(of_all, work.graph[node].largest_trained);
  std::vector<StageMemory> memory(nodes.size());
  std::vector<std::size_t> counted(work.parameters.size(), nodes.size());  // the last stage in which it was
  // Of a parameter with several readers one's gradient waits for the next one's, and both for their sum.
  std::vector<std::map<std::size_t, Bytes>> waiting(nodes.size());
  for (std::size_t s = 0; s < nodes.size(); ++s) {
    Bytes largest{}, landing{};
    detail::GatheredUnits units{.of_all = of_all};
    for (const NodeId node : nodes[s]) {
      for (const ParameterId parameter : work.graph[node].parameters) {
        const ParameterProfile& profile = work.parameters[parameter.index()];
        if (counted[parameter.index()] == s) {
          if (profile.trainable) waiting[s][parameter.index()] = profile.bytes * 2;
          continue;
        }
        counted[parameter.index()] = s;
        const auto level = sharing.of(parameter, s);
        const StageMemory one = parameter_memory(profile, constraints, level.zero, level.ranks, offload);
        memory[s].host += one.host;
        memory[s].parameters += one.parameters;
        memory[s].gradients += one.gradients;
        memory[s].optimizer += one.optimizer;
        const bool is_shared = profile.trainable && profile.highest_zero > 0;
        if (is_shared && !level.tied) units.owned += profile.bytes;
        if (is_shared && profile.copy > Bytes(0))
          landing += detail::updated_bytes(profile.bytes, level.zero, static_cast<std::size_t>(level.ranks));
      }
      for (const ParameterId parameter : work.graph[node].read_again) {
        const ParameterProfile& profile = work.parameters[parameter.index()];
        if (profile.trainable) waiting[s][parameter.index()] = profile.bytes * 2;
      }
      largest = std::max(largest, work.graph[node].largest_trained);
      memory[s].parameters += work.graph[node].resident;
    }
    for (const auto& [parameter, bytes] : waiting[s]) {
      memory[s].workspace += bytes;
      const bool is_shared = work.parameters[parameter].highest_zero > 0;
      units.read_again = units.read_again || (is_shared && !sharing.of(ParameterId::of(parameter), s).tied);
    }
    memory[s].update = update_memory(largest, constraints.optimizer_state_factor, zero > 0 ? staging.replicas[s] : 1);
    if (offload == Offload::kOptimizer && constraints.host_memory)
      memory[s].host += std::exchange(memory[s].update, std::min(landing, kLandingBytes));
    units.largest = largest;
    memory[s].gathered = units.bytes(zero, staging, staging.replicas[s]);
  }
  return memory;
}

/// Peak memory of each stage's worst rank, with so many micro-batches of each stage in flight.
/// @param savings  nothing by default
/// @param memory   `fixed_memory` of the same staging, ZeRO level and offload
[[nodiscard]] inline std::vector<StageMemory> predict_memory(const Workload& work, const Staging& staging,
                                                             const SizedPipeline& sized, const ShareTable& shares,
                                                             const std::vector<int>& in_flight, const Savings& savings,
                                                             std::vector<StageMemory> memory) {
  const auto nodes = nodes_by_stage(staging);
  std::vector<std::int64_t> share(nodes.size());
  for (std::size_t s = 0; s < nodes.size(); ++s) {
    Bytes saved{}, workspace{};
    share[s] = shares.at(staging.microbatches, staging.replicas[s], staging.stages()).largest;
    const auto& costs = work.node_costs(share[s]);
    for (const NodeId node : nodes[s]) {
      saved += kept_in_flight(costs[node.index()], staging.schedule);
      workspace = std::max(workspace, costs[node.index()].workspace);
    }
    memory[s].saved = saved * in_flight[s];
    memory[s].workspace += workspace;
  }
  detail::add_boundary(memory, sized, share, in_flight, staging.microbatches);
  detail::apply_recomputation(memory, work, staging, share, in_flight, savings);
  detail::take_turns(memory, staging);
  return memory;
}
[[nodiscard]] inline std::vector<StageMemory> predict_memory(const Workload& work, const Constraints& constraints,
                                                             const Staging& staging, const SizedPipeline& sized,
                                                             const ShareTable& shares,
                                                             const std::vector<int>& in_flight,
                                                             const Savings& savings = {}) {
  return predict_memory(work, staging, sized, shares, in_flight, savings,
                        fixed_memory(work, constraints, staging, savings.zero, savings.offload));
}

/// The same under a schedule with one stage a rank.
[[nodiscard]] inline std::vector<StageMemory> predict_memory(const Workload& work, const Constraints& constraints,
                                                             const Staging& staging, const SizedPipeline& sized,
                                                             const ShareTable& shares) {
  return predict_memory(work, constraints, staging, sized, shares, in_flight_by_law(work, staging));
}

/// What one more micro-batch in flight takes: the difference that it makes.
[[nodiscard]] inline HeldByMicrobatch held_by_microbatch(const Workload& work, const Staging& staging,
                                                         const SizedPipeline& sized, const ShareTable& shares,
                                                         const Savings& savings = {}) {
  const std::vector<StageMemory> fixed(staging.replicas.size());  // does not change
  const auto total = [&](int microbatches) {
    const std::vector<int> in_flight(staging.replicas.size(), microbatches);
    return predict_memory(work, staging, sized, shares, in_flight, savings, fixed);
  };
  const auto none = total(0), one = total(1);
  const auto but_one = total(staging.microbatches - 1), all = total(staging.microbatches);
  HeldByMicrobatch out;
  for (std::size_t s = 0; s < none.size(); ++s) {
    out.next.push_back(one[s].total() - none[s].total());
    out.last.push_back(all[s].total() - but_one[s].total());
  }
  return out;
}

/// Peak bytes of the rank that needs most: stages that share it are added.
/// @param ranks  [stage][replica]
/// @param bytes_of  peak bytes of a stage, by its position in `ranks`
template <class BytesOf>
[[nodiscard]] Bytes peak_of_ranks(const std::vector<std::vector<Rank>>& ranks, const BytesOf& bytes_of) {
  std::vector<Bytes> of_rank;
  for (std::size_t s = 0; s < ranks.size(); ++s) {
    for (const Rank rank : ranks[s]) {
      if (rank.index() >= of_rank.size()) of_rank.resize(rank.index() + 1);
      of_rank[rank.index()] += bytes_of(s);
    }
  }
  return of_rank.empty() ? Bytes{} : *std::max_element(of_rank.begin(), of_rank.end());
}

}  // namespace autopar
