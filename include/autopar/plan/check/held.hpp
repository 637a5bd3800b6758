#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
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
      stage.at_work = cost.workspace.value();
      add_parameters(s);
      add_segments(s);
    }
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(stated.plan().world); ++rank) take_turns(stated.stages_on(rank));
    for (const Crossing& crossing : stated.crossings()) {
      if (stated.is_stage(crossing.from)) add_made(crossing, of(crossing.from));
      const bool within = stated.is_stage(crossing.from) && stated.is_stage(crossing.to) &&
                          stated.ranks_of(crossing.from) == stated.ranks_of(crossing.to);
      // What is alone in a message within a rank is not copied.
      if (stated.is_stage(crossing.to) && !(within && crossing.values == 1)) add_read(crossing, of(crossing.to));
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
    std::int64_t at_work = 0;                // of a turn, while it lasts
    std::int64_t always = 0, kept = 0;       // of the rest; kept: for a micro-batch
    std::int64_t arriving = 0, leaving = 0;  // values of a micro-batch from and to other stages
  };
  using Held = std::vector<std::pair<int, std::int64_t>>;  // stage, micro-batches

  /// Results stay until their backward; a gradient of them is in use while the next one arrives.
  void add_made(const Crossing& crossing, Stage& stage) const {
    stage.leaving += bytes_of(crossing.held, stage.share);
    stage.always += bytes_of(crossing.gradient, stage.share) * std::min(count(), std::int64_t{2});
  }
  /// While one gradient is made, which is an atom's workspace, the one before may be on its way.
  void add_read(const Crossing& crossing, Stage& stage) const {
    stage.arriving += bytes_of(crossing.value, stage.share);
    stage.always += bytes_of(crossing.gradient, stage.share) * std::min(count() - 1, std::int64_t{1});
  }

  [[nodiscard]] std::int64_t running(const Stage& stage, std::int64_t flying) const {
    return stage.at_work + stage.always + (stage.kept + stage.leaving) * flying + stage.arriving * std::min(count(), flying + 1);
  }
  [[nodiscard]] Stage& of(int stage) { return stages_[static_cast<std::size_t>(stage)]; }
  [[nodiscard]] std::int64_t count() const { return stated_.plan().microbatches; }
  [[nodiscard]] static std::int64_t bytes_of(const Affine& size, std::int64_t samples) {
    return static_cast<std::int64_t>(std::ceil(std::max(0.0, size.at(static_cast<double>(samples)))));
  }

  /// Stages that read a parameter.
  [[nodiscard]] std::vector<int> readers_of(ParameterId id) const {
    std::vector<int> readers;
    for (int s = 0; s < stated_.stages(); ++s) {
      if (stated_.parameters(s).contains(id)) readers.push_back(s);
    }
    return readers;
  }

  /// Under ZeRO, shares of what the level shares, and what a parameter's own highest level allows. Several stages share
  /// the optimizer's state of what they read alone. What is offloaded: the optimizer has all that it works with on the
  /// host, gradients are made on the device, where copies that are read take the place of parameters; those come in
  /// pieces.
  void add_parameters(int s) {
    const Plan& plan = stated_.plan();
    const auto& parameters = stated_.model().parameters;
    const bool offloads = plan.offload == Offload::kOptimizer, elsewhere = plan.host_memory > Bytes(0);
    Stage& stage = of(s);
    const std::set<ParameterId> several = read_again(s);
    std::int64_t shared = 0, copied = 0;
    bool again = false;
    for (const ParameterId id : stated_.parameters(s)) {
      const std::int64_t bytes = parameters[id.index()].bytes.value(), copy = parameters[id.index()].copy.value();
      if (!parameters[id.index()].trainable) {
        stage.owned += bytes + copy;
        continue;
      }
      int level = plan.zero;
      auto ranks = stated_.replicas(s);
      if (const auto readers = readers_of(id); readers.size() > 1) {
        std::set<Rank> all;
        bool replicated = false;
        for (const int reader : readers) {
          all.insert(stated_.ranks_of(reader).begin(), stated_.ranks_of(reader).end());
          replicated = replicated || stated_.replicas(reader) > 1;
        }
        level = replicated ? std::min(level, 1) : 0;
        ranks = static_cast<std::int64_t>(all.size());
      } else if (parameters[id.index()].highest_zero > 0) {
        shared += bytes;
        again = again || several.contains(id);
      }
      level = std::min(level, parameters[id.index()].highest_zero);
      const bool leaves = offloads && parameters[id.index()].highest_zero > 0;
      const auto share = [&](std::int64_t whole, int from) { return level >= from ? (whole + ranks - 1) / ranks : whole; };
      const double state = std::ceil(static_cast<double>(bytes) * plan.optimizer_state_factor);
      const std::int64_t states = share(static_cast<std::int64_t>(state), 1), stepped = share(bytes, 1);
      stage.owned += plan.gradient_copies * share(bytes, 2);
      if (copy == 0)
        stage.owned += share(bytes, 3);
      else
        stage.owned += leaves ? share(copy, 3) : share(bytes, 1) + (level == 3 && ranks > 1 ? 0 : copy);
      if (leaves && elsewhere)
        stage.on_host += states + (1 + plan.gradient_copies) * stepped;
      else
        stage.owned += states + (leaves ? stepped : 0);
      if (leaves && copy > 0) copied += stepped;
    }
    for (const NodeId atom : plan.stages[static_cast<std::size_t>(s)].atoms)
      stage.owned += costs_.resident(atom).value();
    for (const ParameterId id : several) stage.at_work += 2 * parameters[id.index()].bytes.value();  // until they are added up
    const std::int64_t largest = most_read(s);
    const std::int64_t parts = plan.zero > 0 ? stated_.replicas(s) : 1;
    const double temporaries = std::ceil(std::min(plan.optimizer_state_factor, 2.0));
    const std::int64_t update = (largest + parts - 1) / parts * static_cast<std::int64_t>(temporaries);
    (offloads && elsewhere ? stage.on_host : stage.update) += update;
    constexpr std::int64_t kPiece = std::int64_t{8} << 20;
    if (offloads && elsewhere) stage.update += std::min(copied, kPiece);
    if (stated_.replicas(s) > 1) stage.at_work += units_at_work(s, largest, shared, again);
  }

  /// Trained parameters with several readers in the stage.
  [[nodiscard]] std::set<ParameterId> read_again(int s) const {
    std::map<ParameterId, int> readers;
    for (const NodeId atom : stated_.plan().stages[static_cast<std::size_t>(s)].atoms) {
      const auto& read = stated_.model().graph[atom].parameters;
      for (const ParameterId id : std::set<ParameterId>(read.begin(), read.end())) ++readers[id];
    }
    std::set<ParameterId> out;
    for (const auto& [id, count] : readers) {
      if (count > 1 && stated_.model().parameters[id.index()].trainable) out.insert(id);
    }
    return out;
  }

  /// Stages of one rank take their turns one after the other, in the room of the one that needs most: the first such.
  void take_turns(const std::vector<int>& stages) {
    int most = -1;
    for (const int s : stages) {
      if (most < 0 || of(s).at_work > of(most).at_work) most = s;
    }
    for (const int s : stages) {
      if (s != most) of(s).at_work = 0;
    }
  }

  /// Trainable bytes that the atom reads which reads most.
  [[nodiscard]] std::int64_t most_read(int s) const {
    std::int64_t largest = 0;
    for (const NodeId atom : stated_.plan().stages[static_cast<std::size_t>(s)].atoms) {
      const auto& read = stated_.model().graph[atom].parameters;
      std::int64_t trained = 0;
      for (const ParameterId id : std::set<ParameterId>(read.begin(), read.end())) {
        const auto& parameter = stated_.model().parameters[id.index()];
        trained += parameter.trainable ? parameter.bytes.value() : 0;
      }
      largest = std::max(largest, trained);
    }
    return largest;
  }

  /// Whole beside the shares: the part of a sum before the sum is gone (1); units of gradients that fill and that are
  /// summed (2, 3), all if they wait for one that several atoms fill or for the second half of a backward; those of
  /// parameters that an atom reads, and the next (3).
  [[nodiscard]] std::int64_t units_at_work(int s, std::int64_t largest, std::int64_t shared, bool again) const {
    const int level = stated_.plan().zero;
    constexpr std::int64_t kBucket = std::int64_t{32} << 20;
    std::int64_t limit = kBucket;
    if (level > 1) {
      std::int64_t most = 0;
      for (int other = 0; other < stated_.stages(); ++other) most = std::max(most, most_read(other));
      limit = std::min(limit, most);
    }
    const std::int64_t unit = std::min(shared, largest > kBucket ? largest : limit);
    const bool at_once = again || parts_backwards(stated_.plan().schedule);
    const std::int64_t gradients = std::min(at_once ? shared + unit : 2 * unit, count() * shared);
    switch (level) {
      case 1: return (unit + stated_.replicas(s) - 1) / stated_.replicas(s);
      case 2: return gradients;
      case 3: return gradients + std::min(largest > kBucket ? 2 * (largest + kBucket) : 3 * unit, shared);
      default: return 0;
    }
  }

  [[nodiscard]] static bool parts_backwards(ScheduleKind kind) {
    return kind == ScheduleKind::kZbH1 || kind == ScheduleKind::kZbV || kind == ScheduleKind::kSynthesised;
  }

  /// What runs again keeps what enters it from the stage, unless that is kept there, and what is kept of it for others;
  /// one segment is whole at a time.
  void add_segments(int s) {
    const auto& graph = stated_.model().graph;
    Stage& stage = of(s);
    std::int64_t rebuilt = 0;
    for (const auto& segment : stated_.plan().stages[static_cast<std::size_t>(s)].recomputed) {
      const std::set<NodeId> inside(segment.begin(), segment.end());
      std::int64_t saved = 0;
      std::set<std::int32_t> entering, leaving;
      for (const NodeId atom : segment) {
        saved += costs_.of_atom(atom, stage.share).saved.value();
        for (const EdgeId edge : graph.in_edges(atom)) {
          const NodeId source = graph.source(edge);
          if (stated_.stage_of(source) != s || inside.contains(source) || graph[edge].kept) continue;
          if (entering.insert(graph[edge].value).second) stage.kept += bytes_of(graph[edge].bytes, stage.share);
        }
        for (const EdgeId edge : graph.out_edges(atom)) {
          if (inside.contains(graph.target(edge)) || !graph[edge].kept) continue;
          if (leaving.insert(graph[edge].value).second) stage.kept += bytes_of(graph[edge].bytes, stage.share);
        }
      }
      for (const auto& output : stated_.model().outputs) {
        if (!output.kept || !inside.contains(output.writer)) continue;
        if (leaving.insert(output.value).second) stage.kept += bytes_of(output.bytes, stage.share);
      }
      stage.kept -= saved;
      rebuilt = std::max(rebuilt, saved);
    }
    stage.at_work += rebuilt;
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
