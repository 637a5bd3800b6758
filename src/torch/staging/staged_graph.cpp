#include "torch/staging/staged_graph.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include <autopar/core/error.hpp>

#include "capture/algebra/global_sums.hpp"
#include "capture/algebra/parameter_reads.hpp"
#include "capture/ir/shard_moves.hpp"
#include "capture/ir/shown_name.hpp"

namespace autopar::staging {

namespace {

class Divider {
 public:
  Divider(const OpGraph& graph, const algebra::BatchSemantics& plan, const StageMap& stages)
      : graph_(graph), plan_(plan), stages_(stages) {}

  StagedGraph divide(int world) && {
    division_.pipeline.ranks = world;
    division_.pipeline.stages = stages_.meshes;
    division_.stage_ops.resize(stages_.meshes.size());
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      if (plan_.ops[i].in_stage) add_op(OpId::of(i));
    }
    for (const auto& output : plan_.outputs) {
      if (output.kind == algebra::OutputKind::kBatched) {
        add_value(stage_of_value(output.value), kSink, output.value, ChannelKind::kBatched);
      }
    }
    move_channels();
    add_groups();
    return std::move(division_);
  }

 private:
  [[nodiscard]] StageId stage_of_value(ValueId value) const {
    const auto definer = graph_.value(value).definer;
    if (!definer.valid()) return kSource;
    return stages_.stage_of[definer.index()];
  }

  void add_op(OpId op) {
    const auto stage = stages_.stage_of[op.index()];
    division_.stage_ops[stage.index()].push_back(op);
    for_each_input(graph_.op(op), [&](ValueId value) {
      const auto& info = graph_.value(value);
      if (info.kind == ValueKind::kParameter) readers_[value].insert(stage);
      if (info.is_leaf() && info.kind != ValueKind::kInput) return;
      if (plan_.is_prologue(value)) return;
      const auto from = stage_of_value(value);
      const auto* collective = plan_.type(value).is(BatchKind::kPartialSum) ? plan_.handling(op).collective : nullptr;
      if (from != stage) add_value(from, stage, value, collective ? ChannelKind::kTotal : kind_of(value));
    });
  }

  void add_value(StageId from, StageId to, ValueId value, ChannelKind kind) {
    if (from.valid() && to.valid() && from > to) {
      throw InvalidArgument("stage " + std::to_string(to.value()) + " would read a value of " +
                            graph_.describe(graph_.value(value).definer) + ", which the later stage " +
                            std::to_string(from.value()) + " makes; this plan does not belong to this model");
    }
    channels_[{from == kSource ? -1 : from.value(), to == kSink ? 1 << 20 : to.value(), kind}].insert(value);
  }

  [[nodiscard]] ChannelKind kind_of(ValueId value) const {
    const auto& type = plan_.type(value);
    if (const auto placement = type.placement()) {
      if (placement->is_shard()) return ChannelKind::kBatched;
      return placement->is_partial() ? ChannelKind::kPartialSum : ChannelKind::kReplicated;
    }
    throw InvalidArgument("a value of " + graph_.describe(graph_.value(value).definer) + " (" +
                          std::string(name_of(type.kind)) + ") may not leave its stage; use another plan");
  }

  void move_channels() {
    for (auto& [key, values] : channels_) {
      const auto [from, to, kind] = key;
      const bool differentiable =
          std::any_of(values.begin(), values.end(), [&](ValueId value) { return graph_.value(value).has_gradient(); });
      division_.pipeline.channels.push_back(
          {from < 0 ? kSource : StageId(from), to >= 1 << 20 ? kSink : StageId(to), kind, differentiable});
      division_.channel_values.emplace_back(values.begin(), values.end());
    }
  }

  // The order in which groups are issued. Groups of one stage come first, the last stage's before the others', since on
  // a rank with several stages its backward ends first. Groups of tied parameters follow.
  void add_groups() {
    const auto later_first = [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : b.second < a.second;
    };
    std::map<std::pair<std::size_t, std::vector<StageId>>, std::vector<std::pair<OpId, ValueId>>, decltype(later_first)>
        groups(later_first);
    auto last = algebra::last_reads(graph_, plan_);
    for (const auto& [parameter, reading] : readers_) {
      if (!graph_.value(parameter).requires_grad) continue;
      std::vector<StageId> stages(reading.begin(), reading.end());
      const auto count = std::min<std::size_t>(stages.size(), 2);
      groups[{count, std::move(stages)}].emplace_back(last[parameter], parameter);
    }
    for (auto& [key, parameters] : groups) {
      const auto& stages = key.second;
      std::sort(parameters.rbegin(), parameters.rend());
      std::vector<ValueId> ordered;
      for (const auto& [op, parameter] : parameters) ordered.push_back(parameter);
      if (stages.size() == 1) {
        const auto& mesh = division_.pipeline.stages[stages.front().index()];
        for (int shard = 0; shard < mesh.tensor(); ++shard) {
          auto ranks = mesh.replica_group(shard);
          std::sort(ranks.begin(), ranks.end());
          add_group(std::move(ranks), stages.front(), shard, ordered);
        }
        continue;
      }
      std::set<Rank> ranks;
      for (const auto stage : stages) {
        const auto& mesh = division_.pipeline.stages[stage.index()];
        if (mesh.tensor() > 1) refuse_tied(ordered.front(), stage, mesh.tensor());
        ranks.insert(mesh.ranks().begin(), mesh.ranks().end());
      }
      add_group({ranks.begin(), ranks.end()}, StageId::none(), 0, ordered);
    }
  }

  void add_group(std::vector<Rank> ranks, StageId stage, int shard, std::vector<ValueId> parameters) {
    if (ranks.size() < 2) return;
    division_.group_parameters.push_back(std::move(parameters));
    division_.group_shards.push_back(shard);
    division_.pipeline.groups.push_back({std::move(ranks), stage, 1});
  }

  [[noreturn]] void refuse_tied(ValueId parameter, StageId stage, int shards) const {
    throw InvalidArgument("parameter '" + graph_.value(parameter).name +
                          "' is read by several stages, of which stage " + std::to_string(stage.value()) + " has " +
                          std::to_string(shards) +
                          " tensor shards; set tensor_parallel = 1, or use one stage for what reads it");
  }

  const OpGraph& graph_;
  const algebra::BatchSemantics& plan_;
  const StageMap& stages_;
  StagedGraph division_;
  std::map<std::tuple<int, int, ChannelKind>, std::set<ValueId>> channels_;
  std::map<ValueId, std::set<StageId>> readers_;  // stages that read a parameter
};

}  // namespace

StagedGraph divide(const OpGraph& graph, const algebra::BatchSemantics& plan, const StageMap& stages, int world) {
  return Divider(graph, plan, stages).divide(world);
}

void include_holders(StagedGraph& division, const OpGraph& graph, const std::vector<std::vector<Rank>>& holders) {
  std::map<ValueId, std::set<Rank>> readers;  // of trained parameters
  for (std::size_t s = 0; s < division.stage_ops.size(); ++s) {
    const auto& replicas = division.pipeline.stages[s].ranks();
    for (const auto op : division.stage_ops[s]) {
      for_each_input(graph.op(op), [&](ValueId value) {
        const auto& info = graph.value(value);
        if (info.kind != ValueKind::kParameter || !info.requires_grad) return;
        readers[value].insert(replicas.begin(), replicas.end());
      });
    }
  }
  std::map<std::vector<Rank>, std::vector<ValueId>> wider;
  std::set<ValueId> moved;
  for (const auto& [parameter, ranks] : readers) {
    const auto& of_parameter = holders[parameter.index()];
    if (of_parameter.size() <= ranks.size()) continue;
    wider[of_parameter].push_back(parameter);
    moved.insert(parameter);
  }
  auto& groups = division.pipeline.groups;
  for (std::size_t g = groups.size(); g-- > 0;) {
    auto& parameters = division.group_parameters[g];
    std::erase_if(parameters, [&](ValueId parameter) { return moved.count(parameter) > 0; });
    if (!parameters.empty()) continue;
    groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(g));
    division.group_parameters.erase(division.group_parameters.begin() + static_cast<std::ptrdiff_t>(g));
    division.group_shards.erase(division.group_shards.begin() + static_cast<std::ptrdiff_t>(g));
  }
  for (auto& [ranks, parameters] : wider) {
    groups.push_back({ranks, StageId::none(), 1});
    division.group_shards.push_back(0);
    division.group_parameters.push_back(std::move(parameters));
  }
}

namespace {

/// A reduction group before it is numbered.
struct PlannedGroup {
  ReduceGroup group;
  std::vector<ValueId> parameters;
  int unit = -1;
  int shard = 0;  ///< see StagedGraph::group_shards
  OpId last{};    ///< last op that reads one of its parameters
};

/// The order in which groups are issued. Groups of one stage come first, later stages before earlier ones, last-read
/// parameters first. Groups of tied parameters follow.
bool is_issued_before(const PlannedGroup& a, const PlannedGroup& b) {
  const auto key = [](const PlannedGroup& each) {
    return std::tuple(!each.group.stage.valid(), -each.group.stage.value(),
                      -static_cast<std::int64_t>(each.last.value()));
  };
  return key(a) < key(b);
}

}  // namespace

namespace {

// A view of a parameter is read like the parameter, and so is a copy that is gathered instead of it.
std::map<StorageId, StagedGraph::InGroup> parameters_of_storages(const StagedGraph& division, const OpGraph& graph,
                                                                 const algebra::BatchSemantics& plan,
                                                                 const ShardedParameters& sharded) {
  std::map<int, int> group_of;  // by unit
  for (std::size_t g = 0; g < division.group_units.size(); ++g) {
    if (division.group_units[g] >= 0) group_of[division.group_units[g]] = static_cast<int>(g);
  }
  std::map<ValueId, StagedGraph::InGroup> by_parameter;
  for (const auto& [name, value] : graph.parameters) {
    StagedGraph::InGroup in{{}, value};
    for (const int unit : sharded.units_of[value.index()]) {
      const auto group = group_of.find(unit);
      if (group != group_of.end()) in.groups.push_back(group->second);
    }
    if (!in.groups.empty()) by_parameter[value] = std::move(in);
  }
  std::map<StorageId, StagedGraph::InGroup> out;
  if (by_parameter.empty()) return out;
  const auto behind = algebra::parameters_behind(graph, plan);
  for (std::size_t storage = 0; storage < behind.size(); ++storage) {
    const auto parameter = by_parameter.find(behind[storage]);
    if (parameter != by_parameter.end()) out[StorageId::of(storage)] = parameter->second;
  }
  return out;
}

}  // namespace

void shard_groups(StagedGraph& division, const OpGraph& graph, const algebra::BatchSemantics& batch_plan,
                  const ShardedParameters& sharded) {
  auto last_read = algebra::last_reads(graph, batch_plan);
  std::map<int, std::set<StageId>> readers;  // by unit
  std::map<int, std::set<ValueId>> trained;  // by unit
  for (std::size_t s = 0; s < division.stage_ops.size(); ++s) {
    for (const auto op : division.stage_ops[s]) {
      for_each_input(graph.op(op), [&](ValueId value) {
        if (graph.value(value).kind != ValueKind::kParameter) return;
        for (const int unit : sharded.units_of[value.index()]) {
          readers[unit].insert(StageId::of(s));
          if (graph.value(value).requires_grad) trained[unit].insert(value);
        }
      });
    }
  }
  std::vector<PlannedGroup> planned;
  const auto plan = [&](ReduceGroup group, std::vector<ValueId> parameters, int unit, int shard) {
    OpId last;
    for (const auto parameter : parameters) last = std::max(last, last_read[parameter]);
    planned.push_back({std::move(group), std::move(parameters), unit, shard, last});
  };
  for (std::size_t g = 0; g < division.group_parameters.size(); ++g) {
    std::vector<ValueId> whole;
    for (const auto parameter : division.group_parameters[g]) {
      if (sharded.units_of[parameter.index()].empty()) whole.push_back(parameter);
    }
    if (!whole.empty()) plan(division.pipeline.groups[g], std::move(whole), -1, division.group_shards[g]);
  }
  for (const auto& [unit, stages] : readers) {
    const auto& of_unit = sharded.units[static_cast<std::size_t>(unit)];
    const auto stage = stages.size() == 1 ? *stages.begin() : StageId::none();
    std::vector<Rank> replicas;
    int shard = 0;
    if (stage.valid()) {
      const auto& mesh = division.pipeline.stages[stage.index()];
      shard = mesh.shard_of(of_unit.ranks.front()).value_or(0);
      replicas = mesh.replica_group(shard);
      std::sort(replicas.begin(), replicas.end());
    }
    if (of_unit.zero >= 3 && replicas != of_unit.ranks) {
      throw InvalidArgument(
          "parameter '" + of_unit.places.front().names.front() +
          "' is gathered within the compute actions of one stage (ZeRO 3), but in this mode or with these arguments "
          "several parts of the model read it; call the model in this mode first, or set zero = 2");
    }
    plan({of_unit.ranks, stage, 1, replicas == of_unit.ranks ? of_unit.zero : 1},
         {trained[unit].rbegin(), trained[unit].rend()}, unit, shard);
  }
  std::stable_sort(planned.begin(), planned.end(), is_issued_before);
  division.pipeline.groups.clear();
  division.group_parameters.clear();
  division.group_units.clear();
  division.group_shards.clear();
  for (auto& each : planned) {
    division.pipeline.groups.push_back(std::move(each.group));
    division.group_parameters.push_back(std::move(each.parameters));
    division.group_units.push_back(each.unit);
    division.group_shards.push_back(each.shard);
  }
  division.parameter_of_storage = parameters_of_storages(division, graph, batch_plan, sharded);
}

namespace {

/// Simulates a whole backward of one stage on the ranks of one tensor shard.
class BackwardOfStage {
 public:
  BackwardOfStage(StagedGraph& division, StageId stage, int shard, const OpGraph& graph,
                  const algebra::BatchSemantics& plan, const ShardedParameters& sharded, Bytes kept)
      : division_(division), stage_(stage), shard_(shard), graph_(graph), sharded_(sharded), kept_(kept) {
    const auto& channels = division.pipeline.channels;
    for (std::size_t c = 0; c < channels.size(); ++c) {
      if (channels[c].from != stage) continue;
      for (const auto value : division.channel_values[c]) leaves(value);
    }
    for (const auto& sum : algebra::global_sums(graph, plan)) leaves(sum.value);
    for (const auto& update : plan.buffer_updates) leaves(update.result);
  }

  void add_part(const interpret::StagePart& part) {
    for (const auto op : part.ops) {
      for_each_input(graph_.op(op), [&](ValueId value) {
        const auto* read = find(value);
        if (read == nullptr) return;
        const int g = own_of(*read);
        reads_[op].insert(g);
        like_.emplace(g, read->groups.front());
        const auto [at, is_new] = part_of_.emplace(read->parameter, parts_.size());
        if (!is_new && at->second != parts_.size()) elsewhere_.insert(g);
      });
      for_each_input(graph_.op(op), [&](ValueId value) {
        const auto maker = graph_.value(value).definer;
        const auto move = maker.valid() ? ir::shard_move_named(graph_.name(maker)) : std::nullopt;
        if (move && ir::sums_gradient(*move)) left_to_[maker].insert(reads_[op].begin(), reads_[op].end());
      });
    }
    parts_.push_back(part);
  }

  void play() {
    for (std::size_t p = parts_.size(); p-- > 0;) {
      if (parts_[p].recomputed)
        play_recomputed(parts_[p].ops);
      else
        play_once(parts_[p].ops);
    }
    for (std::size_t g = 0; g < groups().size(); ++g) {
      const bool is_here = groups()[g].stage == stage_ && gathers(static_cast<int>(g)) &&
                           autopar::shard_of(division_.pipeline, groups()[g]) == shard_;
      if (is_here) gather(static_cast<int>(g));  // groups that nothing reads come last
    }
    auto& of_stage = division_.pipeline.backward_gathers[stage_.index()];
    of_stage.insert(of_stage.end(), order_.begin(), order_.end());
  }

 private:
  [[nodiscard]] std::vector<ReduceGroup>& groups() const { return division_.pipeline.groups; }
  [[nodiscard]] const ReduceGroup& group(int g) const { return groups()[static_cast<std::size_t>(g)]; }
  [[nodiscard]] bool gathers(int g) const { return gathers_in_computes(group(g)); }
  /// The group of the parameter that a value, view or copy belongs to; null unless it is in a group of this stage.
  [[nodiscard]] const StagedGraph::InGroup* find(ValueId value) const {
    const auto found = division_.parameter_of_storage.find(graph_.value(value).storage);
    const bool is_here =
        found != division_.parameter_of_storage.end() && group(found->second.groups.front()).stage == stage_;
    return is_here ? &found->second : nullptr;
  }
  [[nodiscard]] int own_of(const StagedGraph::InGroup& parameter) const {
    return parameter.groups[static_cast<std::size_t>(shard_)];
  }
  void leaves(ValueId value) {
    if (const auto* parameter = find(value)) elsewhere_.insert(own_of(*parameter));
  }
  /// Bytes of a group that something reads, on the first tensor shard, which is the largest.
  [[nodiscard]] Bytes bytes_of(int g) const {
    const auto first = static_cast<std::size_t>(like_.at(g));
    const auto& unit = sharded_.units[static_cast<std::size_t>(division_.group_units[first])];
    return Bytes(unit.elements * static_cast<std::int64_t>(c10::elementSize(unit.gathered)));
  }

  void play_once(const std::vector<OpId>& ops) {
    for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
      gather_for(*op);
      for (const int g : given_by(*op)) fill(g);
    }
  }
  // If other parts also read a parameter, a segment adds its gradient at the end of the segment's backward.
  void play_recomputed(const std::vector<OpId>& ops) {
    for (const auto op : ops) gather_for(op);
    reshard_after(ops);
    std::set<int> at_end;
    for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
      gather_for(*op);
      for (const int g : given_by(*op)) {
        if (elsewhere_.count(g) > 0)
          at_end.insert(g);
        else
          fill(g);
      }
    }
    for (const int g : at_end) fill(g);
  }

  /// Groups whose gradients may be added when the backward passes an operator.
  [[nodiscard]] std::set<int> given_by(OpId op) {
    auto groups = reads_[op];
    groups.insert(left_to_[op].begin(), left_to_[op].end());
    return groups;
  }
  void gather(int g) {
    if (there_.insert(g).second) order_.push_back(g);
  }
  void gather_for(OpId op) {
    for (const int g : reads_[op]) {
      if (gathers(g)) gather(g);
    }
  }
  void fill(int g) {
    if (sums_in_computes(group(g)))
      groups()[static_cast<std::size_t>(g)].filled_after = static_cast<int>(order_.size());
  }
  /// Decides what is resharded after a segment has run again. Its backward first needs the parameters that it read
  /// last.
  void reshard_after(const std::vector<OpId>& ops) {
    std::set<int> seen;
    Bytes kept{};
    for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
      for (const int g : reads_[*op]) {
        if (!gathers(g) || elsewhere_.count(g) > 0 || !seen.insert(g).second) continue;
        kept += bytes_of(g);
        if (kept <= kept_ || seen.size() == 1) continue;
        division_.resharded_after[*op].push_back(g);
        there_.erase(g);
      }
    }
  }

  StagedGraph& division_;
  StageId stage_;
  int shard_;
  const OpGraph& graph_;
  const ShardedParameters& sharded_;
  Bytes kept_;
  std::vector<interpret::StagePart> parts_;  // in execution order
  std::map<OpId, std::set<int>> reads_;      // groups that the op reads
  std::map<OpId, std::set<int>> left_to_;    // groups whose gradients the readers of a value leave to the op that makes
                                             // it
  std::map<int, int> like_;                  // by group: the corresponding group of the first tensor shard
  std::map<ValueId, std::size_t> part_of_;   // by parameter: the first part that reads it
  std::set<int> elsewhere_;  // groups with a parameter that several parts read, or that leaves the stage
  std::set<int> there_;
  std::vector<int> order_;
};

}  // namespace

void order_backward_gathers(StagedGraph& division, const OpGraph& graph, const algebra::BatchSemantics& plan,
                            const ShardedParameters& sharded, const interpret::RecomputedAtoms& recomputed,
                            Bytes kept) {
  division.pipeline.backward_gathers.assign(division.stage_ops.size(), {});
  for (std::size_t s = 0; s < division.stage_ops.size(); ++s) {
    const auto& groups = division.pipeline.groups;
    const auto gathers = [&](const ReduceGroup& group) {
      return group.stage == StageId::of(s) && gathers_in_computes(group);
    };
    if (std::none_of(groups.begin(), groups.end(), gathers)) continue;
    std::vector<OpId> each_slice;
    for (const auto op : division.stage_ops[s]) {
      if (!plan.handling(op).once) each_slice.push_back(op);
    }
    for (int shard = 0; shard < division.pipeline.stages[s].tensor(); ++shard) {
      BackwardOfStage backward(division, StageId::of(s), shard, graph, plan, sharded, kept);
      for (const auto& part : interpret::parts_of_stage(graph, each_slice, recomputed)) backward.add_part(part);
      backward.play();
    }
  }
}

StageMap cut_at_collectives(const OpGraph& graph, const algebra::BatchSemantics& plan, const cost::AtomPartition& atoms,
                            const StageMap& stages) {
  std::vector<int> level(atoms.atoms.size(), 0);
  std::map<std::pair<StageId, int>, StageId> parts;  // by stage and level
  std::vector<std::pair<StageId, int>> part_of(atoms.atoms.size());
  for (std::size_t atom = 0; atom < level.size(); ++atom) {
    const auto stage = stages.stage_of[atoms.atoms[atom].front().index()];
    const bool several = stages.meshes[stage.index()].replicas() > 1;
    for (const auto op : atoms.atoms[atom]) {
      for_each_input(graph.op(op), [&](ValueId value) {
        const auto definer = graph.value(value).definer;
        if (!definer.valid() || !atoms.atom_of[definer.index()].valid()) return;
        const bool adds_up = plan.handling(op).collective != nullptr && plan.type(value).is(BatchKind::kPartialSum);
        const auto from = atoms.atom_of[definer.index()].index();
        if (from != atom) {
          level[atom] = std::max(level[atom], level[from] + (adds_up ? 1 : 0));
        } else if (adds_up && several) {
          throw CaptureError(
              ir::shown_name(graph, definer), graph.op(definer).path,
              "replicas cannot add it up, because memory that is written later holds it and what follows "
              "from it; write into a copy, or use one replica");
        }
      });
    }
    part_of[atom] = {stage, several ? level[atom] : 0};
    parts.emplace(part_of[atom], StageId::none());
  }
  StageMap cut{stages.stage_of, {}, std::vector<std::vector<StageId>>(stages.meshes.size())};
  for (auto& [part, id] : parts) {
    id = StageId::of(cut.meshes.size());
    cut.parts[part.first.index()].push_back(id);
    cut.meshes.push_back(stages.meshes[part.first.index()]);
  }
  for (std::size_t i = 0; i < cut.stage_of.size(); ++i) {
    if (const auto atom = atoms.atom_of[i]; atom.valid()) cut.stage_of[i] = parts.at(part_of[atom.index()]);
  }
  return cut;
}

namespace {

/// Assigns atoms to stages one by one; atoms and their ops come in topological order.
class AtomPlacer {
 public:
  AtomPlacer(const OpGraph& graph, const algebra::BatchSemantics& plan, const cost::AtomPartition& atoms,
             const std::vector<std::vector<StageId>>& home)
      : graph_(graph), plan_(plan), atoms_(atoms), home_(home), stage_(atoms.atoms.size()), free_(atoms.atoms.size()) {}

  std::vector<StageId> place(int stages) && {
    for (std::size_t atom = 0; atom < stage_.size(); ++atom) place_after_inputs(atom);
    const auto uses = graph_.uses();
    for (std::size_t atom = stage_.size(); atom-- > 0;) {
      if (free_[atom]) move_to_first_reader(atom, uses, StageId(stages - 1));
    }
    std::vector<StageId> stage_of(graph_.ops.size());
    for (std::size_t i = 0; i < stage_of.size(); ++i) {
      if (atoms_.atom_of[i].valid()) stage_of[i] = stage_[atoms_.atom_of[i].index()];
    }
    return stage_of;
  }

 private:
  void place_after_inputs(std::size_t atom) {
    StageId earliest(0);
    std::vector<StageId> homes;  // stages that hold all parameters of the atom
    OpId reader;
    for (const auto op : atoms_.atoms[atom]) {
      for_each_input(graph_.op(op), [&](ValueId value) {
        const auto& info = graph_.value(value);
        const auto& at = home_[value.index()];
        if (!at.empty() && !plan_.is_prologue(value)) {
          homes = reader.valid() ? common(homes, at) : at;
          reader = op;
        } else if (info.definer.valid() && atoms_.atom_of[info.definer.index()].valid()) {
          const auto maker = atoms_.atom_of[info.definer.index()].index();
          if (maker != atom) earliest = std::max(earliest, stage_[maker]);
        }
      });
    }
    free_[atom] = !reader.valid() && earliest == StageId(0);
    stage_[atom] = earliest;
    if (!reader.valid()) return;
    const auto found = std::lower_bound(homes.begin(), homes.end(), earliest);
    if (found == homes.end()) refuse(reader, earliest);
    stage_[atom] = *found;
  }

  static std::vector<StageId> common(const std::vector<StageId>& a, const std::vector<StageId>& b) {
    std::vector<StageId> both;
    std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
    return both;
  }

  void move_to_first_reader(std::size_t atom, const std::vector<std::vector<OpId>>& uses, StageId last) {
    StageId first = last;
    bool read = false;
    for (const auto op : atoms_.atoms[atom]) {
      for_each_output(graph_.op(op), [&](ValueId value) {
        for (const auto use : uses[value.index()]) {
          const auto reader = atoms_.atom_of[use.index()];
          if (!reader.valid() || reader.index() == atom) continue;
          first = std::min(first, stage_[reader.index()]);
          read = true;
        }
      });
    }
    if (read) stage_[atom] = first;
  }

  [[noreturn]] void refuse(OpId op, StageId earliest) const {
    throw CaptureError(
        ir::shown_name(graph_, op), graph_.op(op).path,
        "in this mode or with these arguments it reads values of stage " + std::to_string(earliest.value()) +
            ", but its parameters were put in an earlier stage, or in different ones, by the first capture; "
            "make the first call in this mode, or use one stage");
  }

  const OpGraph& graph_;
  const algebra::BatchSemantics& plan_;
  const cost::AtomPartition& atoms_;
  const std::vector<std::vector<StageId>>& home_;
  std::vector<StageId> stage_;
  std::vector<bool> free_;  // by atom: whether it reads neither parameters nor another stage's values
};

}  // namespace

std::vector<StageId> place_by_parameters(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                         const cost::AtomPartition& atoms,
                                         const std::vector<std::vector<StageId>>& home, int stages) {
  return AtomPlacer(graph, plan, atoms, home).place(stages);
}

}  // namespace autopar::staging
