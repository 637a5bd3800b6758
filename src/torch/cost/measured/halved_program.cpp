#include "torch/cost/measured/halved_program.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "ops/registry.hpp"
#include "torch/tensor_parallel/sharded_graph.hpp"

namespace autopar::cost::detail {

namespace {

constexpr int kShards = 2;

tensor_parallel::LeafSlices divided_leaves(const GraphProfile& profile) {
  tensor_parallel::LeafSlices leaves;
  for (std::size_t r = 0; r < profile.region_slices.size(); ++r) {
    if (profile.model.tensor_regions[r].admits(kShards))
      leaves.insert(profile.region_slices[r].begin(), profile.region_slices[r].end());
  }
  return leaves;
}

/// Whether shards run these operators without each other, and divide a product among them.
bool is_divided_product(const tensor_parallel::ShardedGraph& sharded, const std::vector<OpId>& ops) {
  const auto step_of = [&](OpId op) -> const tensor_parallel::ShardedStep* {
    const auto found = sharded.steps.find(op);
    return found == sharded.steps.end() ? nullptr : &found->second;
  };
  const bool apart = std::ranges::none_of(ops, [&](OpId op) {
    const auto* step = step_of(op);
    return step != nullptr && step->kernel == ShardedOp::Kernel::kTogether;
  });
  return apart && std::ranges::any_of(ops, [&](OpId op) {
           const auto& definition = ops::definition_of(sharded.graph.name(op));
           return step_of(op) != nullptr && definition.op_class == OpClass::kMatmul;
         });
}

}  // namespace

HalvedProgram halved_program(const OpGraph& graph, const algebra::BatchSemantics& plan, const GraphProfile& profile) {
  HalvedProgram halved{{}, {}, std::vector<std::vector<OpId>>(profile.atoms.atoms.size())};
  tensor_parallel::ShardTyping typing(graph, [&](OpId op) { return plan.handling(op).in_stage; });
  auto layout = typing.run(divided_leaves(profile), [](ValueId) { return false; });
  if (layout.stale.valid()) return halved;
  const auto sharded = tensor_parallel::insert_moves(graph, {{kShards, std::move(layout)}});
  halved.graph = tensor_parallel::on_shard(sharded, {0});
  halved.plan = algebra::analyze_batch(sharded.graph);
  for (std::size_t i = 0; i < sharded.made_for.size(); ++i) {
    const auto op = OpId::of(i);
    const auto atom = profile.atoms.atom_of[sharded.made_for[i].index()];
    const auto step = sharded.steps.find(op);
    const bool is_exchange = step != sharded.steps.end() && step->second.move;
    if (atom.valid() && !is_exchange) halved.atoms[atom.index()].push_back(op);
  }
  for (auto& ops : halved.atoms) {
    if (!is_divided_product(sharded, ops)) ops.clear();
  }
  return halved;
}

}  // namespace autopar::cost::detail
