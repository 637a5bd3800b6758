#include "torch/engine/rank_runtime.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include <autopar/core/assert.hpp>

namespace autopar::engine {

RankRuntime::RankRuntime(const OpGraph& graph, const algebra::BatchSemantics& plan,
                         const staging::StagedGraph& division, Rank rank, c10::Device device,
                         const Stage::Leaves& leaves, bool splits_backwards, interpret::RecomputedAtoms recomputed,
                         std::vector<parameters::ShardedGroup> sharded, const BucketPolicy& buckets)
    : program_{.graph = &graph,
               .plan = &plan,
               .pipeline = division.pipeline,
               .stage_ops = division.stage_ops,
               .channel_values = division.channel_values,
               .channel_gradients = {},
               .device = device,
               .splits_backwards = splits_backwards,
               .recomputed = std::move(recomputed),
               .rank = rank,
               .shard_steps = division.shard_steps,
               .gathered_by = {},
               .resharded_after = division.resharded_after},
      rank_(rank),
      sharded_(std::move(sharded)),
      buckets_(buckets) {
  for (const auto& values : program_.channel_values) {
    auto& gradients = program_.channel_gradients.emplace_back();
    for (const auto value : values) {
      if (graph.value(value).has_gradient()) gradients.push_back(value);
    }
  }
  std::vector<StageId> own;
  for (std::size_t s = 0; s < program_.pipeline.stages.size(); ++s) {
    if (program_.pipeline.stages[s].contains(rank)) own.push_back(StageId::of(s));
  }
  find_parameters(division, own, leaves.handle);
  lay_out_buckets(division);
  find_gathers(division, own);
  for (const auto stage : own)
    stages_.push_back(std::make_unique<Stage>(program_, stage, leaves, reduced_, unwritten_));
  if (leaves.fp8 != nullptr && !leaves.fp8->empty()) fp8_weights_.emplace(*this, *leaves.fp8);
}

void RankRuntime::find_parameters(const staging::StagedGraph& division, const std::vector<StageId>& own,
                                  const Stage::Lookup& handle) {
  std::vector<OpId> ops;
  for (const auto stage : own) {
    const auto& of_stage = program_.stage_ops[stage.index()];
    ops.insert(ops.end(), of_stage.begin(), of_stage.end());
  }
  parameters_ = parameters_read(graph(), ops);
  for (std::size_t g = 0; g < division.group_parameters.size(); ++g) {
    const auto& ranks = program_.pipeline.groups[g].ranks;
    if (!std::binary_search(ranks.begin(), ranks.end(), rank_)) continue;
    for (const auto parameter : division.group_parameters[g]) {
      if (!std::binary_search(parameters_.begin(), parameters_.end(), parameter))
        unread_[parameter] = handle(parameter);
    }
  }
  for (const auto& [parameter, tensor] : unread_) parameters_.push_back(parameter);
  std::sort(parameters_.begin(), parameters_.end());
  position_.resize(graph().values.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) position_[parameters_[i].index()] = i;
}

// Includes the groups of other ranks, since this rank makes programs for all.
void RankRuntime::lay_out_buckets(const staging::StagedGraph& division) {
  reduced_.resize(graph().values.size(), false);
  if (buckets_.reduce_dtype != ReduceDtype::kFp32) summing_stream_.emplace(device());
  for (std::size_t g = 0; g < division.group_parameters.size(); ++g) {
    const auto& group = division.group_parameters[g];
    const auto& ranks = program_.pipeline.groups[g].ranks;
    std::vector<parameters::GradientForm> forms;
    const auto is_read = [&](ValueId parameter) {
      return std::binary_search(parameters_.begin(), parameters_.end(), parameter);
    };
    bool member = !group.empty() && std::binary_search(ranks.begin(), ranks.end(), rank_);
    for (const auto parameter : group) {
      auto form = ir::form_of(graph().value(parameter), 0);
      if (const auto sliced = division.parameter_slices.find(parameter); sliced != division.parameter_slices.end()) {
        form.sizes = sliced->second.at(static_cast<std::size_t>(division.group_shards[g]));
        form.strides.clear();
      }
      forms.push_back({parameter.index(), form.sizes, form.dtype, form.strides});
      member = member && is_read(parameter);
    }
    if (!sharded_.empty() && sharded_[g].unit != nullptr) {
      member = sharded_[g].memory != nullptr;
      std::vector<ValueId> read;
      std::copy_if(group.begin(), group.end(), std::back_inserter(read), is_read);
      bucket_layouts_.push_back(layout_in(*sharded_[g].unit, read));
    } else {
      bucket_layouts_.emplace_back(forms, buckets_.size);
    }
    if (summing_stream_) bucket_layouts_.back().divide_among(static_cast<std::int64_t>(ranks.size()));
    member_.push_back(member);
    for (const auto& form : forms) reduced_[form.key] = reduced_[form.key] || member;
  }
  for (std::size_t g = 0; g < bucket_layouts_.size(); ++g) {
    program_.pipeline.groups[g].buckets = static_cast<int>(bucket_layouts_[g].buckets().size());
  }
}

parameters::BucketLayout RankRuntime::layout_in(const parameters::ShardUnit& unit,
                                                const std::vector<ValueId>& parameters) const {
  std::vector<parameters::BucketLayout::Place> places;
  for (const auto parameter : parameters) {
    const auto& info = graph().value(parameter);
    const auto* place = unit.find(info.name);
    AUTOPAR_ASSERT(place != nullptr, "a parameter is not in the unit that its gradient is summed in");
    places.push_back({{parameter.index(), place->sizes, unit.dtype}, 0, place->offset});
  }
  return parameters::BucketLayout(parameters::BucketLayout::Bucket{unit.dtype, unit.elements}, std::move(places));
}

Interval RankRuntime::within_part(int group, const parameters::BucketLayout::Place& place) const {
  const auto& memory = *shards_of(group);
  return memory.within_part(parameters::ShardUnit::Place{{}, place.form.sizes, place.offset});
}

const SummingStream* RankRuntime::summing_stream_of(const Action& action) const {
  const auto& of_group = bucket_layouts_[static_cast<std::size_t>(action.group)].buckets();
  const auto& [dtype, elements] = of_group[static_cast<std::size_t>(action.bucket)];
  return summing_stream_ && are_rounded(dtype, buckets_) && elements > 0 ? &*summing_stream_ : nullptr;
}

void RankRuntime::find_gathers(const staging::StagedGraph& division, const std::vector<StageId>& own) {
  for (const auto stage : own) {
    for (const auto op : program_.stage_ops[stage.index()]) {
      std::set<int> groups;
      for_each_input(graph().op(op), [&](ValueId value) {
        const auto found = division.parameter_of_storage.find(graph().value(value).storage);
        if (found == division.parameter_of_storage.end()) return;
        for (const int group : found->second.groups) {
          if (zero_of(group) >= 3 && shards_of(group) != nullptr) groups.insert(group);
        }
      });
      if (!groups.empty()) program_.gathered_by[op].assign(groups.begin(), groups.end());
    }
  }
}

void RankRuntime::refresh_leaves() {
  for (const auto& stage : stages_) stage->refresh_leaves();
}

std::vector<const void*> RankRuntime::kept_casts() const {
  std::vector<const void*> memory;
  std::map<ValueId, at::Tensor> in_8_bits;
  if (fp8_weights_) fp8_weights_->add_kept(in_8_bits);
  for (const auto& stage : stages_) stage->add_kept_casts(in_8_bits, memory);
  return memory;
}

void RankRuntime::drop_casts() {
  for (const auto& stage : stages_) stage->drop_casts();
}

const at::Tensor& RankRuntime::handle(ValueId parameter) const {
  if (const auto unread = unread_.find(parameter); unread != unread_.end()) return unread->second;
  const auto reader = std::find_if(stages_.begin(), stages_.end(),
                                   [&](const auto& stage) { return stage->handle(parameter).defined(); });
  AUTOPAR_ASSERT(reader != stages_.end(), "a parameter of this rank is read by none of its stages");
  return (*reader)->handle(parameter);
}

}  // namespace autopar::engine
