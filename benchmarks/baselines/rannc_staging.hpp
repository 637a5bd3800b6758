#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/plan/concepts.hpp>
#include <autopar/plan/memory/boundary_masks.hpp>

#include "baselines/boundary_of.hpp"
#include "baselines/rannc_blocks.hpp"

namespace autopar {

namespace detail {

/// What RaNNC knows of runs of consecutive blocks. Refers to its arguments, which must outlive it.
class RanncSegments {
 public:
  /// @param work  of blocks that are numbered in a topological order
  RanncSegments(const Workload& work, const StepObjective& objective, BytesPerSecond link)
      : work_(work), objective_(objective), link_(link), n_(work.graph.node_count()), fixed_((n_ + 1) * (n_ + 1)) {
    for (std::size_t begin = 0; begin < n_; ++begin) {
      std::vector<bool> seen(work.parameters.size(), false);
      Fixed sum;
      for (std::size_t end = begin + 1; end <= n_; ++end) {
        const WorkNode& node = work.graph[NodeId::of(end - 1)];
        sum.held += node.resident.value();
        sum.whole_batch = sum.whole_batch || node.whole_batch;
        for (const ParameterId p : node.parameters) {
          if (seen[p.index()]) continue;
          seen[p.index()] = true;
          const ParameterProfile& parameter = work.parameters[p.index()];
          sum.held += parameter_memory(parameter, objective.constraints()).total().value();
          if (parameter.trainable) sum.trainable += parameter.bytes;
        }
        sum.boundary = boundary_of(work, [&](NodeId id) { return id.index() >= begin && id.index() < end; });
        fixed_[begin * (n_ + 1) + end] = sum;
      }
    }
  }

  /// A stage of some replicas in one pipeline of several equal ones.
  struct Shape {
    int copies = 1;  ///< equal pipelines
    int microbatches = 1;
    int replicas = 1;   ///< in each of them
    int in_flight = 1;  ///< micro-batches that keep their activations
    bool recompute = false;
  };
  struct Segment {
    double forward = 0, backward = 0;  ///< seconds of a micro-batch
    double communication = 0;          ///< of its inputs and outputs, one way
    bool fits = false;
  };

  [[nodiscard]] Segment at(std::size_t begin, std::size_t end, const Shape& shape, int stages) const {
    const Fixed& fixed = fixed_[begin * (n_ + 1) + end];
    const Constraints& constraints = objective_.constraints();
    const auto parts = std::int64_t{1} * shape.copies * shape.microbatches * shape.replicas;
    const auto slice = static_cast<double>((constraints.batch + parts - 1) / parts);
    const Sums& times = sums(static_cast<std::int64_t>(slice));
    Segment out;
    out.forward = times.forward[end] - times.forward[begin];
    out.backward = times.backward[end] - times.backward[begin] + (shape.recompute ? out.forward : 0);
    out.communication = std::max(0.0, fixed.boundary.in.at(slice) + fixed.boundary.out.at(slice)) / link_.value();
    // Memory is autopar's, not RaNNC's: a plan that is accepted must fit.
    const int replicas = shape.copies * shape.replicas;
    const auto largest = objective_.slices().at(shape.microbatches, replicas, stages).largest;
    const Sums& held = sums(largest);
    std::int64_t workspace = 0;
    for (std::size_t i = begin; i < end; ++i)
      workspace = std::max(workspace, held.workspace[i] - (held.saved[end] - held.saved[i + 1]));
    const std::int64_t saved = (held.saved[end] - held.saved[begin]) * (shape.recompute ? 1 : shape.in_flight);
    out.fits = fixed.held + saved + workspace + fixed.boundary.bytes(largest, shape.in_flight, shape.microbatches) <=
                   constraints.memory.value() &&
               !(fixed.whole_batch && replicas > 1);
    return out;
  }

  [[nodiscard]] Bytes trainable(std::size_t begin, std::size_t end) const {
    return fixed_[begin * (n_ + 1) + end].trainable;
  }
  [[nodiscard]] std::size_t blocks() const { return n_; }

 private:
  struct Fixed {
    std::int64_t held = 0;
    Bytes trainable{};
    bool whole_batch = false;
    BoundaryOfRun boundary;
  };
  struct Sums {
    std::vector<double> forward, backward;
    std::vector<std::int64_t> saved, workspace;  // workspace: of each block
  };

  [[nodiscard]] const Sums& sums(std::int64_t slice) const {
    auto [entry, added] = sums_.try_emplace(slice);
    if (!added) return entry->second;
    Sums& out = entry->second;
    out.forward = out.backward = {0};
    out.saved = {0};
    for (const NodeCost& cost : work_.node_costs(slice)) {
      out.forward.push_back(out.forward.back() + cost.forward.value());
      out.backward.push_back(out.backward.back() + cost.backward.value());
      out.saved.push_back(out.saved.back() + cost.saved.value());
      out.workspace.push_back(cost.workspace.value());
    }
    return out;
  }

  const Workload& work_;
  const StepObjective& objective_;
  BytesPerSecond link_;
  std::size_t n_;
  std::vector<Fixed> fixed_;  // [begin * (n + 1) + end]
  mutable std::map<std::int64_t, Sums> sums_;
};

}  // namespace detail

/// RaNNC's search, as a baseline: blocks (`RanncBlocks`), then for the least number of nodes a pipeline can have, the
/// least number of stages and micro-batches that double, one dynamic program over blocks x devices x stages. It keeps
/// what RaNNC's recurrence keeps, its weaknesses included: the best state is judged with communication and stored
/// without, replicas are powers of two, all devices are used, and the search ends at the first number of stages that
/// works. Nothing is proven.
///
/// Two things are autopar's: replicas, stages, micro-batches and schedules that the user fixes replace RaNNC's choice,
/// and memory is counted as everywhere in autopar, so that an accepted plan fits.
/// @cost O(stages * blocks^2 * devices * log devices) for each number of stages and micro-batches
/// @source as `RanncBlocks`
struct RanncStaging {
  using policy_category = staging_policy_tag;
  RanncBlocks blocks{};
  BytesPerSecond link{20.0 * (1 << 30)};       ///< what RaNNC takes any link for
  BytesPerSecond reduction{10.0 * (1 << 30)};  ///< and any gradient sum
  /// What RaNNC itself does with several micro-batches: stages keep their inputs only and recompute forwards. Autopar's
  /// runtime does not, so this is for predicting RaNNC, not for plans that run here.
  bool recompute = false;

  [[nodiscard]] SearchResult search(const StepObjective& objective) const {
    const Constraints& constraints = objective.constraints();
    const Workload& work = objective.work();
    SearchResult result{Candidates(constraints.memory)};
    const std::int64_t most = std::int64_t{1} * constraints.world * constraints.microbatches.back();
    const Partition parts =
        in_order(work, blocks.coarsen(work, (constraints.batch + most - 1) / most, std::max(1, constraints.stages)));
    const Workload coarse = contracted(work, parts);
    const detail::RanncSegments segments(coarse, objective, link);
    for (const Grid& grid : grids(objective, static_cast<int>(parts.block_count()))) {
      for (int stages = grid.first; stages <= grid.last; ++stages) {
        if (constraints.stages > 0 && stages != constraints.stages) continue;
        auto best = best_microbatches(objective, segments, parts, grid, stages, result.states);
        if (!best) continue;
        result.candidates.offer(std::move(*best));
        return result;
      }
    }
    return result;
  }

 private:
  /// Equal pipelines on so many devices each, and the numbers of stages to try for them.
  struct Grid {
    int copies = 1, devices = 1, first = 1, last = 1;
  };
  struct State {
    double eval = std::numeric_limits<double>::infinity(), forward = 0, backward = 0;
    std::size_t begin = 0;  ///< of the last stage
    int devices = 0;        ///< of all stages before it
  };
  struct Division {
    std::vector<std::size_t> begin;  ///< first block of each stage, and the end
    std::vector<int> replicas;       ///< in one pipeline
  };

  /// The same blocks, numbered in a topological order of theirs.
  static Partition in_order(const Workload& work, const Partition& parts) {
    const auto graph = quotient(work.graph, parts);
    const auto position = positions_in(graph, topological_order(graph));
    std::vector<BlockId> block_of;
    for (const NodeId node : work.graph.nodes())
      block_of.push_back(BlockId::of(position[parts.block_of(node).index()]));
    return Partition(std::move(block_of));
  }

  /// Nodes of a machine are what the innermost links join.
  static std::vector<Grid> grids(const StepObjective& objective, int blocks) {
    const Constraints& constraints = objective.constraints();
    const int world = constraints.world;
    std::vector<Grid> out;
    if (const int each = constraints.replicas_of_each; each > 0) {
      for (int stages = 1; stages * each <= world && stages <= blocks; ++stages)
        out.push_back({1, stages * each, stages, stages});
      return out;
    }
    if (!constraints.replicas.empty()) {
      const auto& replicas = constraints.replicas;
      const int stages = static_cast<int>(replicas.size());
      return {{1, std::accumulate(replicas.begin(), replicas.end(), 0), stages, stages}};
    }
    const auto& levels = objective.cluster().levels;
    const int per_node = levels.empty() ? world : std::gcd(world, std::min(world, levels.front().span));
    const int nodes = world / per_node;
    int first = 1;
    for (int used = 1; used <= nodes; ++used) {
      if (nodes % used != 0) continue;
      const int devices = per_node * used, last = std::min(devices, blocks);
      out.push_back({nodes / used, devices, first, last});
      first = std::max(first, last + 1);
    }
    return out;
  }

  /// RaNNC fills and drains.
  static ScheduleKind schedule_of(const Constraints& constraints) {
    const auto& all = constraints.schedules;
    return std::find(all.begin(), all.end(), ScheduleKind::kGPipe) != all.end() ? ScheduleKind::kGPipe : all.front();
  }

  [[nodiscard]] bool recomputes(int microbatches) const { return recompute && microbatches > 1; }

  /// The division with the shortest time by RaNNC's estimate over its numbers of micro-batches.
  [[nodiscard]] std::optional<Candidate> best_microbatches(const StepObjective& objective,
                                                           const detail::RanncSegments& segments,
                                                           const Partition& parts, const Grid& grid, int stages,
                                                           std::int64_t& states) const {
    const Constraints& constraints = objective.constraints();
    const auto& allowed = constraints.microbatches;
    std::optional<Candidate> best;
    double best_estimate = std::numeric_limits<double>::infinity();
    for (std::int64_t m = allowed.front(); m <= allowed.back(); m *= 2) {
      const int microbatches = static_cast<int>(m);
      if (!std::binary_search(allowed.begin(), allowed.end(), microbatches)) continue;
      const auto division = divide(objective, segments, grid, stages, microbatches, states);
      if (!division) continue;
      const double seconds = estimate(segments, objective, grid, *division, microbatches);
      if (seconds >= best_estimate) continue;
      Staging staging{std::vector<int>(parts.node_count()), {}, microbatches, schedule_of(constraints)};
      for (std::size_t s = 0; s < division->replicas.size(); ++s) {
        staging.replicas.push_back(division->replicas[s] * grid.copies);
        for (std::size_t block = division->begin[s]; block < division->begin[s + 1]; ++block) {
          for (const NodeId node : parts.members(BlockId::of(block)))
            staging.stage_of[node.index()] = static_cast<int>(s);
        }
      }
      if (!meets(constraints, objective.work(), staging)) continue;
      StepTerms terms = recomputes(microbatches) ? recomputed(objective, staging) : objective(staging);
      if (!objective.fits(terms)) continue;
      best_estimate = seconds;
      best = Candidate{std::move(staging), std::move(terms)};
    }
    return best;
  }

  [[nodiscard]] detail::RanncSegments::Shape shape(const StepObjective& objective, const Grid& grid, int stage,
                                                   int stages, int microbatches, int replicas) const {
    const int in_flight =
        peak_in_flight(schedule_of(objective.constraints()), objective.work().loss_mode, stage, stages, microbatches);
    return {grid.copies, microbatches, replicas, in_flight, recomputes(microbatches)};
  }

  static bool may_have(const Constraints& constraints, const Grid& grid, int stage, int microbatches, int replicas) {
    if (constraints.replicas_of_each > 0) return replicas == constraints.replicas_of_each;
    if (!constraints.replicas.empty()) return replicas == constraints.replicas[static_cast<std::size_t>(stage)];
    const auto parts = std::int64_t{1} * grid.copies * microbatches;
    return std::has_single_bit(static_cast<unsigned>(replicas)) && replicas <= (constraints.batch + parts - 1) / parts;
  }

  /// The recurrence: table[s][b][d] is what is kept of s stages for the first b blocks on d devices. What is kept
  /// depends on the order of the loops: earlier cuts first, then fewer devices before the stage.
  [[nodiscard]] std::optional<Division> divide(const StepObjective& objective, const detail::RanncSegments& segments,
                                               const Grid& grid, int stages, int microbatches,
                                               std::int64_t& states) const {
    const std::size_t n = segments.blocks();
    const auto width = static_cast<std::size_t>(grid.devices) + 1, layer = (n + 1) * width;
    std::vector<State> table((static_cast<std::size_t>(stages) + 1) * layer);
    table[0].eval = 0;
    for (int s = 1; s <= stages; ++s) {
      const auto row = static_cast<std::size_t>(s) * layer;
      const auto last = n - static_cast<std::size_t>(stages - s);
      for (std::size_t end = s == stages ? n : static_cast<std::size_t>(s); end <= last; ++end) {
        const std::size_t latest = s == 1 ? 1 : end;
        for (std::size_t begin = static_cast<std::size_t>(s) - 1; begin < latest; ++begin) {
          for (int k = grid.devices - s + 1; k > 0; --k) {  // so that fewer devices before come first
            if (!may_have(objective.constraints(), grid, s - 1, microbatches, k)) continue;
            ++states;
            const auto segment =
                segments.at(begin, end, shape(objective, grid, s - 1, stages, microbatches, k), stages);
            if (!segment.fits) continue;
            for (int before = s - 1; before + k <= grid.devices; ++before) {
              const State& from = table[row - layer + begin * width + static_cast<std::size_t>(before)];
              extend(from, segment, begin, before, table[row + end * width + static_cast<std::size_t>(before + k)]);
            }
          }
        }
      }
    }
    return traced(table, stages, n, grid.devices);
  }

  /// Judged with communication, stored without.
  static void extend(const State& from, const detail::RanncSegments::Segment& segment, std::size_t begin, int before,
                     State& to) {
    if (from.eval == std::numeric_limits<double>::infinity()) return;
    const double step = std::max(segment.forward + segment.communication, from.forward) +
                        std::max(segment.backward + segment.communication, from.backward);
    if (step >= to.eval) return;
    to = {std::max(step, from.eval), std::max(segment.forward, from.forward), std::max(segment.backward, from.backward),
          begin, before};
  }

  static std::optional<Division> traced(const std::vector<State>& table, int stages, std::size_t blocks, int devices) {
    const auto width = static_cast<std::size_t>(devices) + 1, layer = (blocks + 1) * width;
    Division division{{blocks}, {}};
    for (int s = stages; s > 0; --s) {
      const State& state = table[static_cast<std::size_t>(s) * layer + division.begin.front() * width +
                                 static_cast<std::size_t>(devices)];
      if (state.eval == std::numeric_limits<double>::infinity()) return std::nullopt;
      division.replicas.insert(division.replicas.begin(), devices - state.devices);
      division.begin.insert(division.begin.begin(), state.begin);
      devices = state.devices;
    }
    return division;
  }

  /// Tick by tick the slowest forward and the slowest backward of the stages at work, then the slowest sum.
  [[nodiscard]] double estimate(const detail::RanncSegments& segments, const StepObjective& objective, const Grid& grid,
                                const Division& division, int microbatches) const {
    const int stages = static_cast<int>(division.replicas.size());
    std::vector<double> forward, backward;
    double sum = 0, step = 0;
    for (int s = 0; s < stages; ++s) {
      const auto i = static_cast<std::size_t>(s);
      const auto segment = segments.at(division.begin[i], division.begin[i + 1],
                                       shape(objective, grid, s, stages, microbatches, division.replicas[i]), stages);
      forward.push_back(segment.forward + segment.communication);
      backward.push_back(segment.backward + segment.communication);
      sum = std::max(sum, (segments.trainable(division.begin[i], division.begin[i + 1]) / reduction).value());
    }
    for (int tick = 0; tick < microbatches + stages - 1; ++tick) {
      const auto begin = std::max(0, tick - microbatches + 1), end = std::min(stages, tick + 1);
      step += *std::max_element(forward.begin() + begin, forward.begin() + end) +
              *std::max_element(backward.begin() + begin, backward.begin() + end);
    }
    return step + sum;
  }

  /// The simulated step if each stage keeps its inputs only and recomputes its forward before its backward.
  static StepTerms recomputed(const StepObjective& objective, const Staging& staging) {
    Workload by_stage = objective.work();
    by_stage.segment_of.assign(by_stage.graph.node_count(), 0);  // as far as it is in one stage
    Constraints again = objective.constraints();
    again.recompute = Recompute::kAlways;
    return StepObjective(by_stage, objective.cluster(), again)(staging);
  }
};
static_assert(StagingPolicy<RanncStaging>);

}  // namespace autopar
