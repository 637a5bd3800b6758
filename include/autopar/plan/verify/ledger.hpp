#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include <autopar/plan/verify/costs.hpp>
#include <autopar/plan/verify/stated_plan.hpp>

namespace autopar::verify {

/// Bytes that the ranks of a plan hold: permanently, and for micro-batches in flight.
template <class M>
class Ledger {
 public:
  Ledger(const StatedPlan& stated, const StatedCosts<M>& costs)
      : stated_(stated), plan_(stated.plan), costs_(costs), stages_(plan_.stages.size()) {
    for (std::size_t s = 0; s < stages_.size(); ++s) shares_ranks_ |= stated.beside(s).size() > 1;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      find_samples(s);
      add_atoms(s);
      add_parameters(s);
      add_units(s);
    }
    for (std::size_t c = 0; c < stated.channels.size(); ++c)
      add_channel(stated.pipeline.channels[c], stated.channels[c]);
  }

  /// What a stage has in its ranks' host memory, if that is separate from device memory.
  [[nodiscard]] Bytes on_host(std::size_t stage) const { return stages_[stage].on_host; }

  /// Bytes of each stage when its rank holds most; of its ranks, those of the one that holds most. A micro-batch counts
  /// on a rank with samples of it or without. Updates go one parameter at a time, when all compute actions are over:
  /// the largest one counts.
  [[nodiscard]] std::vector<Bytes> peaks() const {
    const auto orders = stated_.orders();
    std::vector<Bytes> computes(stages_.size(), kNothing), out;
    for (std::size_t r = 0; r < orders.size(); ++r) {
      const std::vector<Flying> flying = at_peak(orders[r]);
      Bytes to_come{};
      for (const std::size_t s : stated_.stages_on[r]) to_come += stages_[s].first_made - made(stages_[s], flying[s]);
      for (const std::size_t s : stated_.stages_on[r]) {
        const Bytes working = if_most(s, &Stage::working, Bytes(0)), summing = if_most(s, &Stage::summing, Bytes(0));
        const Bytes missing = if_most(s, &Stage::update, kNothing) == kNothing ? Bytes(0) : to_come;
        computes[s] =
            std::max(computes[s], in_flight(stages_[s], flying[s], summing) + working + stages_[s].always - missing);
      }
    }
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      Bytes update = if_most(s, &Stage::update, kNothing);
      for (const std::size_t other : stated_.beside(s)) update -= other == s ? Bytes(0) : computes[other];
      out.push_back(stages_[s].owned + std::max(computes[s], update));
    }
    return out;
  }

 private:
  struct Stage {
    Bytes owned{}, on_host{};       // permanently
    Bytes update{};                 // of the optimizer's step
    Bytes working{};                // of a compute action while it runs
    std::optional<Bytes> summed{};  // how much more one takes beside gradients of its backward, if it is the first
    Bytes summing{};                // when no activations are left
    Bytes always{};                 // of the rest, independent of what is in flight
    Bytes kept{}, parted{};         // for a micro-batch until its backward; from then until the second part
    Bytes arriving{}, leaving{};    // values of a micro-batch from and to other stages
    Bytes first_made{};             // gradients among `owned` that are not there before the first backward
    Bytes coming{};                 // what that backward holds of them beside what it began with
    std::vector<std::int64_t> samples{};  // by micro-batch: what it counts, against `most` of the largest
    std::int64_t most = 1, least = 1, all = 0;
  };
  enum class FirstBackward { kToCome, kNow, kOver };
  /// What micro-batches that are forward count. `whole`: not yet backward. `parted`: backward except for parameter
  /// gradients.
  struct Flying {
    std::int64_t whole = 0, parted = 0;
    FirstBackward first = FirstBackward::kToCome;
  };
  struct Atom {
    Bytes keeps{}, needs{};       // for a micro-batch; while it works
    Bytes gradients{}, copies{};  // of parameters: its backward makes the first, and frees the second
  };
  using Atoms = std::map<NodeId, Atom>;

  static constexpr Bytes kNothing{std::numeric_limits<std::int64_t>::min() / 2};

  [[nodiscard]] bool offloads() const { return plan_.offload == Offload::kOptimizer; }
  /// Bytes that the stages of a rank hold one at a time, in the memory of the one that needs most: the first such.
  [[nodiscard]] Bytes if_most(std::size_t s, Bytes Stage::*what, Bytes otherwise) const {
    const auto of = [&](std::size_t stage) { return stages_[stage].*what; };
    return *std::ranges::max_element(stated_.beside(s), {}, of) == s ? of(s) : otherwise;
  }

  /// Activations, at least `least`, and values from and to other stages.
  [[nodiscard]] Bytes in_flight(const Stage& stage, const Flying& now, Bytes least) const {
    const auto of = [&](Bytes largest, std::int64_t samples) {
      const std::int64_t bytes = largest.value() * samples;
      return Bytes(bytes / stage.most + (bytes % stage.most == 0 ? 0 : 1));
    };
    return std::max(of(stage.kept, now.whole) + of(stage.parted, now.parted), least) + of(stage.leaving, now.whole) +
           of(stage.arriving, arrived(stage, now));
  }
  /// One more micro-batch arrives ahead of its use, if there is one.
  [[nodiscard]] static std::int64_t arrived(const Stage& stage, const Flying& now) {
    return std::min(stage.all, now.whole + now.parted + stage.most);
  }
  [[nodiscard]] static Bytes made(const Stage& stage, const Flying& now) {
    if (now.first == FirstBackward::kToCome) return Bytes(0);
    return now.first == FirstBackward::kNow ? stage.coming : stage.first_made;
  }
  /// Likewise of all that differs in time.
  [[nodiscard]] Bytes weighed(const Stage& stage, const Flying& now) const {
    return (stage.kept + stage.leaving) * now.whole + stage.parted * now.parted + stage.arriving * arrived(stage, now) +
           made(stage, now) * stage.most;
  }
  /// Whether a compute action makes parameter gradients that count from the stage's first such action on. Backwards of
  /// recomputed segments are whole, in the first half.
  [[nodiscard]] bool makes_gradients(const ComputeAction& compute) const {
    if (compute.kind == ActionKind::kBackwardInput) return !plan_.stages[compute.stage.index()].recomputed.empty();
    return compute.kind != ActionKind::kForward;
  }
  /// By stage, when a rank holds most.
  [[nodiscard]] std::vector<Flying> at_peak(const std::vector<ComputeAction>& order) const {
    std::vector<Flying> now(stages_.size());
    if (!stated_.model.loss_mode) {  // results leave first
      for (std::size_t s = 0; s < stages_.size(); ++s) now[s] = {stages_[s].all, 0, FirstBackward::kOver};
      return now;
    }
    std::vector<Flying> peak = now;
    Bytes sum{}, most{};
    const auto becomes = [&](const ComputeAction& compute, const Flying& next) {
      Flying& own = now[compute.stage.index()];
      const Stage& stage = stages_[compute.stage.index()];
      sum += weighed(stage, next) - weighed(stage, own);
      own = next;
      if (sum > most) peak = now;
      most = std::max(most, sum);
    };
    for (const ComputeAction& compute : order) {
      Flying next = now[compute.stage.index()];
      if (next.first == FirstBackward::kToCome && makes_gradients(compute)) {
        next.first = FirstBackward::kNow;
        becomes(compute, next);
        next.first = FirstBackward::kOver;
      }
      const std::int64_t own = stages_[compute.stage.index()].samples[static_cast<std::size_t>(compute.microbatch)];
      if (compute.kind == ActionKind::kForward) next.whole += own;
      if (gives_input_gradients(compute.kind)) next.whole -= own;
      if (compute.kind == ActionKind::kBackwardInput) next.parted += own;
      if (compute.kind == ActionKind::kBackwardWeight) next.parted -= own;
      becomes(compute, next);
    }
    return peak;
  }

  /// The maker has results until their backward; one gradient of them is in use while the next one arrives. While an
  /// atom of the reader makes one gradient, in its workspace, the previous one may still be sent. A value that is alone
  /// in a message within a rank is not copied.
  void add_channel(const Channel& channel, const StatedChannel& size) {
    const auto add = [&](StageId of, Bytes Stage::*what, const Affine& values, int gradients) {
      const std::int64_t slice = stated_.stages[of.index()].slice;
      stages_[of.index()].*what += bytes_of(values, slice);
      stages_[of.index()].always += bytes_of(size.gradient, slice) * gradients;
    };
    const auto& meshes = stated_.pipeline.stages;
    const bool made = channel.from.valid(), read = channel.to.valid();
    const bool within = made && read && meshes[channel.from.index()] == meshes[channel.to.index()];
    if (made) add(channel.from, &Stage::leaving, size.held, std::min(plan_.microbatches, 2));
    if (read && !(within && size.values == 1))
      add(channel.to, &Stage::arriving, size.value, std::min(plan_.microbatches - 1, 1));
  }

  /// What the stage holds together follows the order in which its rank works, which is not the same for all
  /// micro-batches.
  [[nodiscard]] bool follows_order(std::size_t s) const {
    const bool is_stated = traits_of(plan_.schedule).orders_in_plan && plan_.microbatches > 1;
    return (shares_ranks_ || is_stated) && plan_.stages[s].mesh.replicas() == 1;
  }
  /// Whether all atoms of the stage that read a parameter leave its gradient to the second half, if there are halves.
  [[nodiscard]] bool is_late(std::size_t s, ParameterId id) const {
    return !stated_.splits_backwards() || std::ranges::all_of(stated_.stages[s].trained.at(id), [&](NodeId atom) {
      return costs_.of_atom(atom, 1).deferred_weight > Bytes(0);
    });
  }
  /// Where the order is followed, activations are in proportion to samples. Elsewhere all micro-batches count alike.
  void find_samples(std::size_t s) {
    Stage& stage = stages_[s];
    stage.samples.assign(static_cast<std::size_t>(plan_.microbatches), 1);
    if (follows_order(s)) {
      const BatchSplit split(stated_.pipeline, stated_.layout);
      std::vector<std::int64_t> sizes;
      for (int m = 0; m < plan_.microbatches; ++m) sizes.push_back(split.slice(StageId::of(s), 0, m).size());
      const auto [least, most] = std::ranges::minmax(sizes);
      stage.least = least == most ? 1 : least;
      stage.most = least == most ? 1 : most;
      if (least < most) stage.samples = std::move(sizes);
    }
    stage.all = std::accumulate(stage.samples.begin(), stage.samples.end(), std::int64_t{0});
  }

  /// An atom works beside what earlier atoms keep; if backwards are split, beside what all atoms keep. The gradients of
  /// the only micro-batch come while it goes, on ranks that sum with no others and have no other stage. Casts of
  /// parameters go with it if they are neither gathered nor fetched from a host.
  void add_atoms(std::size_t s) {
    const StagePlan& plan = plan_.stages[s];
    Stage& stage = stages_[s];
    Atoms atoms;
    std::map<NodeId, NodeId> first;  // atom of its segment
    for (const auto& segment : plan.recomputed) {
      for (const NodeId atom : segment) first[atom] = *std::ranges::min_element(segment);
      add_segment(s, {segment.begin(), segment.end()}, atoms);
    }
    for (const NodeId atom : plan.atoms) {
      stage.owned += costs_.resident(atom);
      if (first.contains(atom)) continue;
      const NodeCost cost = costs_.of_atom(atom, stated_.stages[s].slice);
      atoms[atom] = {cost.saved, cost.workspace};
      if (stated_.splits_backwards()) stage.parted += cost.deferred_weight;
    }
    add_gathered(s, atoms);
    const bool alone = plan_.microbatches == 1 && stated_.beside(s).size() == 1;
    const bool once = alone && plan.mesh.replicas() == 1;
    const bool sums = alone && !once && !stated_.splits_backwards();
    Bytes to_come{}, gone{}, made{}, working = atoms.empty() ? Bytes(0) : kNothing, summing = working;
    for (const auto& [id, readers] : stated_.stages[s].trained) {
      const ParameterProfile& parameter = stated_.parameter(id);
      if (readers.size() > 1) stage.working += parameter.bytes * 2;  // until they are summed
      if (!once && !sums) continue;
      atoms[readers.back()].gradients += parameter.bytes;
      if (sums) continue;
      to_come += parameter.bytes;
      if (!parameter.copy_by_call || plan_.zero > 0 || offloads()) continue;
      for (const NodeId reader : readers)
        atoms[first.contains(reader) ? first.at(reader) : reader].copies += parameter.copy;
    }
    bool any_made = false;
    for (auto atom = atoms.rbegin(); atom != atoms.rend(); ++atom) {
      const auto& [keeps, needs, gradients, copies] = atom->second;
      any_made |= stated_.stages[s].read_by.contains(atom->first);
      const Bytes fills = any_made ? most_filling(s, atom->first) : Bytes(0);
      if (once) to_come -= gradients;
      working = std::max(working, stated_.splits_backwards() ? needs : needs - stage.kept - to_come - gone);
      summing = std::max(summing, needs - stage.kept + made + fills);
      stage.kept += keeps;
      gone += copies;
      made += gradients;
    }
    if (sums && made > Bytes(0)) stage.summed = std::max(summing, made - stage.kept) - working;
    stage.working += working + outside_stages();
    stage.update -= gone;
  }

  [[nodiscard]] bool sums_units(std::size_t s) const { return plan_.zero >= 2 && plan_.stages[s].mesh.replicas() > 1; }
  /// Units that parameters of an atom lie in: its own, or a unit's limit, and of several one unit more.
  [[nodiscard]] Bytes units_with(std::size_t s, NodeId atom, Bytes read) const {
    const Bytes limit = stated_.unit_limit, least = std::max(read, limit);
    return stated_.stages[s].read_one.contains(atom) ? least : least + limit;
  }
  /// Beside gradients that later atoms made: the atom's, in their units, or the unit that its next reader goes on with.
  [[nodiscard]] Bytes most_filling(std::size_t s, NodeId atom) const {
    if (!sums_units(s)) return Bytes(0);
    const auto& read_by = stated_.stages[s].read_by;
    const auto own = read_by.find(atom);
    return own == read_by.end() ? stated_.unit_limit : units_with(s, atom, own->second);
  }

  /// ZeRO 3: the units of an atom's parameters, and of the nearest atom with parameters on one side one unit. What
  /// several atoms read stays, and a recomputed segment keeps some. An input half of a backward keeps all.
  void add_gathered(std::size_t s, Atoms& atoms) const {
    if (!sums_units(s) || plan_.zero < 3) return;
    const Sharded sharded = sharded_in_units(s);
    if (sharded.trained == Bytes(0)) return;
    std::map<NodeId, Bytes> kept;
    for (const auto& segment : plan_.stages[s].recomputed) {
      for (const NodeId atom : segment) kept[atom] = regathered(stated_, s, segment).kept;
    }
    const auto& read_by = stated_.stages[s].read_by;
    for (auto& [atom, of] : atoms) {
      const auto own = read_by.lower_bound(atom), after = read_by.upper_bound(atom);
      Bytes there = sharded.of_several, next{};
      if (own != after) there += units_with(s, atom, own->second);
      if (own != read_by.begin()) next = std::max(std::prev(own)->second, stated_.unit_limit);
      if (after != read_by.end()) next = std::max({next, after->second, stated_.unit_limit});
      there = stated_.splits_backwards() ? sharded.trained : std::min(there + next, sharded.trained);
      const double part = sharded.computed_with / sharded.trained;
      const Bytes gathered(static_cast<std::int64_t>(static_cast<double>(there.value()) * part));
      of.needs += std::min(gathered + kept[atom], sharded.computed_with);
    }
  }

  /// What a stage's replicas hold in shards of units.
  struct Sharded {
    Bytes trained{}, computed_with{};
    Bytes of_several{};  // units of what several atoms read
  };
  [[nodiscard]] Sharded sharded_in_units(std::size_t s) const {
    Sharded out;
    for (const auto& [id, atoms] : stated_.stages[s].trained) {
      const ParameterProfile& own = stated_.parameter(id);
      if (stated_.readers[id.index()].size() > 1 || own.highest_zero == 0) continue;
      out.trained += own.bytes;
      out.computed_with += own.computed_with();
      if (atoms.size() > 1) out.of_several += std::max(own.bytes, stated_.unit_limit);
    }
    return out;
  }

  /// A segment that is recomputed keeps what enters it from its stage, unless that is kept there, and what it keeps for
  /// others. Its atoms work beside what it has rebuilt so far, and without what it has kept for the stage alone. While
  /// it is rebuilt the gradients of what its stage reads of it are there. What atoms keep for readers outside alone
  /// goes when all is rebuilt; where such readers give two gradients, the atom receives their sum.
  void add_segment(std::size_t s, const std::set<NodeId>& segment, Atoms& atoms) {
    using ByValue = std::map<std::int32_t, Bytes>;
    const auto total = [](const ByValue& values) {
      return std::accumulate(values.begin(), values.end(), Bytes(0),
                             [](Bytes sum, const auto& v) { return sum + v.second; });
    };
    const auto& graph = stated_.model.graph;
    const std::int64_t slice = stated_.stages[s].slice;
    ByValue entering, leaving, answered;
    std::set<std::int32_t> goes_on;
    std::map<NodeId, ByValue> summed, until_rebuilt;
    for (const OutputProfile& output : stated_.model.outputs) {
      if (!segment.contains(output.writer)) continue;
      goes_on.insert(output.value);
      if (output.kept) leaving[output.value] = bytes_of(output.bytes, slice);
    }
    for (const NodeId atom : segment) {
      for (const EdgeId edge : graph.in_edges(atom)) {
        const NodeId source = graph.source(edge);
        if (stated_.stage_of[source.index()] == s && !segment.contains(source) && !graph[edge].kept)
          entering[graph[edge].value] = bytes_of(graph[edge].bytes, slice);
      }
      for (const EdgeId edge : graph.out_edges(atom)) {
        const ValueProfile& value = graph[edge];
        if (segment.contains(graph.target(edge))) continue;
        const Bytes bytes = bytes_of(value.bytes, slice);
        const bool here = stated_.stage_of[graph.target(edge).index()] == s;
        if (value.kept) leaving[value.value] = bytes;
        if (here && value.differentiable) answered[value.value] = bytes;
        if (!here) goes_on.insert(value.value);
        const bool is_read_inside = std::ranges::any_of(graph.out_edges(atom), [&](EdgeId other) {
          return graph[other].value == value.value && segment.contains(graph.target(other));
        });
        if (is_read_inside || stated_.sliced_in[atom.index()] != nullptr) continue;
        if (value.two_gradients) summed[atom][value.value] = bytes;
        if (value.kept && value.for_readers) until_rebuilt[atom][value.value] = bytes;
      }
    }
    atoms[*segment.begin()].keeps = total(entering) + total(leaving);
    std::erase_if(leaving, [&](const auto& value) { return goes_on.contains(value.first); });
    Bytes rebuilt = stated_.splits_backwards() ? Bytes(0) : Bytes(0) - total(leaving), gradients = total(answered);
    for (const NodeId atom : segment) {
      const NodeCost cost = costs_.of_atom(atom, slice);
      rebuilt += cost.saved - total(until_rebuilt[atom]);
      gradients += total(until_rebuilt[atom]);
      const Bytes workspace = cost.workspace - total(summed[atom]);
      atoms[atom].needs = rebuilt + std::max(workspace, cost.forward_workspace + gradients);
    }
  }

  /// On a rank with most samples: the caller's copies of results, and what belongs to no stage.
  [[nodiscard]] Bytes outside_stages() const {
    const std::int64_t samples = (plan_.batch + plan_.world - 1) / plan_.world;
    std::map<std::int32_t, Affine> results;
    for (const auto& output : stated_.model.outputs) results[output.value] = output.bytes;
    Bytes sum = bytes_of(stated_.model.held_beside, samples);
    for (const auto& [value, size] : results) sum += size.per_sample != 0 ? bytes_of(size, samples) : Bytes(0);
    return sum;
  }

  /// Under ZeRO a rank holds shards of what the level shards, up to the parameter's own highest level. If several
  /// stages read a parameter, they shard its optimizer state only, and a rank holds it once. If it is offloaded, the
  /// host has what the optimizer works with. Gradients are made on the device, where a copy that is read replaces the
  /// parameter; new copies come in pieces.
  void add_parameters(std::size_t s) {
    Stage& stage = stages_[s];
    const int replicas = plan_.stages[s].mesh.replicas();
    const bool to_host = offloads() && plan_.host_memory > Bytes(0);
    Bytes copied{};
    std::map<NodeId, Bytes> late;  // by the atom whose backward makes it
    for (const ParameterId id : plan_.stages[s].parameters) {
      const ParameterProfile& own = stated_.parameter(id);
      const auto& readers = stated_.readers[id.index()];
      if (*std::ranges::find_first_of(stated_.beside(s), readers) != s) continue;
      if (!own.trainable) {
        stage.owned += own.bytes + own.copy;
        continue;
      }
      const auto is_replicated = [&](std::size_t reader) { return plan_.stages[reader].mesh.replicas() > 1; };
      const bool tied = readers.size() > 1, leaves = offloads() && own.highest_zero > 0;
      const int highest = !tied ? 3 : std::ranges::any_of(readers, is_replicated) ? 1 : 0;
      const int level = std::min({plan_.zero, own.highest_zero, highest});
      const auto parts = tied ? static_cast<std::int64_t>(stated_.ranks_of(readers).size()) : replicas;
      const auto share = [&](Bytes whole, int from) { return level >= from ? part_of(whole, parts) : whole; };
      const double state = std::ceil(static_cast<double>(own.bytes.value()) * plan_.optimizer_state_factor);
      const Bytes states = share(Bytes(static_cast<std::int64_t>(state)), 1), stepped = share(own.bytes, 1);
      stage.owned += share(own.bytes, 2) * plan_.gradient_copies;
      if (!tied && plan_.zero == 0 && !offloads() && plan_.gradient_copies == 1 && follows_order(s) && is_late(s, id))
        late[stated_.stages[s].trained.at(id).back()] += own.bytes;
      if (own.copy == Bytes(0))
        stage.owned += share(own.bytes, 3);
      else
        stage.owned += leaves ? share(own.copy, 3) : stepped + (level == 3 && parts > 1 ? Bytes(0) : own.copy);
      if (leaves && to_host)
        stage.on_host += states + stepped * (1 + plan_.gradient_copies);
      else
        stage.owned += states + (leaves ? stepped : Bytes(0));
      if (leaves && own.copy > Bytes(0)) copied += stepped;
    }
    add_first_backward(s, late);
    const auto temporaries = static_cast<std::int64_t>(std::ceil(std::min(plan_.optimizer_state_factor, 2.0)));
    (to_host ? stage.on_host : stage.update) +=
        part_of(stated_.stages[s].most_read, plan_.zero > 0 ? replicas : 1) * temporaries;
    if (to_host) stage.update += std::min(copied, Bytes(8 << 20));
  }

  /// The first backward that makes gradients of parameters. A second half goes through the atoms in reverse and leaves
  /// nothing of what they kept for it, which of the smallest micro-batch is least.
  void add_first_backward(std::size_t s, const std::map<NodeId, Bytes>& gradients) {
    Stage& stage = stages_[s];
    for (const auto& [atom, bytes] : gradients) stage.first_made += bytes;
    stage.coming = stage.first_made;
    if (!stated_.splits_backwards() || !plan_.stages[s].recomputed.empty()) return;
    Bytes beside{};
    stage.coming = Bytes(0);
    const auto& atoms = plan_.stages[s].atoms;
    for (auto atom = atoms.rbegin(); atom != atoms.rend(); ++atom) {
      if (const auto of = gradients.find(*atom); of != gradients.end()) beside += of->second;
      stage.coming = std::max(stage.coming, beside);
      const Bytes kept = costs_.of_atom(*atom, stated_.stages[s].slice).deferred_weight;
      beside -= Bytes(kept.value() * stage.least / stage.most);
    }
  }

  /// What is sent, and units of gradients. ZeRO 1: the shard of a sum before the sum is freed. ZeRO 2 and 3: units of
  /// gradients that fill and that are summed. It is all units if they wait for a parameter that several atoms read, or
  /// for the second half of a backward.
  void add_units(std::size_t s) {
    Stage& stage = stages_[s];
    const int replicas = plan_.stages[s].mesh.replicas();
    const SentCopy copy = sent_copy(s);
    const Sharded sharded = sharded_in_units(s);
    const Bytes bucket = plan_.buckets.size, largest = stated_.stages[s].most_read;
    const Bytes unit = std::min(sharded.trained, largest > bucket ? largest : stated_.unit_limit);
    if (sums_units(s)) {
      const bool at_once = stated_.splits_backwards() || sharded.of_several > Bytes(0);
      const Bytes units = at_once ? sharded.trained + unit : unit * 2;
      stage.working += there(stage, std::min(units, sharded.trained * plan_.microbatches) + copy.bytes);
      return;
    }
    const bool has_shards = plan_.zero > 0 && replicas > 1;
    const Bytes beside = copy.bytes + (has_shards ? part_of(unit, replicas) : Bytes(0));
    if (copy.is_all && (!has_shards || unit == sharded.trained))
      stage.summing += beside;
    else
      stage.working += there(stage, beside);
  }

  /// Of so many bytes those that are there when a compute action needs most: gradients that it has made before, and
  /// what fills.
  [[nodiscard]] static Bytes there(const Stage& stage, Bytes most) {
    return stage.summed ? std::min(most, *stage.summed) : most;
  }

  /// Gradients that are sent in another element type: half a bucket is sent, and as much comes. Of one bucket at a
  /// time.
  struct SentCopy {
    Bytes bytes{};
    bool is_all = true;  ///< one bucket has all that is sent so
  };
  [[nodiscard]] SentCopy sent_copy(std::size_t s) const {
    Bytes in_shards{}, whole{};
    for (const ParameterId id : plan_.stages[s].parameters) {
      const ParameterProfile& own = stated_.parameter(id);
      const auto& readers = stated_.readers[id.index()];
      const bool first = *std::ranges::find_first_of(stated_.beside(s), readers) == s;
      const std::size_t replicas = plan_.stages[s].mesh.replica_group(0).size();
      const std::size_t ranks = readers.size() > 1 ? stated_.ranks_of(readers).size() : replicas;
      if (!own.trainable || !first || !is_rounded(plan_, own) || ranks < 2) continue;
      const auto is_replicated = [&](std::size_t reader) { return plan_.stages[reader].mesh.replicas() > 1; };
      const bool sharded = plan_.zero > 0 && own.highest_zero > 0 && std::ranges::any_of(readers, is_replicated);
      (sharded ? in_shards : whole) += own.bytes;
    }
    const Bytes bucket = plan_.buckets.size, largest = stated_.stages[s].most_read;
    const Bytes copy = std::max(std::min(in_shards, largest > bucket ? largest : stated_.unit_limit),
                                std::min(whole, std::max(largest, bucket)));
    return {copy, copy == in_shards + whole};
  }

  const StatedPlan& stated_;
  const Plan& plan_;
  const StatedCosts<M>& costs_;
  std::vector<Stage> stages_;
  bool shares_ranks_ = false;  // some ranks have several stages
};

}  // namespace autopar::verify
