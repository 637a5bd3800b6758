#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <autopar/cost/model_profile.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar::verify {

class ShapeCheck {
 public:
  ShapeCheck(const ModelProfile& model, const Plan& plan)
      : model_(model), plan_(plan), stage_of_(model.graph.node_count(), -1), recomputed_(stage_of_.size(), false) {}

  [[nodiscard]] std::string run() && {
    std::string fault = of_plan();
    for (const auto part : {&ShapeCheck::of_atoms, &ShapeCheck::of_edges, &ShapeCheck::of_lists, &ShapeCheck::of_ranks,
                            &ShapeCheck::of_places, &ShapeCheck::of_shards, &ShapeCheck::of_segments}) {
      for (std::size_t s = 0; s < plan_.stages.size() && fault.empty(); ++s) fault = (this->*part)(s, plan_.stages[s]);
    }
    return fault;
  }

 private:
  template <class T>
  static std::string number(T value) {
    return std::to_string(value);
  }
  static std::string field(std::size_t stage, const char* name) {
    return "stages[" + number(stage) + "]." + name + ": ";
  }

  std::string of_plan() const {
    const std::string schedule(to_string(plan_.schedule));
    if (plan_.world < 1) return "world: there are " + number(plan_.world) + " ranks";
    if (plan_.microbatches < 1) return "microbatches: there are " + number(plan_.microbatches);
    const auto lanes = static_cast<std::int64_t>(plan_.world) + static_cast<std::int64_t>(plan_.stages.size());
    if (lanes * plan_.microbatches > kMostComputes)
      return "microbatches: " + number(plan_.microbatches) + " on " + number(plan_.world) +
             " ranks are too many to check";
    if (plan_.batch < 0 || plan_.batch > kMostSamples) return "batch: there are " + number(plan_.batch) + " samples";
    if (plan_.zero < 0 || plan_.zero > 3) return "zero: ZeRO has no level " + number(plan_.zero);
    if (!plan_.buckets.is_valid()) return "bucket_bytes: buckets have " + number(plan_.buckets.size.value());
    if (plan_.offload == Offload::kNone && plan_.host_memory != Bytes(0))
      return "host_memory_bytes: it counts on host memory, but offloads nothing";
    if (!plan_.orders.empty() && !traits_of(plan_.schedule).orders_in_plan)
      return "orders: the plan has some, but " + schedule + " has its own";
    return plan_.stages.empty() ? "stages: there is none" : "";
  }

  std::string of_atoms(std::size_t s, const StagePlan& stage) {
    const std::string atoms = field(s, "atoms");
    if (stage.mesh.empty()) return field(s, "ranks") + "the stage has no rank";
    if (stage.atoms.empty()) return atoms + "the stage has no atom";
    for (const NodeId atom : stage.atoms) {
      if (!atom.valid() || atom.index() >= stage_of_.size())
        return atoms + "the model has no atom " + number(atom.value());
      if (std::exchange(stage_of_[atom.index()], static_cast<int>(s)) >= 0)
        return atoms + "atom " + number(atom.value()) + " is listed twice, or is in two stages";
      const OpProfile& op = model_.graph[atom];
      if (op.whole_batch && stage.mesh.replicas() > 1)
        return field(s, "ranks") + "the stage has replicas, but " + op.name + " mixes samples";
      if ((op.whole_batch || op.totals > Bytes(0)) && plan_.microbatches > 1)
        return "microbatches: " + op.name + " needs the whole batch, but there are several micro-batches";
    }
    return std::ranges::is_sorted(stage.atoms) ? "" : atoms + "they are not ascending";
  }

  std::string of_edges(std::size_t s, const StagePlan& stage) {
    if (const auto left = std::ranges::find(stage_of_, -1); s == 0 && left != stage_of_.end())
      return "stages[].atoms: atom " + number(left - stage_of_.begin()) + " is in no stage";
    for (const NodeId atom : stage.atoms) {
      for (const EdgeId edge : model_.graph.out_edges(atom)) {
        const int to = stage_of_[model_.graph.target(edge).index()];
        if (to < static_cast<int>(s)) return field(s, "atoms") + "a value goes back to stage " + number(to);
      }
    }
    return "";
  }

  /// Checks what follows from the atoms of a stage.
  std::string of_lists(std::size_t s, const StagePlan& stage) {
    std::vector<std::int32_t> ops;
    std::vector<ParameterId> read;
    for (const NodeId atom : stage.atoms) {
      const OpProfile& op = model_.graph[atom];
      ops.insert(ops.end(), op.ops.begin(), op.ops.end());
      read.insert(read.end(), op.parameters.begin(), op.parameters.end());
    }
    std::ranges::sort(ops);
    std::ranges::sort(read);
    read.erase(std::unique(read.begin(), read.end()), read.end());
    if (stage.ops != ops) return field(s, "ops") + "they are not those of its atoms";
    if (stage.parameters != read) return field(s, "parameters") + "they are not those that its atoms read";
    std::int64_t elements = 0;
    Bytes bytes{};
    for (const ParameterId parameter : read) {
      elements += model_.parameters[parameter.index()].elements;
      bytes += model_.parameters[parameter.index()].bytes;
    }
    if (stage.parameter_bytes != bytes) return field(s, "parameter_bytes") + "they are " + number(bytes.value());
    return stage.parameter_elements == elements ? "" : field(s, "parameter_elements") + "they are " + number(elements);
  }

  /// Each stage has its own ranks or, where the schedule allows it, shares all of them with others. Which stages share
  /// ranks is up to the schedule.
  std::string of_ranks(std::size_t s, const StagePlan& stage) {
    const bool may_share = traits_of(plan_.schedule).layout != StageLayout::kStraight;
    for (const Rank rank : stage.mesh.ranks()) {
      const std::string name = field(s, "ranks") + "rank " + number(rank.value());
      if (!rank.valid() || rank.value() >= plan_.world) return name + " is outside the world";
      const auto [known, is_first] = stage_on_.try_emplace(rank, s);
      if (is_first ||
          (may_share && known->second < s && plan_.stages[known->second].mesh.ranks() == stage.mesh.ranks()))
        continue;
      return name + " runs two stages" + (may_share ? " that do not have the same ranks in the same order" : "");
    }
    return "";
  }

  /// Stages that share ranks are where the schedule has them.
  std::string of_places(std::size_t s, const StagePlan& stage) {
    const auto first = [&](const StagePlan& one) { return stage_on_.at(one.mesh.ranks().front()); };
    std::size_t places = 0;
    for (std::size_t t = 0; t < plan_.stages.size(); ++t) places += first(plan_.stages[t]) == t ? 1 : 0;
    const StageLayout layout = traits_of(plan_.schedule).layout;
    const std::size_t stages = plan_.stages.size(), mirrored = std::min(s, stages - 1 - s);
    const bool loops = stages % places == 0 && first(stage) == s % places;
    const bool returns = stages == 2 * places && first(stage) == mirrored;
    if ((layout != StageLayout::kLooped || loops) && (layout != StageLayout::kVShaped || returns)) return "";
    return field(s, "ranks") + "stage " + number(s) + " is not where " + std::string(to_string(plan_.schedule)) +
           " has it: stages " +
           (layout == StageLayout::kLooped ? "pass all positions again and again" : "go to the last position and back");
  }

  /// Only replicas of a shard sum its gradients: no other stage reads a trained parameter of a stage with tensor
  /// shards.
  std::string of_shards(std::size_t s, const StagePlan& stage) {
    for (const ParameterId parameter : stage.parameters) {
      if (!model_.parameters[parameter.index()].trainable) continue;
      const std::size_t other = reader_.try_emplace(parameter, s).first->second;
      if (other == s || (stage.mesh.tensor() == 1 && plan_.stages[other].mesh.tensor() == 1)) continue;
      return field(s, "tensor") + "the stage shares parameter " + number(parameter.value()) + " with stage " +
             number(other) + ", but one of them has tensor shards";
    }
    return "";
  }

  std::string of_segments(std::size_t s, const StagePlan& stage) {
    for (const auto& segment : stage.recomputed) {
      if (segment.empty()) return field(s, "recomputed") + "a segment is empty";
      for (const NodeId atom : segment) {
        const std::string name = field(s, "recomputed") + "a segment has atom " + number(atom.value());
        if (!std::ranges::binary_search(stage.atoms, atom)) return name + ", which is not in the stage";
        if (recomputed_[atom.index()]) return name + ", which is in one already";
        if (model_.graph[atom].totals > Bytes(0)) return name + ", whose totals replicas add up once";
        recomputed_[atom.index()] = true;
      }
    }
    return "";
  }

  static constexpr std::int64_t kMostComputes = 1 << 22, kMostSamples = std::int64_t{1} << 36;

  const ModelProfile& model_;
  const Plan& plan_;
  std::vector<int> stage_of_;                  // by atom
  std::vector<bool> recomputed_;               // by atom
  std::map<Rank, std::size_t> stage_on_;       // the first
  std::map<ParameterId, std::size_t> reader_;  // the first stage
};

/// The first reason why a plan does not divide a model into stages, by definitions alone: wrong numbers, atoms, ranks
/// or segments. It begins with the plan's field, and is empty if there is none. Whether the schedule can run the stages
/// shows when a program is made and validated.
[[nodiscard]] inline std::string fault_in_shape(const ModelProfile& model, const Plan& plan) {
  return ShapeCheck(model, plan).run();
}

}  // namespace autopar::verify
