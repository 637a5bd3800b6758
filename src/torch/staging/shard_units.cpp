#include "torch/staging/shard_units.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include <c10/util/accumulate.h>

#include <autopar/core/assert.hpp>
#include <autopar/plan/buckets.hpp>

#include "capture/algebra/parameter_reads.hpp"
#include "capture/ir/shard_moves.hpp"

namespace autopar::staging {

namespace {

std::int64_t element_size(c10::ScalarType type) { return static_cast<std::int64_t>(c10::elementSize(type)); }

using TensorOf = std::function<const parameters::ManagedTensor&(ValueId)>;

/// The value that the operator reads if no tensor shards exchanged it: the value before the moves.
ValueId before_moves(const OpGraph& graph, ValueId value) {
  while (graph.value(value).definer.valid() && ir::is_shard_move(graph.name(graph.value(value).definer)))
    value = graph.input(graph.value(value).definer, 0);
  return value;
}

/// The largest number of bytes of trained parameters that one atom reads. With tensor shards, of the first shard, which
/// is the largest.
Bytes largest_read(const OpGraph& graph, const cost::AtomPartition& atoms, const TensorOf& tensor_of) {
  std::int64_t largest = 0;
  for (const auto& ops : atoms.atoms) {
    std::set<ValueId> read;
    for (const auto op : ops) {
      for_each_input(graph.op(op), [&](ValueId moved) {
        const auto value = before_moves(graph, moved);
        if (graph.value(value).kind == ValueKind::kParameter && graph.value(value).requires_grad) read.insert(value);
      });
    }
    std::int64_t bytes = 0;
    for (const auto value : read)
      bytes += c10::multiply_integers(tensor_of(value).sizes_of_shard(0)) * element_size(graph.value(value).dtype);
    largest = std::max(largest, bytes);
  }
  return Bytes(largest);
}

/// The parameters of one stage, or tied across several, that are divided into units. All tensor shards are divided
/// where the first one is, which is the largest, so that all exchange and gather in step.
class GroupCut {
 public:
  using Kind = std::tuple<int, c10::ScalarType, c10::ScalarType>;  // ZeRO level, parameter's type, gathered type

  void add(const parameters::ManagedTensor& tensor, const Kind& kind) {
    const int number = kinds_.emplace(kind, static_cast<int>(kinds_.size())).first->second;
    members_.emplace_back(&tensor, kind);
    items_.push_back(
        BucketItem::of(c10::multiply_integers(tensor.sizes_of_shard(0)), element_size(std::get<1>(kind)), number));
  }

  /// @param ranks  by tensor shard
  void append_to(std::vector<parameters::ShardUnit>& out, const std::vector<std::vector<Rank>>& ranks, Bytes limit,
                 bool offloaded) const {
    const auto cut = cut_into_buckets(items_, limit);
    std::vector<std::vector<std::size_t>> units(cut.buckets.size());
    for (std::size_t i = 0; i < members_.size(); ++i)
      units[static_cast<std::size_t>(cut.places[i].bucket)].push_back(i);
    for (const auto& members : units) {
      for (std::size_t shard = 0; shard < ranks.size(); ++shard)
        append_unit(out, members, static_cast<int>(shard), ranks[shard], limit, offloaded);
    }
  }

 private:
  void append_unit(std::vector<parameters::ShardUnit>& out, const std::vector<std::size_t>& members, int shard,
                   const std::vector<Rank>& ranks, Bytes limit, bool offloaded) const {
    const auto& [level, type, gathered] = members_[members.front()].second;
    std::vector<std::vector<std::string>> names;
    std::vector<parameters::GradientForm> forms;
    for (const auto i : members) {
      const auto& tensor = *members_[i].first;
      forms.push_back({names.size(), tensor.sizes_of_shard(shard), type});
      names.push_back(tensor.names);
    }
    auto made = parameters::make_units(names, forms, ranks, level, limit, offloaded);
    AUTOPAR_ASSERT(made.size() == 1, "what one shard has in one unit does not fit in another one's");
    made.front().gathered = gathered;
    out.push_back(std::move(made.front()));
  }

  std::map<Kind, int> kinds_;
  std::vector<std::pair<const parameters::ManagedTensor*, Kind>> members_;
  std::vector<BucketItem> items_;
};

/// The replicas of each tensor shard of the group's stage; for tied parameters, the group's ranks.
std::vector<std::vector<Rank>> members_by_shard(const Pipeline& pipeline, const ReduceGroup& group) {
  if (!group.stage.valid()) return {group.ranks};
  const auto& mesh = pipeline.stages[group.stage.index()];
  std::vector<std::vector<Rank>> members;
  for (int shard = 0; shard < mesh.tensor(); ++shard) {
    auto& ranks = members.emplace_back(mesh.replica_group(shard));
    std::sort(ranks.begin(), ranks.end());
  }
  return members;
}

}  // namespace

std::vector<parameters::ShardUnit> shard_units(const OpGraph& graph, const algebra::BatchSemantics& batch_plan,
                                               const StagedGraph& division, const cost::AtomPartition& atoms,
                                               const Plan& plan, const TensorOf& tensor_of) {
  const auto levels = algebra::highest_zero_levels(graph, batch_plan, division.channel_values);
  const auto reads = algebra::parameter_reads(graph, batch_plan);
  const Bytes limit = plan.buckets.unit_size(plan.zero, largest_read(graph, atoms, tensor_of));
  std::vector<parameters::ShardUnit> units;
  for (std::size_t g = 0; g < division.pipeline.groups.size(); ++g) {
    const auto& group = division.pipeline.groups[g];
    if (division.group_shards[g] > 0) continue;  // handled with the first shard
    int replicas = 0;                            // largest number among the stages
    for (const auto parameter : division.group_parameters[g]) {
      for (const auto stage : tensor_of(parameter).stages)
        replicas = std::max(replicas, plan.stages[stage.index()].mesh.replicas());
    }
    if (replicas < 2) continue;
    GroupCut cut;
    for (const auto parameter : division.group_parameters[g]) {
      const int highest = group.stage.valid() ? levels[parameter.index()] : std::min(levels[parameter.index()], 1);
      if (highest == 0) continue;
      const auto& tensor = tensor_of(parameter);
      const auto type = tensor.handle.scalar_type();
      cut.add(tensor, {std::min(plan.zero, highest), type, reads[parameter.index()].smaller_copy(type).value_or(type)});
    }
    cut.append_to(units, members_by_shard(division.pipeline, group), limit, plan.offload == Offload::kOptimizer);
  }
  return units;
}

}  // namespace autopar::staging
