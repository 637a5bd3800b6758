#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <autopar/plan/check/checked_around.hpp>
#include <autopar/plan/check/checked_costs.hpp>
#include <autopar/plan/check/regathered.hpp>
#include <autopar/plan/check/stated_plan.hpp>
#include <autopar/schedule/action.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar::detail {

/// Bytes that the ranks of a plan hold: permanently, and for micro-batches in flight.
template <class M>
class CheckedMemory {
 public:
  CheckedMemory(const StatedPlan& stated, const CheckedCosts<M>& costs)
      : stated_(stated), costs_(costs), stages_(stated.plan().stages.size()) {
    for (int s = 0; s < stated.stages(); ++s) {
      Stage& stage = of(s);
      stage.slice = stated.largest_slice(s);
      add_atoms(s);
      stage.at_work += beside();
      add_parameters(s);
    }
    const auto world = static_cast<std::size_t>(stated.plan().world);
    for (std::size_t rank = 0; rank < world; ++rank) take_turns(stated.stages_on(rank));
    for (const Crossing& crossing : stated.crossings()) {
      if (stated.is_stage(crossing.from)) add_made(crossing, of(crossing.from));
      const bool within = stated.is_stage(crossing.from) && stated.is_stage(crossing.to) &&
                          stated.ranks_of(crossing.from) == stated.ranks_of(crossing.to) &&
                          stated.shards(crossing.from) == stated.shards(crossing.to);
      // A value that is alone in a message within a rank is not copied.
      if (stated.is_stage(crossing.to) && !(within && crossing.values == 1)) add_read(crossing, of(crossing.to));
    }
  }

  /// Bytes of a stage in its ranks' host memory, if that is separate from device memory.
  [[nodiscard]] std::int64_t on_host(int s) const { return stages_[static_cast<std::size_t>(s)].on_host; }

  /// Bytes of each stage when its rank holds most; of its ranks, those of the one that holds most.
  /// @param orders  see `compute_orders`
  [[nodiscard]] std::vector<std::int64_t> peaks(const std::vector<std::vector<ComputeAction>>& orders) const {
    std::vector<std::int64_t> computes, out;
    for (const Stage& stage : stages_) computes.push_back(running(stage, {}));
    for (std::size_t r = 0; r < orders.size(); ++r) {
      for (const auto& [s, held] : held_at_peak(r, orders[r])) {
        auto& most = computes[static_cast<std::size_t>(s)];
        most = std::max(most, running(of(s), held));
      }
    }
    for (int s = 0; s < stated_.stages(); ++s) {
      const auto own = static_cast<std::size_t>(s);
      out.push_back(stages_[own].owned + std::max(computes[own], stages_[own].update - of_others(computes, s)));
    }
    return out;
  }

 private:
  struct Stage {
    std::int64_t slice = 0;                  // samples
    std::int64_t owned = 0, update = 0;      // bytes: of parameters; of the optimizer's step, after everything else
    std::int64_t on_host = 0;                // of parameters and the optimizer's step
    std::int64_t at_work = 0;                // of a compute action while it runs
    std::int64_t summing = 0;                // when no activations are left
    std::int64_t always = 0;                 // of the rest, independent of what is in flight
    std::int64_t kept = 0, parted = 0;       // for a micro-batch until its backward; from then until the second part
    std::int64_t arriving = 0, leaving = 0;  // values of a micro-batch from and to other stages
  };
  /// Micro-batches that are forward. `whole`: not yet backward. `parted`: backward except for parameter gradients.
  struct Flying {
    std::int64_t whole = 0, parted = 0;
  };
  using Held = std::vector<std::pair<int, Flying>>;  // by stage

  /// Results stay until their backward; one gradient of them is in use while the next one arrives.
  void add_made(const Crossing& crossing, Stage& stage) const {
    stage.leaving += checked_bytes(crossing.held, stage.slice);
    stage.always += checked_bytes(crossing.gradient, stage.slice) * std::min(count(), std::int64_t{2});
  }
  /// While an atom makes one gradient, in its workspace, the previous one may still be sent.
  void add_read(const Crossing& crossing, Stage& stage) const {
    stage.arriving += checked_bytes(crossing.value, stage.slice);
    stage.always += checked_bytes(crossing.gradient, stage.slice) * std::min(count() - 1, std::int64_t{1});
  }

  [[nodiscard]] std::int64_t running(const Stage& stage, const Flying& flying) const {
    return std::max(kept(stage, flying), stage.summing) + stage.at_work + stage.always + waiting(stage, flying);
  }
  /// Activations of micro-batches in flight.
  [[nodiscard]] static std::int64_t kept(const Stage& stage, const Flying& flying) {
    return stage.kept * flying.whole + stage.parted * flying.parted;
  }
  /// Values of micro-batches in flight, from and to other stages.
  [[nodiscard]] std::int64_t waiting(const Stage& stage, const Flying& flying) const {
    return stage.leaving * flying.whole + stage.arriving * std::min(count(), flying.whole + flying.parted + 1);
  }
  /// What compute actions of the rank's other stages take, before any update. Updates go one parameter at a time. The
  /// largest one counts at the first stage that has it; the others need no memory beside it.
  [[nodiscard]] std::int64_t of_others(const std::vector<std::int64_t>& computes, int s) const {
    std::int64_t sum = 0;
    const std::int64_t update = stages_[static_cast<std::size_t>(s)].update;
    for (const int other : stated_.stages_on(stated_.ranks_of(s).front().index())) {
      if (other == s) continue;
      const Stage& stage = stages_[static_cast<std::size_t>(other)];
      if (stage.update > update || (stage.update == update && other < s)) return update;
      sum += computes[static_cast<std::size_t>(other)];
    }
    return sum;
  }

  [[nodiscard]] Stage& of(int stage) { return stages_[static_cast<std::size_t>(stage)]; }
  [[nodiscard]] const Stage& of(int stage) const { return stages_[static_cast<std::size_t>(stage)]; }
  [[nodiscard]] std::int64_t count() const { return stated_.plan().microbatches; }
  [[nodiscard]] std::int64_t bucket() const { return stated_.plan().buckets.size.value(); }  // bytes

  /// On a rank with most samples: the caller's copies of results, and what belongs to no stage.
  [[nodiscard]] std::int64_t beside() const {
    const std::int64_t world = stated_.plan().world, samples = (stated_.plan().batch + world - 1) / world;
    std::map<std::int32_t, std::int64_t> bytes;
    for (const auto& output : stated_.model().outputs) {
      if (output.bytes.per_sample != 0) bytes[output.value] = checked_bytes(output.bytes, samples);
    }
    std::int64_t sum = checked_bytes(stated_.model().held_beside, samples);
    for (const auto& [value, own] : bytes) sum += own;
    return sum;
  }

  /// Stages that read a parameter.
  [[nodiscard]] std::vector<int> readers_of(ParameterId id) const {
    std::vector<int> readers;
    for (int s = 0; s < stated_.stages(); ++s) {
      if (stated_.parameters(s).contains(id)) readers.push_back(s);
    }
    return readers;
  }

  /// Whether an earlier stage of the same ranks reads a parameter, so that they hold it already.
  [[nodiscard]] bool is_there(ParameterId id, int s) const {
    const auto readers = readers_of(id);
    return std::any_of(readers.begin(), readers.end(),
                       [&](int reader) { return reader < s && stated_.ranks_of(reader) == stated_.ranks_of(s); });
  }

  /// Adds a stage's parameters. Under ZeRO a rank holds shards of what the level shards, up to the parameter's own
  /// highest level. If several stages read a parameter, they shard its optimizer state only. If it is offloaded, the
  /// host has what the optimizer works with. Gradients are made on the device, where a copy that is read replaces the
  /// parameter; new copies come in pieces.
  void add_parameters(int s) {
    const Plan& plan = stated_.plan();
    const bool offloads = plan.offload == Offload::kOptimizer, elsewhere = plan.host_memory > Bytes(0);
    Stage& stage = of(s);
    const std::set<ParameterId> several = read_by_several(s);
    std::int64_t shared = 0, gathered = 0, copied = 0;
    bool again = false;
    for (const ParameterId id : stated_.parameters(s)) {
      const std::int64_t bytes = stated_.held(id).bytes.value(), copy = stated_.held(id).copy.value();
      if (is_there(id, s)) continue;
      if (!stated_.held(id).trainable) {
        stage.owned += bytes + copy;
        continue;
      }
      int level = plan.zero;
      auto ranks = stated_.replicas(s);
      if (const auto readers = readers_of(id); readers.size() > 1) {
        std::set<Rank> all;
        for (const int reader : readers) all.insert(stated_.ranks_of(reader).begin(), stated_.ranks_of(reader).end());
        const bool replicated =
            std::any_of(readers.begin(), readers.end(), [&](int reader) { return stated_.replicas(reader) > 1; });
        level = replicated ? std::min(level, 1) : 0;
        ranks = static_cast<std::int64_t>(all.size());
      } else if (stated_.held(id).highest_zero > 0) {
        shared += bytes;
        gathered += read_as(stated_.held(id));
        again = again || several.contains(id);
      }
      level = std::min(level, stated_.held(id).highest_zero);
      const bool leaves = offloads && stated_.held(id).highest_zero > 0;
      const auto share = [&](std::int64_t whole, int from) {
        return level >= from ? (whole + ranks - 1) / ranks : whole;
      };
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
    // Until they are summed.
    for (const ParameterId id : several) stage.at_work += 2 * stated_.held(id).bytes.value();
    const std::int64_t largest = stated_.most_read(s);
    const std::int64_t parts = plan.zero > 0 ? stated_.replicas(s) : 1;
    const double temporaries = std::ceil(std::min(plan.optimizer_state_factor, 2.0));
    const std::int64_t update = (largest + parts - 1) / parts * static_cast<std::int64_t>(temporaries);
    (offloads && elsewhere ? stage.on_host : stage.update) += update;
    constexpr std::int64_t kPiece = std::int64_t{8} << 20;
    if (offloads && elsewhere) stage.update += std::min(copied, kPiece);
    if (stated_.replicas(s) < 2) return;
    const bool at_the_end = plan.zero == 1 && shared <= std::max(bucket(), largest);
    (at_the_end ? stage.summing : stage.at_work) += units_at_work(s, largest, shared, gathered, again);
  }

  /// Trained parameters with several readers in the stage.
  [[nodiscard]] std::set<ParameterId> read_by_several(int s) const {
    std::map<ParameterId, int> readers;
    for (const NodeId atom : stated_.plan().stages[static_cast<std::size_t>(s)].atoms) {
      const auto& read = stated_.model().graph[atom].parameters;
      for (const ParameterId id : std::set<ParameterId>(read.begin(), read.end())) ++readers[id];
    }
    std::set<ParameterId> out;
    for (const auto& [id, count] : readers) {
      if (count > 1 && stated_.held(id).trainable) out.insert(id);
    }
    return out;
  }

  /// Stages of one rank run one at a time, in the memory of the one that needs most: the first such stage.
  void take_turns(const std::vector<int>& stages) {
    for (std::int64_t Stage::*room : {&Stage::at_work, &Stage::summing}) {
      int most = -1;
      for (const int s : stages) {
        if (most < 0 || of(s).*room > of(most).*room) most = s;
      }
      for (const int s : stages) {
        if (s != most) of(s).*room = 0;
      }
    }
  }

  /// What is unsharded beside the shards. ZeRO 1: the shard of a sum before the sum is freed. ZeRO 2 and 3: units of
  /// gradients that fill and that are summed. It is all units if they wait for a parameter that several atoms read, or
  /// for the second half of a backward. ZeRO 3: also units of parameters, of one atom and the next.
  [[nodiscard]] std::int64_t units_at_work(int s, std::int64_t largest, std::int64_t shared, std::int64_t gathered,
                                           bool again) const {
    const int level = stated_.plan().zero;
    const std::int64_t unit = std::min(shared, largest > bucket() ? largest : stated_.unit_limit());
    const bool at_once = again || traits_of(stated_.plan().schedule).splits_backwards;
    const std::int64_t gradients = std::min(at_once ? shared + unit : 2 * unit, count() * shared);
    switch (level) {
      case 1:
        return (unit + stated_.replicas(s) - 1) / stated_.replicas(s);
      case 2:
        return gradients;
      case 3: {
        const std::int64_t units = std::min(largest > bucket() ? 2 * (largest + bucket()) : 3 * unit, shared);
        const double part = shared > 0 ? static_cast<double>(gathered) / static_cast<double>(shared) : 0;
        const auto smaller = static_cast<std::int64_t>(static_cast<double>(units) * part);
        const std::int64_t plain = gathered == shared ? units : smaller;
        return gradients + std::min(plain + checked_regathered(stated_, s).held, gathered);
      }
      default:
        return 0;
    }
  }

  /// Bytes of what stages compute with in place of a parameter.
  [[nodiscard]] static std::int64_t read_as(const ParameterProfile& parameter) {
    return (parameter.copy > Bytes(0) ? parameter.copy : parameter.bytes).value();
  }

  /// [atom of the stage] parameter gradients that its backward is the first to make, if none exist when a backward
  /// begins. That needs one micro-batch, on ranks that sum with no others and have no other stage.
  [[nodiscard]] std::vector<std::int64_t> gradients_to_come(int s) const {
    const auto& atoms = stated_.plan().stages[static_cast<std::size_t>(s)].atoms;
    std::vector<std::int64_t> bytes(atoms.size(), 0);
    const bool alone = stated_.replicas(s) == 1 && stated_.stages_on(stated_.ranks_of(s).front().index()).size() == 1;
    if (count() != 1 || !alone) return bytes;
    std::map<ParameterId, std::size_t> last_reader;
    for (std::size_t i = 0; i < atoms.size(); ++i) {
      for (const ParameterId id : stated_.model().graph[atoms[i]].parameters) last_reader[id] = i;
    }
    for (const auto& [id, i] : last_reader) {
      const auto& parameter = stated_.held(id);
      if (parameter.trainable) bytes[i] += parameter.bytes.value();
    }
    return bytes;
  }

  /// [atom of the stage] copies of its parameters that are made for this call only and freed with its backward or its
  /// segment's. Likewise for one micro-batch, and only if copies are neither gathered nor fetched from a host.
  [[nodiscard]] std::vector<std::int64_t> copies_to_go(int s) const {
    const StagePlan& plan = stated_.plan().stages[static_cast<std::size_t>(s)];
    std::vector<std::int64_t> bytes(plan.atoms.size(), 0);
    const bool alone = stated_.replicas(s) == 1 && stated_.stages_on(stated_.ranks_of(s).front().index()).size() == 1;
    const bool are_own = stated_.plan().zero == 0 && stated_.plan().offload == Offload::kNone;
    if (count() != 1 || !alone || !are_own) return bytes;
    std::map<NodeId, NodeId> first_with;  // of the atom's segment
    for (const auto& segment : plan.recomputed) {
      for (const NodeId atom : segment) first_with[atom] = *std::ranges::min_element(segment);
    }
    for (const NodeId atom : plan.atoms) {
      const NodeId gone_with = first_with.contains(atom) ? first_with.at(atom) : atom;
      const auto at = static_cast<std::size_t>(std::ranges::find(plan.atoms, gone_with) - plan.atoms.begin());
      for (const ParameterId id : stated_.model().graph[atom].parameters) {
        const ParameterProfile& parameter = stated_.held(id);
        if (parameter.trainable && parameter.copy_by_call) bytes[at] += parameter.copy.value();
      }
    }
    return bytes;
  }

  /// An atom works beside what earlier atoms keep. If it is recomputed, also beside what its segment has rebuilt so
  /// far. If backwards are split, beside what all atoms keep.
  void add_atoms(int s) {
    Stage& stage = of(s);
    const StagePlan& plan = stated_.plan().stages[static_cast<std::size_t>(s)];
    const bool parted = traits_of(stated_.plan().schedule).splits_backwards;
    std::map<NodeId, std::size_t> segment_of;
    for (std::size_t i = 0; i < plan.recomputed.size(); ++i) {
      for (const NodeId atom : plan.recomputed[i]) segment_of[atom] = i;
    }
    std::map<std::size_t, std::int64_t> rebuilt;
    std::map<std::size_t, CheckedAround> beside_segments;
    std::vector<std::int64_t> keeps, needs;
    for (const NodeId atom : plan.atoms) {
      const NodeCost cost = costs_.of_atom(atom, stage.slice);
      if (const auto again = segment_of.find(atom); again != segment_of.end()) {
        const auto [filled, is_first] = rebuilt.try_emplace(again->second, 0);
        CheckedAround& around = beside_segments[again->second];
        if (is_first) {
          around = checked_around(stated_, s, plan.recomputed[again->second], stage.slice);
          filled->second = parted ? 0 : -around.let_go;
        }
        filled->second += cost.saved.value();
        keeps.push_back(is_first ? around.kept : 0);
        filled->second -= around.until_rebuilt[atom];
        around.gradients += around.until_rebuilt[atom];
        const std::int64_t rebuilding = cost.forward_workspace.value() + around.gradients;
        const std::int64_t works = cost.workspace.value() - around.summed[atom];
        needs.push_back(filled->second + std::max(works, rebuilding));
        continue;
      }
      if (parted) stage.parted += cost.deferred_weight.value();
      keeps.push_back(cost.saved.value());
      needs.push_back(cost.workspace.value());
    }
    std::int64_t at_work = std::numeric_limits<std::int64_t>::min(), to_come = 0;
    std::int64_t gone = 0;
    const auto comes = gradients_to_come(s), goes = copies_to_go(s);
    for (const std::int64_t bytes : comes) to_come += bytes;
    for (std::size_t i = keeps.size(); i-- > 0; stage.kept += keeps[i], gone += goes[i]) {
      to_come -= comes[i];
      at_work = std::max(at_work, needs[i] - (parted ? 0 : stage.kept + to_come + gone));
    }
    stage.at_work += keeps.empty() ? 0 : at_work;
    stage.update -= gone;
  }

  [[nodiscard]] Held held_at_peak(std::size_t rank, const std::vector<ComputeAction>& order) const {
    Held now;
    for (const int s : stated_.stages_on(rank)) now.emplace_back(s, Flying{stated_.model().loss_mode ? 0 : count(), 0});
    if (!stated_.model().loss_mode) return now;  // results leave the call first
    const auto total = [&] {
      std::int64_t sum = 0;
      for (const auto& [s, held] : now) {
        sum += kept(of(s), held) + waiting(of(s), held);
      }
      return sum;
    };
    Held at_peak = now;
    std::int64_t peak = total();
    for (const ComputeAction& compute : order) {
      const auto own =
          std::find_if(now.begin(), now.end(), [&](const auto& one) { return one.first == compute.stage.value(); });
      if (compute.kind == ActionKind::kForward) ++own->second.whole;
      if (compute.kind == ActionKind::kBackward || compute.kind == ActionKind::kBackwardInput) --own->second.whole;
      if (compute.kind == ActionKind::kBackwardInput) ++own->second.parted;
      if (compute.kind == ActionKind::kBackwardWeight) --own->second.parted;
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
