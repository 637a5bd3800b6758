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

#include <autopar/plan/buckets.hpp>

#include "torch/algebra/parameter_reads.hpp"
#include "torch/ir/tensor_form.hpp"

namespace autopar {

namespace {

std::int64_t element_size(c10::ScalarType type) { return static_cast<std::int64_t>(c10::elementSize(type)); }

/// Bytes of the trained parameters that one atom reads, of the one that reads most.
Bytes largest_read(const OpGraph& graph, const AtomPartition& atoms) {
  std::int64_t largest = 0;
  for (const auto& ops : atoms.atoms) {
    std::set<ValueId> read;
    for (const auto op : ops) {
      for_each_input(graph.op(op), [&](ValueId value) {
        if (graph.value(value).kind == ValueKind::kParameter && graph.value(value).requires_grad) read.insert(value);
      });
    }
    std::int64_t bytes = 0;
    for (const auto value : read) {
      const auto& info = graph.value(value);
      bytes += c10::multiply_integers(sizes_at(info, 0)) * element_size(info.dtype);
    }
    largest = std::max(largest, bytes);
  }
  return Bytes(largest);
}

/// Parameters of one reduction group on their way into units.
class GroupCut {
 public:
  using Kind = std::tuple<int, c10::ScalarType, c10::ScalarType>;  // level, own type, what is gathered

  void add(const StateTensor& tensor, const Kind& kind) {
    const int number = kinds_.emplace(kind, static_cast<int>(kinds_.size())).first->second;
    members_.emplace_back(&tensor, kind);
    items_.push_back(BucketItem::of(c10::multiply_integers(tensor.sizes), element_size(std::get<1>(kind)), number));
  }

  void append_to(std::vector<ShardUnit>& out, const std::vector<Rank>& ranks, Bytes limit, bool offloaded) const {
    struct InMaking {
      std::vector<std::vector<std::string>> names;
      std::vector<GradientForm> forms;
      Kind kind;
    };
    const auto cut = cut_into_buckets(items_, limit);
    std::vector<InMaking> units(cut.buckets.size());
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const auto& [tensor, kind] = members_[i];
      auto& unit = units[static_cast<std::size_t>(cut.places[i].bucket)];
      unit.forms.push_back({unit.names.size(), tensor->sizes, std::get<1>(kind)});
      unit.names.push_back(tensor->names);
      unit.kind = kind;
    }
    for (const auto& unit : units) {
      const auto& [level, type, gathered] = unit.kind;
      for (auto& made : make_units(unit.names, unit.forms, ranks, level, limit, offloaded)) {
        made.gathered = gathered;
        out.push_back(std::move(made));
      }
    }
  }

 private:
  std::map<Kind, int> kinds_;
  std::vector<std::pair<const StateTensor*, Kind>> members_;
  std::vector<BucketItem> items_;
};

}  // namespace

std::vector<ShardUnit> shard_units(const OpGraph& graph, const BatchPlan& batch_plan, const StagedGraph& division,
                                   const AtomPartition& atoms, const Plan& plan,
                                   const std::function<const StateTensor&(ValueId)>& tensor_of) {
  const auto levels = highest_zero_levels(graph, batch_plan, division.channel_values);
  const auto reads = parameter_reads(graph, batch_plan);
  const Bytes limit = plan.buckets.unit_size(plan.zero, largest_read(graph, atoms));
  std::vector<ShardUnit> units;
  for (std::size_t g = 0; g < division.pipeline.groups.size(); ++g) {
    const auto& group = division.pipeline.groups[g];
    int replicas = 0;  // of the stage that has most
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
    cut.append_to(units, group.ranks, limit, plan.offload == Offload::kOptimizer);
  }
  return units;
}

}  // namespace autopar
