#include <autopar/torch/engine/rank_runtime.hpp>

#include <algorithm>
#include <utility>

#include <autopar/core/assert.hpp>

namespace autopar {

RankRuntime::RankRuntime(const OpGraph& graph, const BatchPlan& plan, const Division& division, Rank rank,
                         c10::Device device, const StageRuntime::Lookup& lookup, bool splits_backwards,
                         RecomputedAtoms recomputed)
    : program_{&graph, &plan, division.pipeline, division.stage_ops, division.channel_values, {}, device,
               splits_backwards, std::move(recomputed)},
      rank_(rank) {
  for (const auto& values : program_.channel_values) {
    auto& gradients = program_.channel_gradients.emplace_back();
    for (const auto value : values) {
      if (graph.value(value).has_gradient()) gradients.push_back(value);
    }
  }
  std::vector<StageId> own;
  for (std::size_t s = 0; s < program_.pipeline.stages.size(); ++s) {
    const auto& ranks = program_.pipeline.stages[s];
    if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) own.push_back(StageId::of(s));
  }
  find_parameters(own);
  lay_out_buckets(division.group_parameters);
  for (const auto stage : own) stages_.push_back(std::make_unique<StageRuntime>(program_, stage, lookup, reduced_));
}

void RankRuntime::find_parameters(const std::vector<StageId>& own) {
  std::vector<OpId> ops;
  for (const auto stage : own) {
    const auto& of_stage = program_.stage_ops[stage.index()];
    ops.insert(ops.end(), of_stage.begin(), of_stage.end());
  }
  parameters_ = parameters_read(graph(), ops);
  position_.resize(graph().values.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) position_[parameters_[i].index()] = i;
}

void RankRuntime::lay_out_buckets(const std::vector<std::vector<ValueId>>& group_parameters) {
  reduced_.resize(graph().values.size(), false);
  for (const auto& group : group_parameters) {
    std::vector<GradientForm> forms;
    bool member = !group.empty();
    for (const auto parameter : group) {
      const auto& info = graph().value(parameter);
      forms.push_back({parameter.index(), sizes_at(info, 0), info.dtype});
      member = member && std::binary_search(parameters_.begin(), parameters_.end(), parameter);
    }
    bucket_layouts_.emplace_back(forms);
    member_.push_back(member);
    for (const auto& form : forms) reduced_[form.key] = reduced_[form.key] || member;
  }
  for (std::size_t g = 0; g < bucket_layouts_.size(); ++g) {
    program_.pipeline.groups[g].buckets = static_cast<int>(bucket_layouts_[g].buckets().size());
  }
}

void RankRuntime::refresh_leaves() {
  for (const auto& stage : stages_) stage->refresh_leaves();
}

void RankRuntime::drop_casts() {
  for (const auto& stage : stages_) stage->drop_casts();
}

const at::Tensor& RankRuntime::handle(ValueId parameter) const {
  const auto reader = std::find_if(stages_.begin(), stages_.end(),
                                   [&](const auto& stage) { return stage->handle(parameter).defined(); });
  AUTOPAR_ASSERT(reader != stages_.end(), "a parameter of this rank is read by none of its stages");
  return (*reader)->handle(parameter);
}

}  // namespace autopar
