#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <autopar/plan/memory/in_flight.hpp>
#include <autopar/plan/memory/microbatch_memory.hpp>
#include <autopar/plan/memory/zero_memory.hpp>
#include <autopar/plan/request.hpp>

namespace autopar {

namespace detail {

/// Gradients from other stages that a stage holds for its values: one in use, while the next one arrives.
[[nodiscard]] constexpr int gradients_arriving(int microbatches) { return microbatches < 2 ? microbatches : 2; }
/// Gradients that a stage holds for other stages: the last one is being sent, the next one is in the operators'
/// workspace.
[[nodiscard]] constexpr int gradients_going(int microbatches) { return microbatches < 2 ? 0 : 1; }

/// Adds the values and gradients between stages. The maker of a value holds it until the micro-batch's backward, unless
/// it keeps the value anyway. A reader holds it until parameter gradients are made, while one more arrives ahead of its
/// use. Within a rank a value that is alone in its message is the same memory on both sides.
inline void add_boundary(std::vector<StageMemory>& memory, const SizedStages& all,
                         const std::vector<InFlight>& in_flight) {
  const SizedPipeline& sized = all.sized;
  const auto& stages = sized.pipeline.stages;
  const auto& slice = all.slice;
  const int microbatches = all.staging.microbatches;
  std::vector<Bytes> made(memory.size()), read(memory.size());  // of one micro-batch
  for (std::size_t c = 0; c < sized.channels.size(); ++c) {
    const auto [from, to] = std::pair(sized.pipeline.channels[c].from, sized.pipeline.channels[c].to);
    const SizedPipeline::ChannelSize& size = sized.channels[c];
    if (from.valid()) {
      const std::size_t s = from.index();
      made[s] += bytes_at(size.held, slice[s]);
      memory[s].boundary += bytes_at(size.gradient, slice[s]) * gradients_arriving(microbatches);
    }
    const bool within = from.valid() && to.valid() && stages[from.index()] == stages[to.index()];
    if (!to.valid() || (within && size.values == 1)) continue;
    const std::size_t s = to.index();
    read[s] += bytes_at(size.value, slice[s]);
    memory[s].boundary += bytes_at(size.gradient, slice[s]) * gradients_going(microbatches);
  }
  for (std::size_t s = 0; s < memory.size(); ++s) {
    const InFlight& now = in_flight[s];
    const MicrobatchSamples& samples = all.samples[s];
    memory[s].boundary += samples.held(made[s], now.whole) + samples.held(read[s], samples.arrived(now));
  }
}

/// The results of a rank's samples that a call returns. They are copies, wherever they were made, and the caller has
/// them until their backward is over.
[[nodiscard]] inline Bytes results_of(const Workload& work, std::int64_t samples) {
  Bytes sum{};
  std::set<std::int32_t> values;
  for (const OutputProfile& output : work.outputs) {
    if (output.bytes.per_sample != 0 && values.insert(output.value).second) sum += bytes_at(output.bytes, samples);
  }
  return sum;
}

/// Stages that share ranks work one at a time. The one whose compute actions need most memory states it; the others use
/// the same memory. Updates follow all compute actions, one parameter at a time. The stage with the largest update
/// states how much that is more than what the compute actions take, and what gradients of all stages are still to come
/// when these take most.
/// @param stages  of one position
inline void take_turns(std::vector<StageMemory>& stages) {
  const auto working = std::ranges::max_element(stages, {}, &StageMemory::transient);
  const auto summing = std::ranges::max_element(stages, {}, &StageMemory::summed);
  const auto updating = std::ranges::max_element(stages, {}, &StageMemory::update);
  for (auto stage = stages.begin(); stage != stages.end(); ++stage) {
    if (stage != working) stage->workspace = stage->gathered = Bytes(0);
    if (stage != summing) stage->summed = Bytes(0);
    if (stage == updating) continue;
    updating->to_come += std::exchange(stage->to_come, Bytes(0));
    stage->update = Bytes(0);
    updating->update -= stage->running();
  }
}

/// Likewise for all positions.
inline void take_turns(std::vector<StageMemory>& memory, const Staging& staging) {
  if (staging.position_of.empty()) return;
  for (const auto& stages : stages_of_positions(staging)) {
    std::vector<StageMemory> own;
    for (const std::size_t s : stages) own.push_back(memory[s]);
    take_turns(own);
    for (std::size_t i = 0; i < stages.size(); ++i) memory[stages[i]] = own[i];
  }
}

/// Adds what compute actions of a stage take with so many micro-batches in flight. Units of gradients are there no
/// sooner than their first gradient.
inline void add_microbatches(StageMemory& memory, const MicrobatchMemory& compute, const MicrobatchSamples& samples,
                             const InFlight& in_flight) {
  memory.saved = samples.held(compute.kept, in_flight.whole) + samples.held(compute.deferred_weight, in_flight.waiting);
  memory.workspace += compute.work;
  if (compute.to_sum > Bytes(0)) {
    const Bytes at_the_end = compute.to_sum - compute.kept, most = std::max(compute.summing, at_the_end);
    memory.gathered = std::min(memory.gathered, most - compute.work);
  }
  memory.to_come = Bytes(0);
  if (in_flight.gradients == FirstGradients::kNone) memory.to_come = memory.first_made;
  if (in_flight.gradients == FirstGradients::kComing) memory.to_come = memory.first_made - memory.coming;
}

/// The memory of one stage as more and more of its segments are recomputed.
class RecomputedStage {
 public:
  /// @param fixed  `fixed_memory` of the stage @pre the arguments outlive it
  RecomputedStage(const SizedStages& stages, std::size_t stage, const InFlight& in_flight, const StageMemory& fixed)
      : compute_(stages.nodes[stage], stages.costs(stage), stages.staging.schedule, nodes_apart(stages, stage, fixed),
                 gathered_by_nodes(stages.work, stages.nodes[stage], fixed.unsharded)),
        samples_(&stages.samples[stage]),
        in_flight_(in_flight),
        fixed_(&fixed) {
    if (fixed.unsharded.computed_with > Bytes(0)) regathered_.emplace(stages.work, stages.nodes[stage]);
  }

  void recompute(const SegmentPiece& piece) {
    const Bytes kept = regathered_ ? regathered_->of(piece.nodes).kept : Bytes(0);
    compute_.recompute(piece, kept, fixed_->unsharded.computed_with);
  }
  /// Sets what recomputation changes.
  void apply_to(StageMemory& memory) const {
    memory.workspace = fixed_->workspace;
    memory.gathered = fixed_->gathered;
    add_microbatches(memory, compute_.memory(), *samples_, in_flight_);
  }

 private:
  StageMicrobatch compute_;
  const MicrobatchSamples* samples_;
  InFlight in_flight_;
  const StageMemory* fixed_;
  std::optional<Regathered> regathered_;  // under ZeRO 3
};

/// Parameters whose gradients a stage's first backward makes: no other stage reads them. If backwards are split, second
/// halves make them, where all nodes of the stage that read the parameter defer something.
[[nodiscard]] inline std::set<ParameterId> first_made(const Workload& work, const Staging& staging,
                                                      const Sharing& sharing, const std::vector<NodeId>& stage) {
  const bool is_whole = keeps_backwards_whole(staging.schedule);
  const auto& costs = work.node_costs(1);
  std::set<ParameterId> late, early;
  for (const NodeId node : stage) {
    const bool defers = is_whole || costs[node.index()].deferred_weight > Bytes(0);
    for (const ParameterId parameter : work.graph[node].parameters) {
      const bool counts = work.parameters[parameter.index()].trainable && !sharing.is_tied(parameter);
      (defers && counts ? late : early).insert(parameter);
    }
  }
  for (const ParameterId parameter : early) late.erase(parameter);
  return late;
}

[[nodiscard]] inline Bytes bytes_in_all(const Workload& work, const std::set<ParameterId>& parameters) {
  Bytes sum{};
  for (const ParameterId parameter : parameters) sum += work.parameters[parameter.index()].bytes;
  return sum;
}

/// What is there of its gradients, at most, while a stage's first second half makes them, less what goes meanwhile: one
/// node after the other, in reverse order, makes gradients and then frees what it deferred of the smallest micro-batch.
/// A backward that is whole or recomputed frees other memory meanwhile, which is not counted off.
/// @param made  bytes of `first_made`
[[nodiscard]] inline Bytes coming(const SizedStages& stages, std::size_t stage, Bytes made, bool is_recomputed) {
  if (made == Bytes(0) || is_recomputed || keeps_backwards_whole(stages.staging.schedule)) return made;
  const auto& nodes = stages.nodes[stage];
  const MicrobatchSamples& samples = stages.samples[stage];
  auto to_make = first_made(stages.work, stages.staging, Sharing(stages.work, stages.staging, 0, true), nodes);
  Bytes now{}, most{};
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    for (const ParameterId parameter : stages.work.graph[*node].parameters) {
      if (to_make.erase(parameter) > 0) now += stages.work.parameters[parameter.index()].bytes;
    }
    most = std::max(most, now);
    now -= Bytes(stages.costs(stage)[node->index()].deferred_weight.value() * samples.least() / samples.largest());
  }
  return most;
}

/// Memory if each stage has its ranks to itself.
/// @param fixed       `fixed_memory`
/// @param recomputed  [stage] segments; empty = none
[[nodiscard]] inline std::vector<StageMemory> memory_apart(const SizedStages& stages,
                                                           const std::vector<InFlight>& in_flight,
                                                           const std::vector<StageMemory>& fixed,
                                                           const StageSegments& recomputed = {}) {
  const ScheduleKind schedule = stages.staging.schedule;
  const auto pieces = measured_pieces(stages.work, stages.staging, recomputed, stages.slice);
  std::vector<StageMemory> memory = fixed;
  for (std::size_t s = 0; s < memory.size(); ++s) {
    const bool is_recomputed = s < pieces.size() && !pieces[s].empty();
    memory[s].coming = coming(stages, s, fixed[s].first_made, is_recomputed);
    if (is_recomputed) {
      RecomputedStage stage(stages, s, in_flight[s], fixed[s]);
      for (const SegmentPiece& piece : pieces[s]) stage.recompute(piece);
      stage.apply_to(memory[s]);
      continue;
    }
    MicrobatchMemory compute;
    for (const auto& node : nodes_apart(stages, s, fixed[s])) compute = compute.with(node, schedule);
    add_microbatches(memory[s], compute, stages.samples[s], in_flight[s]);
  }
  add_boundary(memory, stages, in_flight);
  return memory;
}

}  // namespace detail

/// The memory of each stage that depends on neither micro-batches in flight nor recomputation. That is parameters,
/// gradients, state, results, and what a rank holds beside its stages.
[[nodiscard]] inline std::vector<StageMemory> fixed_memory(const Workload& work, const Constraints& constraints,
                                                           const Staging& staging, int zero,
                                                           Offload offload = Offload::kNone) {
  const auto nodes = nodes_by_stage(staging);
  const bool sums = constraints.buckets.reduce_dtype != ReduceDtype::kFp32;
  const bool may_follow_order = !staging.position_of.empty() || traits_of(staging.schedule).orders_in_plan;
  const detail::Sharing sharing(work, staging, zero, sums || may_follow_order);
  const Bytes of_all = largest_trained(work);
  const bool made_once = zero == 0 && offload == Offload::kNone && constraints.gradient_copies == 1;
  const std::int64_t samples = constraints.largest_local_batch();
  const Bytes beside = detail::results_of(work, samples) + detail::bytes_at(work.held_beside, samples);
  std::vector<StageMemory> memory(nodes.size());
  std::vector<std::size_t> counted(work.parameters.size(), nodes.size());  // the last stage in which it was
  std::set<std::pair<std::size_t, int>> there;  // (parameter, position): ranks with several stages hold it once
  for (std::size_t s = 0; s < nodes.size(); ++s) {
    Bytes largest{}, landing{}, copies{};
    std::set<ParameterId> waiting;  // with several readers: one gradient waits for the next, and both for their sum
    detail::GatheredUnits units{.of_all = of_all, .buckets = constraints.buckets};
    for (const NodeId node : nodes[s]) {
      for (const ParameterId parameter : work.graph[node].parameters) {
        const ParameterProfile& profile = work.parameters[parameter.index()];
        if (std::exchange(counted[parameter.index()], s) == s) {
          waiting.insert(parameter);
          continue;
        }
        if (!staging.position_of.empty() && !there.emplace(parameter.index(), staging.position_of[s]).second) continue;
        const auto level = sharing.of(parameter, s);
        const StageMemory one = parameter_memory(profile, constraints, level.zero, level.ranks, offload);
        memory[s].host += one.host;
        memory[s].parameters += one.parameters;
        memory[s].gradients += one.gradients;
        memory[s].optimizer += one.optimizer;
        if (!profile.trainable) continue;
        if (profile.highest_zero > 0 && !level.tied) units.add(profile);
        if (constraints.buckets.rounds(profile.bytes, profile.elements) && sharing.is_summed(parameter, s))
          (std::min(level.zero, profile.highest_zero) > 0 ? units.rounded_units : units.rounded_whole) += profile.bytes;
        if (profile.highest_zero > 0 && profile.copy > Bytes(0))
          landing += detail::updated_bytes(profile.bytes, level.zero, level.ranks);
        if (profile.copy_by_call) copies += profile.copy;
      }
      waiting.insert(work.graph[node].read_by_several.begin(), work.graph[node].read_by_several.end());
      largest = std::max(largest, work.graph[node].largest_trained.of_all);
      memory[s].parameters += work.graph[node].resident;
    }
    for (const ParameterId parameter : waiting) {
      const ParameterProfile& profile = work.parameters[parameter.index()];
      if (!profile.trainable) continue;
      memory[s].workspace += profile.bytes * 2;
      if (profile.highest_zero > 0 && !sharing.of(parameter, s).tied) units.read_by_several(profile, zero);
    }
    if (made_once && follows_order(staging, s))
      memory[s].first_made = detail::bytes_in_all(work, detail::first_made(work, staging, sharing, nodes[s]));
    memory[s].workspace += beside;
    memory[s].update = update_memory(largest, constraints.optimizer_state_factor, zero > 0 ? staging.replicas[s] : 1);
    if (offload == Offload::kOptimizer && constraints.host_memory)
      memory[s].host += std::exchange(memory[s].update, std::min(landing, kLandingBytes));
    units.largest = largest;
    units.add_to(memory[s], zero, staging, staging.replicas[s]);
    memory[s].copies_go = zero == 0 && offload == Offload::kNone;
    if (memory[s].copies_go && gradients_follow_activations(staging, s)) memory[s].update -= copies;
  }
  return memory;
}

/// Peak memory of each stage's worst rank, with so many micro-batches of each stage in flight.
/// @param fixed  `fixed_memory` of the same staging, ZeRO level and offload
[[nodiscard]] inline std::vector<StageMemory> predict_memory(const SizedStages& stages,
                                                             const std::vector<InFlight>& in_flight,
                                                             const MemoryOptimizations& optimizations,
                                                             const std::vector<StageMemory>& fixed) {
  auto memory = detail::memory_apart(stages, in_flight, fixed, optimizations.recomputed);
  detail::take_turns(memory, stages.staging);
  return memory;
}

/// Bytes for each micro-batch in flight: the difference that one makes to the prediction.
/// @param fixed  see `predict_memory`
[[nodiscard]] inline HeldByMicrobatch held_by_microbatch(const SizedStages& stages,
                                                         const MemoryOptimizations& optimizations,
                                                         const std::vector<StageMemory>& fixed) {
  const std::vector<StageMemory> nothing(stages.nodes.size());  // differences do not depend on it
  SizedStages alike = stages;
  alike.samples.assign(nothing.size(), MicrobatchSamples(stages.staging.microbatches));
  const auto memory = [&](InFlight each) {
    return predict_memory(alike, std::vector(nothing.size(), each), optimizations, nothing);
  };
  const auto none = memory({}), whole = memory({1, 0}), waiting = memory({0, 1});
  HeldByMicrobatch out;
  out.samples = stages.samples;
  const bool splits = !keeps_backwards_whole(stages.staging.schedule);
  for (std::size_t s = 0; s < none.size(); ++s) {
    const bool is_recomputed = s < optimizations.recomputed.size() && !optimizations.recomputed[s].empty();
    out.gradients.push_back(fixed[s].first_made);
    out.coming.push_back(detail::coming(stages, s, fixed[s].first_made, is_recomputed));
    out.defers.push_back(splits && !is_recomputed);
    out.whole.push_back(whole[s].saved + whole[s].boundary - waiting[s].boundary);
    out.waiting.push_back(waiting[s].saved);
    out.read.push_back(waiting[s].boundary - none[s].boundary);
  }
  return out;
}

}  // namespace autopar
