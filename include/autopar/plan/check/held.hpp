#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include <autopar/plan/check/checked_costs.hpp>
#include <autopar/plan/check/stated_plan.hpp>
#include <autopar/schedule/action.hpp>

namespace autopar::detail {

/// Bytes that the ranks of a plan hold: always, and for micro-batches in flight.
template <class M>
class CheckedMemory {
 public:
  CheckedMemory(const StatedPlan& stated, const CheckedCosts<M>& costs)
      : stated_(stated), costs_(costs), stages_(stated.plan().stages.size()) {
    for (int s = 0; s < stated.stages(); ++s) {
      Stage& stage = of(s);
      stage.share = stated.largest_share(s);
      const NodeCost& cost = costs.of_stage(s, stage.share);
      stage.kept = cost.saved.value() + (parts_backwards(stated.plan().schedule) ? cost.put_off.value() : 0);
      stage.always = cost.workspace.value();
      add_parameters(s);
      add_segments(s);
    }
    for (const Crossing& crossing : stated.crossings()) {
      for (const int end : {crossing.from, crossing.to}) {
        if (!stated.is_stage(end)) continue;
        Stage& stage = of(end);
        (end == crossing.to ? stage.arriving : stage.leaving) += bytes_of(crossing.value, stage.share);
        stage.always += bytes_of(crossing.gradient, stage.share) * std::min(count(), std::int64_t{2});
      }
    }
  }

  /// With so many micro-batches in flight; the next one to arrive is on its way then.
  [[nodiscard]] std::int64_t bytes(int s, std::int64_t flying) const {
    const Stage& stage = stages_[static_cast<std::size_t>(s)];
    return stage.owned + std::max(stage.update, running(stage, flying));
  }

  /// Bytes of a stage in the memory of its ranks' hosts, where that is another than the device's.
  [[nodiscard]] std::int64_t on_host(int s) const { return stages_[static_cast<std::size_t>(s)].on_host; }

  /// Bytes of each stage when its rank holds most; of its ranks the one with most of its micro-batches in flight.
  /// @param orders  see `turn_orders`
  [[nodiscard]] std::vector<std::int64_t> peaks(const std::vector<std::vector<Turn>>& orders) const {
    std::vector<std::int64_t> flying(stages_.size(), 0);
    for (std::size_t r = 0; r < orders.size(); ++r) {
      for (const auto& [stage, held] : held_at_peak(r, orders[r])) {
        auto& most = flying[static_cast<std::size_t>(stage)];
        most = std::max(most, held);
      }
    }
    std::vector<std::int64_t> out;
    for (int s = 0; s < stated_.stages(); ++s)
      out.push_back(bytes(s, flying[static_cast<std::size_t>(s)]));
    return out;
  }

 private:
  struct Stage {
    std::int64_t share = 0;                  // samples
    std::int64_t owned = 0, update = 0;      // bytes: of parameters; of the optimizer's step, after everything else
    std::int64_t on_host = 0;                // of parameters and the optimizer's step
    std::int64_t always = 0, kept = 0;       // of the rest; kept: for a micro-batch
    std::int64_t arriving = 0, leaving = 0;  // values of a micro-batch from and to other stages
  };
  using Held = std::vector<std::pair<int, std::int64_t>>;  // stage, micro-batches

  [[nodiscard]] std::int64_t running(const Stage& stage, std::int64_t flying) const {
    return stage.always + (stage.kept + stage.leaving) * flying + stage.arriving * std::min(count(), flying + 1);
  }
  [[nodiscard]] Stage& of(int stage) { return stages_[static_cast<std::size_t>(stage)]; }
  [[nodiscard]] std::int64_t count() const { return stated_.plan().microbatches; }
  [[nodiscard]] static std::int64_t bytes_of(const Affine& size, std::int64_t samples) {
    return static_cast<std::int64_t>(std::ceil(std::max(0.0, size.at(static_cast<double>(samples)))));
  }

  /// Under ZeRO, shares of what the level shares; and under 2 and 3, whole what the atom at work needs whole. What is
  /// offloaded: the optimizer has all that it works with on the host, gradients are made on the device.
  void add_parameters(int s) {
    const Plan& plan = stated_.plan();
    const auto& parameters = stated_.model().parameters;
    const bool offloads = plan.offload == Offload::kOptimizer, elsewhere = plan.host_memory > Bytes(0);
    const auto share = [&](std::int64_t bytes, int level) {
      return plan.zero >= level ? (bytes + stated_.replicas(s) - 1) / stated_.replicas(s) : bytes;
    };
    Stage& stage = of(s);
    for (const ParameterId id : stated_.parameters(s)) {
      const std::int64_t bytes = parameters[id.index()].bytes.value(), copy = parameters[id.index()].copy.value();
      const bool gathers = parameters[id.index()].trainable && plan.zero == 3 && stated_.replicas(s) > 1;
      if (!gathers) stage.owned += copy;
      if (!parameters[id.index()].trainable) {
        stage.owned += bytes;
        continue;
      }
      const double state = std::ceil(static_cast<double>(bytes) * plan.optimizer_state_factor);
      const std::int64_t states = share(static_cast<std::int64_t>(state), 1), stepped = share(bytes, 1);
      stage.owned += share(bytes, copy > 0 ? 1 : 3) + plan.gradient_copies * share(bytes, 2);
      if (offloads && elsewhere)
        stage.on_host += states + (1 + plan.gradient_copies) * stepped;
      else
        stage.owned += states + (offloads ? stepped : 0);
    }
    std::int64_t largest = 0;
    for (const NodeId atom : plan.stages[static_cast<std::size_t>(s)].atoms) {
      const auto& read = stated_.model().graph[atom].parameters;
      std::int64_t trained = 0;
      for (const ParameterId id : std::set<ParameterId>(read.begin(), read.end()))
        trained += parameters[id.index()].trainable ? parameters[id.index()].bytes.value() : 0;
      largest = std::max(largest, trained);
      stage.always += costs_.resident(atom).value();
    }
    const std::int64_t parts = plan.zero > 0 ? stated_.replicas(s) : 1;
    const double temporaries = std::ceil(std::min(plan.optimizer_state_factor, 2.0));
    const std::int64_t update = (largest + parts - 1) / parts * static_cast<std::int64_t>(temporaries);
    (offloads && elsewhere ? stage.on_host : stage.update) += update;
    if (stated_.replicas(s) < 2) return;
    if (plan.zero == 2) stage.always += 2 * largest;  // its gradient, and that on its way
    if (plan.zero == 3) stage.always += 4 * largest;  // and its parameters, and those of the next
  }

  [[nodiscard]] static bool parts_backwards(ScheduleKind kind) {
    return kind == ScheduleKind::kZbH1 || kind == ScheduleKind::kZbV || kind == ScheduleKind::kSynthesised;
  }

  /// What runs again keeps what enters it from the stage; one segment is whole at a time.
  void add_segments(int s) {
    const auto& graph = stated_.model().graph;
    Stage& stage = of(s);
    std::int64_t rebuilt = 0;
    for (const auto& segment : stated_.plan().stages[static_cast<std::size_t>(s)].recomputed) {
      const std::set<NodeId> inside(segment.begin(), segment.end());
      std::int64_t saved = 0;
      std::set<std::int32_t> entering;
      for (const NodeId atom : segment) {
        saved += costs_.of_atom(atom, stage.share).saved.value();
        for (const EdgeId edge : graph.in_edges(atom)) {
          const NodeId source = graph.source(edge);
          if (stated_.stage_of(source) != s || inside.contains(source)) continue;
          if (entering.insert(graph[edge].value).second) stage.kept += bytes_of(graph[edge].bytes, stage.share);
        }
      }
      stage.kept -= saved;
      rebuilt = std::max(rebuilt, saved);
    }
    stage.always += rebuilt;
  }

  [[nodiscard]] Held held_at_peak(std::size_t rank, const std::vector<Turn>& order) const {
    Held now;
    for (const int s : stated_.stages_on(rank))
      now.emplace_back(s, stated_.model().loss_mode ? 0 : count());
    if (!stated_.model().loss_mode) return now;  // results leave the call first
    const auto total = [&] {
      std::int64_t sum = 0;
      for (const auto& [stage, held] : now)
        sum += running(stages_[static_cast<std::size_t>(stage)], held);
      return sum;
    };
    Held at_peak = now;
    std::int64_t peak = total();
    for (const Turn& turn : order) {
      const bool begins = turn.kind == ActionKind::kForward;
      if (!begins && turn.kind == ActionKind::kBackwardInput) continue;
      const auto own =
          std::find_if(now.begin(), now.end(), [&](const auto& one) { return one.first == turn.stage.value(); });
      own->second += begins ? 1 : -1;
      if (!begins) continue;
      if (const std::int64_t sum = total(); sum > peak) {
        peak = sum;
        at_peak = now;
      }
    }
    return at_peak;
  }

  const StatedPlan& stated_;
  const CheckedCosts<M>& costs_;
  std::vector<Stage> stages_;
};

}  // namespace autopar::detail
