#include <autopar/torch/engine/division.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include <autopar/core/error.hpp>

namespace autopar {

namespace {

bool has_gradient(const ValueInfo& value) {
  return value.requires_grad && (c10::isFloatingType(value.dtype) || c10::isComplexType(value.dtype));
}

class Divider {
 public:
  Divider(const OpGraph& graph, const BatchPlan& plan, const std::vector<StageId>& stage_of) 
      : graph_(graph), plan_(plan), stage_of_(stage_of) {}

  Division divide(const std::vector<std::vector<Rank>>& stage_ranks, int world) && {
    division_.pipeline.ranks = world;
    division_.pipeline.stages = stage_ranks;
    division_.stage_ops.resize(stage_ranks.size());
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      if (plan_.ops[i].in_stage) add_op(OpId::of(i));
    }
    for (const auto& output : plan_.outputs) {
      if (output.kind == OutputKind::kBatched) add_value(stage_of_value(output.value), kSink, output.value);
    }
    move_channels();
    add_groups();
    return std::move(division_);
  }

 private:
  [[nodiscard]] StageId stage_of_value(ValueId value) const {
    const auto definer = graph_.value(value).definer;
    if (!definer.valid()) return kSource;
    return stage_of_[definer.index()];
  }

  void add_op(OpId op) {
    const auto stage = stage_of_[op.index()];
    division_.stage_ops[stage.index()].push_back(op);
    for_each_input(graph_.op(op), [&](ValueId value) {
      const auto& info = graph_.value(value);
      if (info.kind == ValueKind::kParameter) last_reads_[value][stage] = op;
      if (info.is_leaf() && info.kind != ValueKind::kInput) return;
      if (plan_.is_prologue(value)) return;
      const auto from = stage_of_value(value);
      if (from != stage) add_value(from, stage, value);
    });
  }

  void add_value(StageId from, StageId to, ValueId value) {
    if (from.valid() && to.valid() && from > to) {
      throw InvalidArgument("stage " + std::to_string(to.value()) + " would read a value of " +
                            graph_.describe(graph_.value(value).definer) + ", which the later stage " +
                            std::to_string(from.value()) + " makes; this plan does not belong to this model");
    }
    channels_[{from == kSource ? -1 : from.value(), to == kSink ? 1 << 20 : to.value(), kind_of(value)}].insert(value);
  }

  [[nodiscard]] ChannelKind kind_of(ValueId value) const {
    const auto& type = plan_.type(value);
    switch (type.spread) {
      case Spread::kBatched: return ChannelKind::kBatched;
      case Spread::kPartialSum: return ChannelKind::kPartialSum;
      case Spread::kReplicated:
      case Spread::kWhole: return ChannelKind::kReplicated;
      default: break;
    }
    throw InvalidArgument("a value of " + graph_.describe(graph_.value(value).definer) + " (" +
                          std::string(name_of(type.spread)) + ") may not leave its stage; use another plan");
  }

  void move_channels() {
    for (auto& [key, values] : channels_) {
      const auto [from, to, kind] = key;
      const bool differentiable = std::any_of(values.begin(), values.end(), [&](ValueId value) {
        return has_gradient(graph_.value(value));
      });
      division_.pipeline.channels.push_back(
          {from < 0 ? kSource : StageId(from), to >= 1 << 20 ? kSink : StageId(to), kind, differentiable});
      division_.channel_values.emplace_back(values.begin(), values.end());
    }
  }

  // Stage groups first, in stage order, then the unions of tied parameters: the order in which they are issued.
  void add_groups() {
    std::map<std::pair<std::size_t, std::vector<StageId>>, std::vector<std::pair<OpId, ValueId>>> groups;
    for (const auto& [parameter, reads] : last_reads_) {
      if (!graph_.value(parameter).requires_grad) continue;
      std::vector<StageId> stages;
      OpId last;
      for (const auto& [stage, op] : reads) {
        stages.push_back(stage);
        last = std::max(last, op);
      }
      const auto count = std::min<std::size_t>(stages.size(), 2);
      groups[{count, std::move(stages)}].emplace_back(last, parameter);
    }
    for (auto& [key, parameters] : groups) {
      std::set<Rank> ranks;
      for (const auto stage : key.second) {
        const auto& replicas = division_.pipeline.stages[stage.index()];
        ranks.insert(replicas.begin(), replicas.end());
      }
      if (ranks.size() < 2) continue;
      std::sort(parameters.rbegin(), parameters.rend());
      auto& ordered = division_.group_parameters.emplace_back();
      for (const auto& [op, parameter] : parameters) ordered.push_back(parameter);
      division_.pipeline.groups.push_back(
          {{ranks.begin(), ranks.end()}, key.second.size() == 1 ? key.second.front() : StageId::none(), 1});
    }
  }

  const OpGraph& graph_;
  const BatchPlan& plan_;
  const std::vector<StageId>& stage_of_;
  Division division_;
  std::map<std::tuple<int, int, ChannelKind>, std::set<ValueId>> channels_;
  std::map<ValueId, std::map<StageId, OpId>> last_reads_;  // of parameters, by stage
};

}  // namespace

Division divide(const OpGraph& graph, const BatchPlan& plan, const std::vector<StageId>& stage_of,
                const std::vector<std::vector<Rank>>& stage_ranks, int world) {
  return Divider(graph, plan, stage_of).divide(stage_ranks, world);
}

namespace {

/// What of an op's surroundings says where it must run.
struct Bounds {
  StageId earliest{0};
  bool fixed = false;  ///< it reads a parameter or buffer
};

}  // namespace

std::vector<StageId> place_by_parameters(const OpGraph& graph, const BatchPlan& plan,
                                         const std::vector<std::vector<StageId>>& home, int stages) {
  std::vector<StageId> stage_of(graph.ops.size());
  std::vector<Bounds> bounds(graph.ops.size());
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (!plan.ops[i].in_stage) continue;
    auto& bound = bounds[i];
    const std::vector<StageId>* homes = nullptr;
    for_each_input(graph.ops[i], [&](ValueId value) {
      const auto& info = graph.value(value);
      if (info.kind == ValueKind::kParameter || info.kind == ValueKind::kBuffer) {
        if (!home[value.index()].empty() && !plan.is_prologue(value)) homes = &home[value.index()];
      } else if (info.definer.valid() && plan.ops[info.definer.index()].in_stage && !plan.is_prologue(value)) {
        bound.earliest = std::max(bound.earliest, stage_of[info.definer.index()]);
      }
    });
    stage_of[i] = bound.earliest;
    if (homes == nullptr) continue;
    bound.fixed = true;
    const auto at = std::lower_bound(homes->begin(), homes->end(), bound.earliest);
    if (at == homes->end()) {
      throw CaptureError(graph.name(OpId::of(i)), graph.ops[i].path,
                         "in this mode it reads a value of stage " + std::to_string(bound.earliest.value()) +
                             " with a parameter of the earlier stage " + std::to_string(homes->back().value()) +
                             ", where an earlier capture put it; call recapture() in this mode first, or use one stage");
    }
    stage_of[i] = *at;
  }
  // What has no parameters and reads nothing of the pipeline belongs to its first reader.
  const auto uses = graph.uses();
  for (std::size_t i = graph.ops.size(); i-- > 0;) {
    if (!plan.ops[i].in_stage || bounds[i].fixed) continue;
    StageId first = StageId(stages - 1);
    bool read = false;
    for_each_output(graph.ops[i], [&](ValueId value) {
      for (const auto use : uses[value.index()]) {
        if (!plan.ops[use.index()].in_stage) continue;
        first = std::min(first, stage_of[use.index()]);
        read = true;
      }
    });
    const bool from_pipeline = bounds[i].earliest > StageId(0);
    if (read && !from_pipeline) stage_of[i] = first;
  }
  return stage_of;
}

}  // namespace autopar
