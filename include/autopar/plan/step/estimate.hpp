#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include <autopar/plan/memory/held_by_nodes.hpp>
#include <autopar/plan/step/objective.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

/// A quick estimate of StepObjective to compare stagings of large problems. All replicas of a stage count as one, links
/// have no contention, and the memory of boundaries is left out. What must be recomputed to fit takes a proportional
/// part of the forward. Guides local search, never decides.
/// @cost O(nodes + edges + stages^2 + stages * microbatches) a call
class QuickEstimate {
 public:
  explicit QuickEstimate(const StepObjective& objective)
      : objective_(objective), work_(objective.work()), nodes_(work_, objective.constraints()) {}

  /// Seconds of a step. Infinite if a stage does not fit, or if the compute actions and update of one stage alone take
  /// `limit` or longer.
  [[nodiscard]] double operator()(const Staging& staging, double limit = std::numeric_limits<double>::infinity()) {
    const auto stages = static_cast<std::size_t>(staging.stages());
    stages_.assign(stages, {});
    for (std::size_t s = 0; s < stages; ++s) {
      stages_[s].slice = objective_.slices().at(staging.microbatches, staging.replicas[s], staging.stages()).largest;
      stages_[s].costs = &work_.node_costs(stages_[s].slice);
    }
    add_nodes(staging);
    add_tied(staging);
    if (!make_fit(staging) || busiest(staging.microbatches) * (1 - 1e-9) >= limit)
      return std::numeric_limits<double>::infinity();
    add_messages(staging);
    return makespan(staging);
  }

 private:
  struct Stage {
    std::int64_t slice = 0;
    const std::vector<NodeCost>* costs = nullptr;
    double forward = 0, backward = 0;
    Bytes saved{}, workspace{}, trainable{};
    LeastHeld held;
  };

  void add_nodes(const Staging& staging) {
    for (std::size_t node = 0; node < staging.stage_of.size(); ++node) {
      Stage& stage = stages_[static_cast<std::size_t>(staging.stage_of[node])];
      const NodeCost& cost = (*stage.costs)[node];
      stage.forward += cost.forward.value();
      stage.backward += cost.backward.value();
      stage.saved += cost.saved;
      stage.workspace = std::max(stage.workspace - cost.saved, cost.workspace);
      stage.held += nodes_.held[node];
      stage.trainable += nodes_.trained[node];
    }
  }

  /// Adds parameters that several nodes read.
  void add_tied(const Staging& staging) {
    for (const auto& tied : nodes_.tied) {
      for (std::size_t i = 0; i < tied.readers.size(); ++i) {
        const int stage = staging.stage_of[tied.readers[i].index()];
        const auto same = [&](NodeId earlier) { return staging.stage_of[earlier.index()] == stage; };
        if (std::any_of(tied.readers.begin(), tied.readers.begin() + static_cast<std::ptrdiff_t>(i), same)) continue;
        Stage& holder = stages_[static_cast<std::size_t>(stage)];
        holder.held += tied.held;
        holder.trainable += tied.trained;
      }
    }
  }

  /// Lengthens the backwards of stages that must recompute to fit. @return whether all stages then fit
  [[nodiscard]] bool make_fit(const Staging& staging) {
    const Constraints& constraints = objective_.constraints();
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const int in_flight = peak_in_flight(staging.schedule, work_.loss_mode, static_cast<int>(s), staging.stages(),
                                           staging.microbatches);
      Stage& stage = stages_[s];
      const Bytes saved = stage.saved * in_flight;
      const bool in_turn = gradients_follow_activations(staging.microbatches, staging.replicas[s]);
      const Bytes apart = in_turn ? std::min(saved, stage.trainable) : Bytes(0);
      const Bytes over =
          Bytes(stage.held.at(staging.replicas[s])) + saved - apart + stage.workspace - constraints.memory;
      if (over <= Bytes(0)) continue;
      if (constraints.recompute == Recompute::kNever || over >= saved) return false;
      stage.backward += stage.forward * (static_cast<double>(over.value()) / static_cast<double>(saved.value()));
    }
    return true;
  }

  /// Seconds of the busiest stage: its compute actions and its update.
  [[nodiscard]] double busiest(int microbatches) const {
    double most = 0;
    for (const Stage& stage : stages_) {
      const Seconds update = detail::least_update(work_, objective_.constraints(), stage.trainable);
      most = std::max(most, microbatches * (stage.forward + stage.backward) + update.value());
    }
    return most;
  }

  void add_messages(const Staging& staging) {
    const std::size_t n = stages_.size();
    bytes_.assign(n * n, 0);
    for (const EdgeId edge : work_.graph.edges()) {
      const auto from = static_cast<std::size_t>(staging.stage_of[work_.graph.source(edge).index()]);
      const auto to = static_cast<std::size_t>(staging.stage_of[work_.graph.target(edge).index()]);
      if (from == to) continue;
      const auto slice = std::max(stages_[from].slice, stages_[to].slice);
      bytes_[from * n + to] += std::max(1.0, work_.graph[edge].bytes.at(static_cast<double>(slice)));
    }
    if (placed_ == staging.replicas) return;
    placed_ = staging.replicas;
    const auto tensor = objective_.constraints().tensor_of_each(placed_.size());
    meshes_ = place(placed_, rank_placements(placed_, objective_.cluster(), tensor).back(), tensor);
  }

  /// Simulates the stages' orders together, then adds gradient sums and update.
  [[nodiscard]] double makespan(const Staging& staging) {
    const std::size_t n = stages_.size();
    delay_.assign(n * n, -1);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = i + 1; j < n; ++j) {
        if (bytes_[i * n + j] <= 0) continue;
        delay_[i * n + j] =
            work_.transfer(Bytes(static_cast<std::int64_t>(bytes_[i * n + j])), meshes_[i].rank(0), meshes_[j].rank(0))
                .value();
      }
    }
    const int microbatches = staging.microbatches;
    forward_end_.assign(n * static_cast<std::size_t>(microbatches), 0);
    backward_end_.assign(forward_end_.size(), 0);
    free_at_.assign(n, 0);
    play(staging, microbatches);
    double step = 0;
    for (std::size_t s = 0; s < n; ++s) {
      const Stage& stage = stages_[s];
      double summed = free_at_[s];
      if (meshes_[s].replicas() > 1) {
        const auto group = meshes_[s].replica_group(0);
        const Seconds sum = work_.all_reduce(objective_.constraints().buckets.least_sent(stage.trainable), group);
        // Sums start as buckets fill.
        const Seconds beside(stage.trainable > objective_.constraints().buckets.size ? stage.backward : 0.0);
        summed += (with_last_sums(work_.contention(group)).together(beside, sum) - beside).value();
      }
      step = std::max(step, summed + detail::least_update(work_, objective_.constraints(), stage.trainable).value());
    }
    return step;
  }

  /// A forward needs the forwards of earlier stages, a backward the backwards of later ones. Visiting compute actions
  /// wave by wave, in the order of 1F1B or GPipe, meets none before what it needs.
  void play(const Staging& staging, int microbatches) {
    const int n = staging.stages();
    const bool forwards_first = puts_forwards_first(staging.schedule) || !work_.loss_mode;
    std::vector<int> forwards(static_cast<std::size_t>(n), 0), backwards(forwards);
    for (bool moved = true; moved;) {
      moved = false;
      for (int i = 0; i < 2 * n; ++i) {
        const int s = i < n ? i : 2 * n - 1 - i;
        const auto u = static_cast<std::size_t>(s);
        const int ahead = forwards_first ? microbatches : std::min(microbatches, n - s);
        if (i < n) {
          while (forwards[u] < microbatches && forwards[u] - backwards[u] < ahead &&
                 (s == 0 || forwards[u] < forwards[u - 1])) {
            run_forward(s, forwards[u]++, microbatches);
            moved = true;
          }
        } else {
          while (backwards[u] < forwards[u] &&
                 (forwards_first ? forwards[u] == microbatches
                                 : forwards[u] >= std::min(microbatches, backwards[u] + ahead)) &&
                 (s == n - 1 || backwards[u] < backwards[u + 1])) {
            run_backward(s, backwards[u]++, microbatches);
            moved = true;
            if (!forwards_first && forwards[u] < microbatches) break;
          }
        }
      }
    }
  }

  void run_forward(int s, int m, int microbatches) {
    const std::size_t n = stages_.size(), u = static_cast<std::size_t>(s);
    double start = free_at_[u];
    for (std::size_t j = 0; j < u; ++j) {
      if (delay_[j * n + u] >= 0) start = std::max(start, forward_end_[at(j, m, microbatches)] + delay_[j * n + u]);
    }
    free_at_[u] = forward_end_[at(u, m, microbatches)] = start + stages_[u].forward;
  }
  void run_backward(int s, int m, int microbatches) {
    const std::size_t n = stages_.size(), u = static_cast<std::size_t>(s);
    double start = free_at_[u];
    for (std::size_t j = u + 1; j < n; ++j) {
      if (delay_[u * n + j] >= 0) start = std::max(start, backward_end_[at(j, m, microbatches)] + delay_[u * n + j]);
    }
    free_at_[u] = backward_end_[at(u, m, microbatches)] = start + stages_[u].backward;
  }
  static std::size_t at(std::size_t stage, int m, int microbatches) {
    return stage * static_cast<std::size_t>(microbatches) + static_cast<std::size_t>(m);
  }

  const StepObjective& objective_;
  const Workload& work_;
  detail::HeldByNodes nodes_;
  std::vector<Stage> stages_;
  std::vector<int> placed_;  // replicas that are on `meshes_`
  std::vector<Mesh> meshes_;
  std::vector<double> bytes_, delay_;  // [from * stages + to]
  std::vector<double> forward_end_, backward_end_, free_at_;
};

}  // namespace autopar
