#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/cost/model_profile.hpp>
#include <autopar/cost/tensor_regions.hpp>
#include <autopar/plan/buckets.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/schedule/batch_split.hpp>
#include <autopar/schedule/schedule.hpp>
#include <autopar/schedule/validate.hpp>

namespace autopar::verify {

/// Bytes of a channel's message.
struct StatedChannel {
  Affine value{}, gradient{};
  Affine held{};  ///< of the values, those that their makers keep for no other reason
  int values = 0;
};

[[nodiscard]] inline Bytes bytes_of(const Affine& size, std::int64_t samples) {
  return Bytes(static_cast<std::int64_t>(std::ceil(std::max(0.0, size.at(static_cast<double>(samples))))));
}

/// The largest of so many equal shards.
[[nodiscard]] inline Bytes part_of(Bytes whole, std::int64_t parts) {
  return Bytes((whole.value() + parts - 1) / parts);
}

/// Whether a plan sends a parameter's gradients in bf16. Only fp32 is rounded, of which an element has four bytes.
[[nodiscard]] inline bool is_rounded(const Plan& plan, const ParameterProfile& parameter) {
  if (plan.buckets.reduce_dtype != ReduceDtype::kBf16 || parameter.elements < 1) return false;
  return parameter.bytes == Bytes(4) * parameter.elements;
}
[[nodiscard]] inline Bytes sent_bytes(const Plan& plan, const ParameterProfile& parameter) {
  return is_rounded(plan, parameter) ? Bytes(2) * parameter.elements : parameter.bytes;
}

/// What a stage computes with, and on how much.
struct StatedStage {
  std::int64_t slice = 0;                                ///< most samples that a replica runs at a time
  std::map<ParameterId, std::vector<NodeId>> trained{};  ///< trained parameters, and the atoms that read each
  Bytes trained_bytes{}, computed_with{}, sent{};        ///< of all of them; `sent` for their gradients
  std::map<NodeId, Bytes> read_by{};                     ///< trained bytes that an atom reads, if it reads any
  std::set<NodeId> read_one{};                           ///< atoms that read one trained parameter
  Bytes most_read{};                                     ///< the most of them
};

/// A plan read together with its model, by definitions alone: what runs where, what crosses stages, which samples. It
/// shares with the search only the values of model and plan, the cut of buckets and the schedule layer.
struct StatedPlan {
  const ModelProfile& model;
  const Plan& plan;
  Pipeline pipeline{};
  BatchLayout layout{};                               ///< samples that each rank brings
  std::vector<StatedChannel> channels{};              ///< by channel of the pipeline
  std::vector<std::vector<Bytes>> buckets{};          ///< [group][bucket] what is sent to sum at the end of a call
  std::vector<std::size_t> stage_of{};                ///< by atom
  std::vector<std::vector<std::size_t>> stages_on{};  ///< by rank, ascending
  std::vector<std::vector<std::size_t>> readers{};    ///< by parameter: the stages that read it, ascending
  std::vector<ParameterProfile> held{};               ///< as ranks that read it hold it, perhaps in slices
  std::vector<const TensorRegion*> sliced_in{};       ///< by atom; null: computed whole
  std::vector<StatedStage> stages{};
  Bytes unit_limit{};  ///< up to which gradients are summed, and parameters gathered, within compute actions

  /// @pre `fault_in_shape` finds nothing
  StatedPlan(const ModelProfile& of_model, const Plan& of_plan) : model(of_model), plan(of_plan) {
    pipeline.ranks = plan.world;
    layout.microbatches = plan.microbatches;
    stage_of.resize(model.graph.node_count());
    stages_on.resize(static_cast<std::size_t>(plan.world));
    readers.resize(model.parameters.size());
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      pipeline.stages.push_back(plan.stages[s].mesh);
      for (const NodeId atom : plan.stages[s].atoms) stage_of[atom.index()] = s;
      for (const Rank rank : plan.stages[s].mesh.ranks()) stages_on[rank.index()].push_back(s);
      for (const ParameterId id : plan.stages[s].parameters) readers[id.index()].push_back(s);
    }
    for (std::int64_t r = 0; r < plan.world; ++r)
      layout.local.push_back(plan.batch * (r + 1) / plan.world - plan.batch * r / plan.world);
    find_slices();
    find_channels();
    find_groups();
    find_stages();
  }

  [[nodiscard]] const ParameterProfile& parameter(ParameterId id) const { return held[id.index()]; }
  [[nodiscard]] bool splits_backwards() const { return traits_of(plan.schedule).splits_backwards; }
  /// The stages that share the ranks of a stage, itself included.
  [[nodiscard]] const std::vector<std::size_t>& beside(std::size_t stage) const {
    return stages_on[pipeline.stages[stage].rank(0).index()];
  }
  [[nodiscard]] std::vector<Phase> phases() const {
    return model.loss_mode ? std::vector{Phase::kStep} : std::vector{Phase::kForward, Phase::kBackward};
  }
  /// @throws InvalidArgument if the plan's schedule cannot run its stages, or the program is unsound: see `validate`
  [[nodiscard]] Program program(Phase phase) const {
    if (traits_of(plan.schedule).orders_in_plan) detail::check_rank_orders(pipeline, plan.orders, plan.microbatches);
    Program program = make_program(pipeline, layout, plan.schedule, phase, {plan.orders, plan.microbatches});
    validate(pipeline, layout, phase, program);
    return program;
  }
  /// The compute actions of each rank as in the program, and those for which the rank has no sample.
  [[nodiscard]] std::vector<std::vector<ComputeAction>> orders() const {
    const auto of = [&](const auto& policy) { return rank_orders_of(policy, pipeline, plan.microbatches); };
    return with_policy(plan.schedule, of, {plan.orders, plan.microbatches});
  }

  /// Ranks of some stages, ascending.
  [[nodiscard]] std::vector<Rank> ranks_of(const std::vector<std::size_t>& of) const {
    std::set<Rank> ranks;
    for (const std::size_t s : of) ranks.insert(pipeline.stages[s].ranks().begin(), pipeline.stages[s].ranks().end());
    return {ranks.begin(), ranks.end()};
  }

 private:
  /// A region is computed in slices if one stage has all of it and it allows the number of shards there. A region that
  /// follows another needs two things more: the other is sliced in the same stage, and the plan cuts by tokens.
  void find_slices() {
    sliced_in.assign(stage_of.size(), nullptr);
    held = model.parameters;
    for (const TensorRegion& region : model.tensor_regions) {
      const std::size_t stage = stage_of[region.atoms.front().index()];
      const int shards = pipeline.stages[stage].tensor();
      const auto is_elsewhere = [&](NodeId atom) { return stage_of[atom.index()] != stage; };
      if (shards < 2 || !region.admits(shards) || std::ranges::any_of(region.atoms, is_elsewhere)) continue;
      if (region.follows >= 0) {
        const NodeId led_by = model.tensor_regions[static_cast<std::size_t>(region.follows)].atoms.front();
        if (!plan.sequence_parallel || sliced_in[led_by.index()] == nullptr || is_elsewhere(led_by)) continue;
      }
      for (const NodeId atom : region.atoms) sliced_in[atom.index()] = &region;
      for (const ParameterId id : region.parameters) {
        ParameterProfile& own = held[id.index()];
        own.bytes = part_of_shard(own.bytes, region, shards);
        own.copy = part_of_shard(own.copy, region, shards);
        own.elements = part_of_shard(own.elements, region, shards);
      }
    }
  }

  /// Adds each value once for each pair of stages, batched ones apart from whole ones.
  void find_channels() {
    struct Crossing {
      StatedChannel size;
      std::set<std::int32_t> values, gradients;
    };
    const int sink = static_cast<int>(plan.stages.size());
    std::map<std::tuple<int, int, ChannelKind>, Crossing> found;
    const auto add = [&](int from, int to, std::int32_t value, const Affine& bytes, bool differentiable, bool kept) {
      const ChannelKind kind = bytes.per_sample != 0 ? ChannelKind::kBatched : ChannelKind::kReplicated;
      if (from == to || (to == sink && kind == ChannelKind::kReplicated)) return;  // shared results are summed
      auto& [size, values, gradients] = found[{from, to, kind}];
      if (values.insert(value).second) {
        ++size.values;
        size.value += bytes;
        if (!kept) size.held += bytes;
      }
      if (differentiable && gradients.insert(value).second) size.gradient += bytes;
    };
    const auto stage = [&](NodeId atom) { return static_cast<int>(stage_of[atom.index()]); };
    for (const auto& input : model.inputs) {
      for (const NodeId reader : input.readers)
        add(-1, stage(reader), input.value, input.bytes, input.differentiable, false);
    }
    for (const EdgeId edge : model.graph.edges()) {
      const ValueProfile& value = model.graph[edge];
      add(stage(model.graph.source(edge)), stage(model.graph.target(edge)), value.value, value.bytes,
          value.differentiable, value.kept);
    }
    for (const auto& output : model.outputs)
      add(stage(output.writer), sink, output.value, output.bytes, !model.loss_mode, output.kept);
    const auto id = [&](int s) { return s < 0 ? kSource : s == sink ? kSink : StageId(s); };
    for (const auto& [key, crossing] : found) {
      const auto [from, to, kind] = key;
      pipeline.channels.push_back({id(from), id(to), kind, !crossing.gradients.empty()});
      channels.push_back(crossing.size);
    }
  }

  /// Groups trained parameters by the stages that read them, the last parameter first.
  void find_groups() {
    std::map<std::vector<std::size_t>, std::vector<ParameterId>> read_by;
    for (std::size_t p = readers.size(); p-- > 0;) {
      if (model.parameters[p].trainable) read_by[readers[p]].push_back(ParameterId::of(p));
    }
    const std::size_t count = plan.stages.size();
    const bool shares = std::ranges::any_of(stages_on, [](const auto& on_rank) { return on_rank.size() > 1; });
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t s = shares ? count - 1 - i : i;  // a rank completes its later stage first
      const Mesh& mesh = pipeline.stages[s];
      for (int t = 0; t < mesh.tensor(); ++t) add_group(StageId::of(s), mesh.replica_group(t), read_by[{s}]);
    }
    for (const auto& [by, parameters] : read_by) {
      if (by.size() > 1) add_group(StageId::none(), ranks_of(by), parameters);
    }
  }

  /// Cuts gradients into buckets, which hold elements of one size each.
  void add_group(StageId stage, std::vector<Rank> ranks, const std::vector<ParameterId>& parameters) {
    std::ranges::sort(ranks);
    if (ranks.size() < 2 || parameters.empty()) return;
    std::vector<BucketItem> items;
    for (const ParameterId id : parameters) {
      const std::int64_t bytes = parameter(id).bytes.value(), elements = parameter(id).elements;
      const bool known = elements > 0 && bytes > 0 && bytes % elements == 0 && bytes / elements < 64;
      const int element = known ? static_cast<int>(bytes / elements) : 1;
      items.push_back(known ? BucketItem::of(elements, element, element) : BucketItem{bytes, 1, 1});
    }
    const BucketCut cut = cut_into_buckets(items, plan.buckets.size);
    auto& summed = buckets.emplace_back(cut.buckets.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      const ParameterProfile& one = parameter(parameters[i]);
      const bool in_backwards = plan.zero >= 2 && stage.valid() && one.highest_zero >= 2;
      if (!in_backwards) summed[static_cast<std::size_t>(cut.places[i].bucket)] += sent_bytes(plan, one);
    }
    pipeline.groups.push_back({std::move(ranks), stage, static_cast<int>(summed.size())});
  }

  void find_stages() {
    const BatchSplit split(pipeline, layout);
    Bytes most_read{};
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      StatedStage& stage = stages.emplace_back();
      for (int m = 0; m < plan.microbatches; ++m) {
        for (const auto& slice : split.slices(StageId::of(s), m))
          stage.slice = std::max(stage.slice, slice.samples.size());
      }
      for (const NodeId atom : plan.stages[s].atoms) {
        Bytes read{};
        int count = 0;
        for (const ParameterId id : model.graph[atom].parameters) {
          if (!parameter(id).trainable) continue;
          auto& by = stage.trained[id];
          if (!by.empty() && by.back() == atom) continue;
          by.push_back(atom);
          read += parameter(id).bytes;
          ++count;
        }
        stage.most_read = std::max(stage.most_read, read);
        if (read > Bytes(0)) stage.read_by[atom] = read;
        if (count == 1) stage.read_one.insert(atom);
      }
      for (const auto& [id, by] : stage.trained) {
        stage.trained_bytes += parameter(id).bytes;
        stage.computed_with += parameter(id).computed_with();
        stage.sent += sent_bytes(plan, parameter(id));
      }
      most_read = std::max(most_read, stage.most_read);
    }
    unit_limit = plan.buckets.unit_size(plan.zero, most_read);
  }
};

}  // namespace autopar::verify
