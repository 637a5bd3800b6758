#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/cost/model_profile.hpp>
#include <autopar/plan/plan.hpp>

namespace autopar::detail {

/// All values of one kind that cross from one stage to another, and their gradients. The callers who bring inputs are
/// stage -1; the callers who get results are one more stage at the end.
struct Crossing {
  int from = 0, to = 0;
  bool whole = false;    ///< sent whole: its size does not depend on the samples
  bool returns = false;  ///< a gradient comes back
  int values = 0;
  Affine value{}, gradient{};
  Affine held{};  ///< of the values, those that their makers keep for no other reason
};

/// A sum of gradients over ranks, by bucket.
struct GradientSum {
  std::vector<std::size_t> ranks;     ///< ascending
  int stage = -1;                     ///< -1 = parameters tied across stages
  std::vector<std::int64_t> buckets;  ///< bytes that are summed at the end of a call
};

struct SampleRange {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end > begin ? end - begin : 0; }
};

/// A plan read together with its model, by definitions alone: what runs where, what crosses stages, which samples. It
/// is part of the checker, so it shares with the search only the values of model and plan.
class StatedPlan {
 public:
  /// @pre `fault_in_shape` finds nothing
  StatedPlan(const ModelProfile& model, const Plan& plan) : model_(model), plan_(plan) {
    stage_of_.assign(model.graph.node_count(), -1);
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      for (const NodeId atom : plan.stages[s].atoms) stage_of_[atom.index()] = static_cast<int>(s);
    }
    stages_on_.resize(static_cast<std::size_t>(plan.world));
    for (int s = 0; s < stages(); ++s) {
      for (const Rank rank : ranks_of(s)) stages_on_[rank.index()].push_back(s);
      shares_ranks_ = shares_ranks_ || stages_on_[ranks_of(s).front().index()].size() > 1;
    }
    find_slices();
    find_crossings();
    find_sums();
  }

  [[nodiscard]] const ModelProfile& model() const { return model_; }
  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] int stages() const { return static_cast<int>(plan_.stages.size()); }
  [[nodiscard]] const std::vector<Crossing>& crossings() const { return crossings_; }
  [[nodiscard]] const std::vector<GradientSum>& sums() const { return sums_; }
  [[nodiscard]] bool is_stage(int stage) const { return stage >= 0 && stage < stages(); }
  [[nodiscard]] int stage_of(NodeId atom) const { return stage_of_[atom.index()]; }
  [[nodiscard]] const std::vector<Rank>& ranks_of(int stage) const {
    return plan_.stages[static_cast<std::size_t>(stage)].mesh.ranks();
  }
  [[nodiscard]] int shards(int stage) const { return plan_.stages[static_cast<std::size_t>(stage)].mesh.tensor(); }
  [[nodiscard]] std::int64_t replicas(int stage) const {
    return static_cast<std::int64_t>(ranks_of(stage).size()) / shards(stage);
  }
  /// Ranks that hold shard `t` of a stage's parameters, by replica.
  [[nodiscard]] std::vector<Rank> holders_of_shard(int stage, int t) const {
    std::vector<Rank> out;
    for (std::size_t i = static_cast<std::size_t>(t); i < ranks_of(stage).size();
         i += static_cast<std::size_t>(shards(stage)))
      out.push_back(ranks_of(stage)[i]);
    return out;
  }
  /// The region in which an atom is computed in slices; null if the atom is computed whole.
  [[nodiscard]] const TensorRegion* slices_of(NodeId atom) const {
    const int region = sliced_in_[atom.index()];
    return region < 0 ? nullptr : &model_.tensor_regions[static_cast<std::size_t>(region)];
  }
  /// The part of an amount, equal for all units of a region, on the shard with the most units.
  [[nodiscard]] std::int64_t sliced(std::int64_t whole, const TensorRegion& region) const {
    const std::int64_t count = shards(stage_of(region.atoms.front()));
    const std::int64_t most = region.units / count + (region.units % count == 0 ? 0 : 1);
    const std::int64_t units = whole / region.units, rest = whole % region.units;
    return units * most + (rest * most) / region.units + ((rest * most) % region.units == 0 ? 0 : 1);
  }
  /// Regions of a stage that its shards compute together.
  [[nodiscard]] const std::vector<const TensorRegion*>& sliced_regions(int stage) const {
    return sliced_regions_[static_cast<std::size_t>(stage)];
  }
  /// A parameter as a rank that reads it holds it: in slices if its region is computed in slices.
  [[nodiscard]] const ParameterProfile& held(ParameterId id) const { return held_[id.index()]; }
  /// Stages that a rank runs, ascending.
  [[nodiscard]] const std::vector<int>& stages_on(std::size_t rank) const { return stages_on_[rank]; }

  /// Samples that rank r brings, as even as possible.
  [[nodiscard]] std::int64_t local(std::int64_t r) const {
    return plan_.batch * (r + 1) / plan_.world - plan_.batch * r / plan_.world;
  }
  /// Samples of rank r in micro-batch m. Remainders are carried over from rank to rank.
  [[nodiscard]] std::int64_t piece(std::int64_t r, std::int64_t m) const {
    const std::int64_t own = local(r), count = plan_.microbatches;
    const std::int64_t carried = plan_.batch * r / plan_.world % count;
    return (own * (m + 1) + carried) / count - (own * m + carried) / count;
  }

  /// Ranks that hold the same samples, by tensor shard.
  using Holders = std::pair<std::vector<std::size_t>, SampleRange>;
  /// Which ranks hold which samples of micro-batch m in a stage, in the order of samples. Ranks without samples are
  /// left out.
  [[nodiscard]] std::vector<Holders> holders(int stage, std::int64_t m) const {
    std::vector<Holders> out;
    const bool own_pieces = !is_stage(stage) || keeps_pieces();
    const std::int64_t parts = own_pieces ? plan_.world : replicas(stage);
    const std::int64_t size = microbatch_size(m);
    std::int64_t begin = 0;
    for (std::int64_t q = 0; q < parts; ++q) {
      const std::int64_t end = own_pieces ? begin + piece(q, m) : size * (q + 1) / parts;
      std::vector<std::size_t> ranks;
      if (own_pieces) ranks.push_back(static_cast<std::size_t>(q));
      for (int t = 0; !own_pieces && t < shards(stage); ++t)
        ranks.push_back(ranks_of(stage)[static_cast<std::size_t>(q * shards(stage) + t)].index());
      if (end > begin) out.emplace_back(std::move(ranks), SampleRange{begin, end});
      begin = end;
    }
    return out;
  }
  [[nodiscard]] std::int64_t microbatch_size(std::int64_t m) const {
    std::int64_t size = 0;
    for (std::int64_t r = 0; r < plan_.world; ++r) size += piece(r, m);
    return size;
  }
  /// Most samples that a replica of a stage runs at a time.
  [[nodiscard]] std::int64_t largest_slice(int stage) const {
    std::int64_t largest = 0;
    for (std::int64_t m = 0; m < plan_.microbatches; ++m) {
      for (const auto& [ranks, samples] : holders(stage, m)) largest = std::max(largest, samples.size());
    }
    return largest;
  }
  /// Parameters of a stage, each once.
  [[nodiscard]] std::set<ParameterId> parameters(int stage) const {
    std::set<ParameterId> out;
    for (const NodeId atom : plan_.stages[static_cast<std::size_t>(stage)].atoms) {
      const auto& read = model_.graph[atom].parameters;
      out.insert(read.begin(), read.end());
    }
    return out;
  }
  /// The most trainable bytes that one atom of a stage reads.
  [[nodiscard]] std::int64_t most_read(int stage) const {
    std::int64_t largest = 0;
    for (const NodeId atom : plan_.stages[static_cast<std::size_t>(stage)].atoms) {
      const auto& read = model_.graph[atom].parameters;
      std::int64_t trained = 0;
      for (const ParameterId id : std::set<ParameterId>(read.begin(), read.end())) {
        trained += held(id).trainable ? held(id).bytes.value() : 0;
      }
      largest = std::max(largest, trained);
    }
    return largest;
  }
  /// Bytes up to which gradients are summed, and parameters gathered, together within compute actions: a bucket's size.
  /// From level 2 on small buckets are limited to what the atom with the most parameters reads.
  [[nodiscard]] std::int64_t unit_limit() const {
    const std::int64_t bucket = plan_.buckets.size.value();
    constexpr std::int64_t kSmall = std::int64_t{32} << 20;  // larger ones stay as they are stated
    if (plan_.zero < 2 || bucket > kSmall) return bucket;
    std::int64_t most = 1;
    for (int stage = 0; stage < stages(); ++stage) most = std::max(most, most_read(stage));
    return std::min(bucket, most);
  }
  [[nodiscard]] Bytes trainable_bytes(int stage) const {
    Bytes sum{};
    for (const ParameterId parameter : parameters(stage)) {
      if (held(parameter).trainable) sum += held(parameter).bytes;
    }
    return sum;
  }

 private:
  /// Whether all stages are on all ranks: then each rank runs the samples that it brings.
  [[nodiscard]] bool keeps_pieces() const {
    return replicas(0) == plan_.world &&
           std::all_of(plan_.stages.begin(), plan_.stages.end(),
                       [this](const StagePlan& stage) { return stage.mesh.replicas() == replicas(0); });
  }

  /// A region is computed in slices if one stage has all of it and it allows the number of shards there. A region that
  /// follows another needs two things more: the other is sliced in the same stage, and the plan cuts by tokens.
  void find_slices() {
    sliced_in_.assign(stage_of_.size(), -1);
    sliced_regions_.resize(plan_.stages.size());
    held_ = model_.parameters;
    std::vector<int> sliced_by(model_.tensor_regions.size(), -1);  // stage
    for (std::size_t r = 0; r < model_.tensor_regions.size(); ++r) {
      const TensorRegion& region = model_.tensor_regions[r];
      std::set<int> stages;
      for (const NodeId atom : region.atoms) stages.insert(stage_of(atom));
      const int count = shards(*stages.begin());
      const bool allowed = count <= region.units && (!region.even || region.units % count == 0);
      if (stages.size() > 1 || count < 2 || !allowed) continue;
      const bool is_led =
          region.follows < 0 ||
          (plan_.sequence_parallel && sliced_by[static_cast<std::size_t>(region.follows)] == *stages.begin());
      if (!is_led) continue;
      sliced_by[r] = *stages.begin();
      for (const NodeId atom : region.atoms) sliced_in_[atom.index()] = static_cast<int>(r);
      sliced_regions_[static_cast<std::size_t>(*stages.begin())].push_back(&region);
      for (const ParameterId id : region.parameters) {
        ParameterProfile& own = held_[id.index()];
        own.bytes = Bytes(sliced(own.bytes.value(), region));
        own.copy = Bytes(sliced(own.copy.value(), region));
        own.elements = sliced(own.elements, region);
      }
    }
  }

  /// Adds each value once for each pair of stages, batched ones apart from whole ones.
  void find_crossings() {
    std::map<std::tuple<int, int, bool>, Crossing> found;
    std::set<std::tuple<int, int, bool, std::int32_t>> values, gradients;
    const auto add = [&](int from, int to, std::int32_t value, const Affine& bytes, bool differentiable, bool kept) {
      const bool whole = bytes.per_sample == 0;
      if (from == to || (whole && to == stages())) return;  // sums and shared results do not go through stages
      Crossing& crossing = found[{from, to, whole}];
      crossing.from = from;
      crossing.to = to;
      crossing.whole = whole;
      crossing.returns = crossing.returns || differentiable;
      if (values.insert({from, to, whole, value}).second) {
        ++crossing.values;
        crossing.value += bytes;
        if (!kept) crossing.held += bytes;
      }
      if (differentiable && gradients.insert({from, to, whole, value}).second) crossing.gradient += bytes;
    };
    for (const auto& input : model_.inputs) {
      for (const NodeId reader : input.readers)
        add(-1, stage_of_[reader.index()], input.value, input.bytes, input.differentiable, false);
    }
    for (const EdgeId edge : model_.graph.edges()) {
      const ValueProfile& value = model_.graph[edge];
      add(stage_of_[model_.graph.source(edge).index()], stage_of_[model_.graph.target(edge).index()], value.value,
          value.bytes, value.differentiable, value.kept);
    }
    for (const auto& output : model_.outputs)
      add(stage_of_[output.writer.index()], stages(), output.value, output.bytes, !model_.loss_mode, output.kept);
    for (auto& [key, crossing] : found) crossings_.push_back(crossing);
  }

  /// Adds trainable parameters by the stages that read them, the last parameter first, in buckets.
  void find_sums() {
    std::map<std::vector<int>, std::vector<ParameterId>> by_stages;
    std::vector<std::vector<int>> readers(model_.parameters.size());
    for (int s = 0; s < stages(); ++s) {
      for (const ParameterId parameter : parameters(s)) readers[parameter.index()].push_back(s);
    }
    for (std::size_t p = readers.size(); p-- > 0;) {
      if (!readers[p].empty() && model_.parameters[p].trainable) by_stages[readers[p]].push_back(ParameterId::of(p));
    }
    std::vector<std::vector<int>> own, tied;
    for (const auto& [readers_of_list, list] : by_stages)
      (readers_of_list.size() > 1 ? tied : own).push_back(readers_of_list);
    if (shares_ranks_) std::reverse(own.begin(), own.end());  // a rank completes its later stage first
    for (const auto* lists : {&own, &tied}) {
      for (const auto& stages : *lists) {
        const int count = stages.size() == 1 ? shards(stages.front()) : 1;
        for (int t = 0; t < count; ++t) add_sum(stages, t, by_stages.at(stages));
      }
    }
  }
  /// @param t  tensor shard
  void add_sum(const std::vector<int>& stages, int t, const std::vector<ParameterId>& list) {
    GradientSum sum;
    sum.stage = stages.size() == 1 ? stages.front() : -1;
    for (const int s : stages) {
      for (const Rank rank : holders_of_shard(s, t)) sum.ranks.push_back(rank.index());
    }
    std::sort(sum.ranks.begin(), sum.ranks.end());
    sum.ranks.erase(std::unique(sum.ranks.begin(), sum.ranks.end()), sum.ranks.end());
    if (sum.ranks.size() < 2) return;
    std::map<std::int64_t, std::size_t> filling;  // by element size: buckets with room
    std::vector<std::int64_t> used;
    for (const ParameterId parameter : list) {
      const auto [room, element] = in_bucket(held(parameter));
      const auto known = filling.find(element);
      if (known != filling.end() && used[known->second] > 0 && used[known->second] + room > plan_.buckets.size.value())
        filling.clear();  // a full bucket closes all
      if (filling.emplace(element, used.size()).second) {
        used.push_back(0);
        sum.buckets.push_back(0);
      }
      used[filling.at(element)] += room;
      const bool in_backwards = plan_.zero >= 2 && sum.stage >= 0 && held(parameter).highest_zero >= 2;
      if (!in_backwards) sum.buckets[filling.at(element)] += held(parameter).bytes.value();
    }
    sums_.push_back(std::move(sum));
  }

  /// Bytes of a gradient in a bucket, padded to a multiple of 16 elements, and the size of an element. If elements are
  /// unknown, just its bytes.
  [[nodiscard]] static std::pair<std::int64_t, std::int64_t> in_bucket(const ParameterProfile& parameter) {
    const std::int64_t bytes = parameter.bytes.value(), elements = parameter.elements;
    if (elements <= 0 || bytes <= 0 || bytes % elements != 0 || bytes / elements >= 64) return {bytes, 1};
    return {(elements + 15) / 16 * 16 * (bytes / elements), bytes / elements};
  }

  const ModelProfile& model_;
  const Plan& plan_;
  std::vector<int> stage_of_;
  std::vector<std::vector<int>> stages_on_;
  std::vector<int> sliced_in_;  // by atom, -1 = whole
  std::vector<std::vector<const TensorRegion*>> sliced_regions_;
  std::vector<ParameterProfile> held_;
  bool shares_ranks_ = false;
  std::vector<Crossing> crossings_;
  std::vector<GradientSum> sums_;
};

}  // namespace autopar::detail
