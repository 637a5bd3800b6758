#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <autopar/cost/model_profile.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar::detail {

/// Finds why a plan does not divide a model into stages that its schedule could run, by definitions alone. A fault
/// begins with the name of the plan's field.
class ShapeCheck {
 public:
  ShapeCheck(const ModelProfile& model, const Plan& plan)
      : model_(model), plan_(plan), stage_of_(model.graph.node_count(), -1) {}

  /// The first fault; empty if there is none.
  [[nodiscard]] std::string run() && {
    for (const auto part :
         {&ShapeCheck::of_numbers, &ShapeCheck::of_stages, &ShapeCheck::of_edges, &ShapeCheck::of_lists,
          &ShapeCheck::of_ranks, &ShapeCheck::of_shards, &ShapeCheck::of_segments, &ShapeCheck::of_orders}) {
      if (std::string fault = (this->*part)(); !fault.empty()) return fault;
    }
    return "";
  }

 private:
  template <class T>
  static std::string number(T value) {
    return std::to_string(value);
  }
  static std::string name_of(std::size_t stage) { return "stage " + number(stage); }
  static std::string field(std::size_t stage, const char* name) {
    return "stages[" + number(stage) + "]." + name + ": ";
  }

  std::string of_numbers() {
    if (plan_.world < 1) return "world: there are " + number(plan_.world) + " ranks";
    if (plan_.microbatches < 1) return "microbatches: there are " + number(plan_.microbatches);
    if (plan_.zero < 0 || plan_.zero > 3) return "zero: ZeRO has no level " + number(plan_.zero);
    if (!plan_.buckets.is_valid()) return "bucket_bytes: buckets have " + number(plan_.buckets.size.value());
    if (plan_.offload == Offload::kNone && plan_.host_memory != Bytes(0))
      return "host_memory_bytes: it counts on host memory, but offloads nothing";
    return plan_.stages.empty() ? "stages: there is none" : "";
  }

  std::string of_stages() {
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      const StagePlan& stage = plan_.stages[s];
      if (stage.mesh.empty()) return field(s, "ranks") + name_of(s) + " has no rank";
      if (stage.atoms.empty()) return field(s, "atoms") + name_of(s) + " has no atom";
      const std::string atoms = field(s, "atoms");
      for (const NodeId atom : stage.atoms) {
        if (!atom.valid() || atom.index() >= stage_of_.size())
          return atoms + name_of(s) + " has atom " + number(atom.value()) + ", which the model has not";
        if (stage_of_[atom.index()] == static_cast<int>(s))
          return atoms + "atom " + number(atom.value()) + " is there twice";
        if (stage_of_[atom.index()] >= 0) return atoms + "atom " + number(atom.value()) + " is in two stages";
        stage_of_[atom.index()] = static_cast<int>(s);
        const OpProfile& op = model_.graph[atom];
        if (op.whole_batch && stage.mesh.replicas() > 1)
          return field(s, "ranks") + name_of(s) + " has replicas, but " + op.name + " mixes samples";
        if ((op.whole_batch || op.totals > Bytes(0)) && plan_.microbatches > 1)
          return "microbatches: " + op.name + " needs the whole batch, but there are several micro-batches";
      }
      if (!std::is_sorted(stage.atoms.begin(), stage.atoms.end())) return atoms + "they are not ascending";
    }
    const auto left = std::find(stage_of_.begin(), stage_of_.end(), -1);
    return left == stage_of_.end() ? ""
                                   : "stages[].atoms: atom " + number(left - stage_of_.begin()) + " is in no stage";
  }

  std::string of_edges() {
    for (const EdgeId edge : model_.graph.edges()) {
      const int from = stage_of_[model_.graph.source(edge).index()], to = stage_of_[model_.graph.target(edge).index()];
      if (from > to)
        return field(static_cast<std::size_t>(from), "atoms") + "a value goes from stage " + number(from) +
               " back to stage " + number(to);
    }
    return "";
  }

  /// Checks what follows from the atoms of a stage.
  std::string of_lists() {
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      const StagePlan& stage = plan_.stages[s];
      std::vector<std::int32_t> ops;
      std::vector<ParameterId> read;
      for (const NodeId atom : stage.atoms) {
        const OpProfile& op = model_.graph[atom];
        ops.insert(ops.end(), op.ops.begin(), op.ops.end());
        read.insert(read.end(), op.parameters.begin(), op.parameters.end());
      }
      std::sort(ops.begin(), ops.end());
      std::sort(read.begin(), read.end());
      read.erase(std::unique(read.begin(), read.end()), read.end());
      if (stage.ops != ops) return field(s, "ops") + name_of(s) + "'s operators are not those of its atoms";
      if (stage.parameters != read)
        return field(s, "parameters") + name_of(s) + "'s parameters are not those that its atoms read";
      std::int64_t elements = 0, bytes = 0;
      for (const ParameterId parameter : read) {
        elements += model_.parameters[parameter.index()].elements;
        bytes += model_.parameters[parameter.index()].bytes.value();
      }
      if (stage.parameter_bytes.value() != bytes)
        return field(s, "parameter_bytes") + name_of(s) + "'s parameter bytes are " + number(bytes);
      if (stage.parameter_elements != elements)
        return field(s, "parameter_elements") + name_of(s) + "'s parameter elements are " + number(elements);
    }
    return "";
  }

  /// Each stage has its own ranks, or shares all of them with others.
  std::string of_ranks() {
    const bool may_share = traits_of(plan_.schedule).layout != StageLayout::kStraight;
    std::vector<int> place_of_rank(static_cast<std::size_t>(plan_.world), -1);
    std::vector<std::size_t> place_of_stage, first;  // numbered by their first stages
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      const auto& ranks = plan_.stages[s].mesh.ranks();
      const auto known = std::find_if(first.begin(), first.end(), [&](std::size_t other) {
        return plan_.stages[other].mesh.ranks() == plan_.stages[s].mesh.ranks();
      });
      place_of_stage.push_back(static_cast<std::size_t>(known - first.begin()));
      if (known != first.end()) {
        if (!may_share) return field(s, "ranks") + "rank " + number(ranks.front().value()) + " runs two stages";
        continue;
      }
      for (const Rank rank : ranks) {
        if (!rank.valid() || rank.value() >= plan_.world)
          return field(s, "ranks") + name_of(s) + " has a rank outside the world";
        int& place = place_of_rank[rank.index()];
        if (place >= 0) {
          return field(s, "ranks") + "rank " + number(rank.value()) + " runs two stages" +
                 (may_share ? " that do not have all their ranks in common, in one order" : "");
        }
        place = static_cast<int>(first.size());
      }
      first.push_back(s);
    }
    return of_places(place_of_stage, first.size());
  }

  [[nodiscard]] std::string of_places(const std::vector<std::size_t>& place_of_stage, std::size_t places) const {
    const std::size_t stages = place_of_stage.size();
    const StageLayout layout = traits_of(plan_.schedule).layout;
    const std::string schedule(to_string(plan_.schedule));
    for (std::size_t s = 0; s < stages; ++s) {
      if (layout == StageLayout::kLooped && (stages % places != 0 || place_of_stage[s] != s % places))
        return field(s, "ranks") + name_of(s) + " is not where " + schedule + " stages come round";
      if (layout == StageLayout::kVShaped && (stages != 2 * places || place_of_stage[s] != std::min(s, stages - 1 - s)))
        return field(s, "ranks") + name_of(s) + " is not where " + schedule + "'s stages go to the last ranks and back";
    }
    return "";
  }

  /// Only replicas of a shard sum its gradients: no other stage reads a trained parameter of a stage with tensor
  /// shards.
  std::string of_shards() {
    std::map<ParameterId, std::size_t> reader;
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      const bool sharded = plan_.stages[s].mesh.tensor() > 1;
      for (const ParameterId parameter : plan_.stages[s].parameters) {
        if (!model_.parameters[parameter.index()].trainable) continue;
        const auto [known, is_first] = reader.try_emplace(parameter, s);
        if (is_first || !(sharded || plan_.stages[known->second].mesh.tensor() > 1)) continue;
        return field(s, "tensor") + name_of(s) + " shares parameter " + number(parameter.value()) + " with " +
               name_of(known->second) + ", but tensor shards run one of them";
      }
    }
    return "";
  }

  std::string of_segments() {
    std::vector<bool> taken(stage_of_.size(), false);
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      for (const auto& segment : plan_.stages[s].recomputed) {
        const std::string name = field(s, "recomputed") + "a segment that " + name_of(s) + " recomputes";
        if (segment.empty()) return name + " is empty";
        for (const NodeId atom : segment) {
          if (!atom.valid() || atom.index() >= stage_of_.size() || stage_of_[atom.index()] != static_cast<int>(s))
            return name + " has atom " + number(atom.value()) + ", which is not in the stage";
          if (taken[atom.index()]) return name + " has atom " + number(atom.value()) + ", which is in one already";
          if (model_.graph[atom].totals > Bytes(0))
            return name + " has " + model_.graph[atom].name + ", whose totals replicas add up once";
          taken[atom.index()] = true;
        }
      }
    }
    return "";
  }

  std::string of_orders() {
    if (!traits_of(plan_.schedule).orders_in_plan)
      return plan_.orders.empty() ? "" : "orders: it states some, but its schedule has its own";
    if (plan_.orders.size() != static_cast<std::size_t>(plan_.world))
      return "orders: it states orders of " + number(plan_.orders.size()) + " ranks for a world of " +
             number(plan_.world);
    std::vector<std::vector<std::size_t>> stages_on(plan_.orders.size());
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      for (const Rank rank : plan_.stages[s].mesh.ranks()) stages_on[rank.index()].push_back(s);
    }
    for (std::size_t r = 0; r < plan_.orders.size(); ++r) {
      if (std::string fault = of_order(plan_.orders[r], stages_on[r]); !fault.empty())
        return "orders[" + number(r) + "]: the order of rank " + number(r) + " " + fault;
    }
    return "";
  }

  /// Each micro-batch of each stage: forward, then backward, either whole or its inputs' part before its weights' part.
  [[nodiscard]] std::string of_order(const std::vector<ComputeAction>& computes,
                                     const std::vector<std::size_t>& stages) const {
    enum class Done { kNothing, kForward, kInputs, kAll };
    std::map<std::pair<std::size_t, int>, Done> done;
    std::int64_t whole = 0;
    for (const ComputeAction compute : computes) {
      const bool own = compute.stage.valid() && std::binary_search(stages.begin(), stages.end(), compute.stage.index());
      if (!own || compute.microbatch < 0 || compute.microbatch >= plan_.microbatches) {
        return "has stage " + number(compute.stage.value()) + ", micro-batch " + number(compute.microbatch) +
               ", which it has not to run";
      }
      Done& state = done[{compute.stage.index(), compute.microbatch}];
      const Done before = state;
      bool fits = false;
      switch (compute.kind) {
        case ActionKind::kForward:
          fits = before == Done::kNothing, state = Done::kForward;
          break;
        case ActionKind::kBackward:
          fits = before == Done::kForward, state = Done::kAll;
          break;
        case ActionKind::kBackwardInput:
          fits = before == Done::kForward, state = Done::kInputs;
          break;
        case ActionKind::kBackwardWeight:
          fits = before == Done::kInputs, state = Done::kAll;
          break;
        default:
          break;
      }
      if (!fits) {
        return "does not have stage " + number(compute.stage.value()) + ", micro-batch " + number(compute.microbatch) +
               " once forward and then once backward";
      }
      whole += state == Done::kAll ? 1 : 0;
    }
    const auto all = static_cast<std::int64_t>(stages.size()) * plan_.microbatches;
    return whole == all ? "" : "leaves out " + number(all - whole) + " backwards";
  }

  const ModelProfile& model_;
  const Plan& plan_;
  std::vector<int> stage_of_;
};

/// Why a plan does not divide a model into stages that its schedule could run: wrong numbers, atoms, ranks, segments or
/// orders. Empty if it does. Whether orders wait for each other shows when they are simulated.
[[nodiscard]] inline std::string fault_in_shape(const ModelProfile& model, const Plan& plan) {
  return ShapeCheck(model, plan).run();
}

}  // namespace autopar::detail
