#include "torch/tensor_parallel/sharded_op.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include <autopar/core/error.hpp>

#include "ops/registry.hpp"

namespace autopar::tensor_parallel {

namespace {

/// A rule's result on slices of tokens. Operators that read weights do not work on these, since gradients of weights
/// would have to be exchanged.
ShardedOp along_tokens(ShardedOp rule, const OpDef& def) {
  if (def.has(OpTrait::kReadsWeights)) return ShardedOp::whole();
  for (auto& result : rule.results) {
    if (!result.is_sharded()) return ShardedOp::whole();
    result = TensorLayout::sequence(result.slices());
  }
  return rule;
}

/// Checks that a user's rule asks only for what operators of users support.
void require_usable(const ShardedOp& made, const OpGraph& graph, OpId id) {
  const auto& def = ops::definition_of(graph.op(id).op);
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument("OpDef::sharding of \"" + def.name + "\": " + why);
  };
  if (!made.in_slices || !ops::is_of_user(def)) return;
  if (made.kernel == ShardedOp::Kernel::kTogether)
    refuse("Kernel::kTogether is of the library's operators alone; return ShardedOp::whole()");
  if (made.kernel == ShardedOp::Kernel::kBiasOnce && (!def.layer || def.layer->bias < 0))
    refuse("Kernel::kBiasOnce needs layer.bias");
  if (made.kernel == ShardedOp::Kernel::kBiasOnce && !graph.input(id, def.layer->bias).valid())
    refuse("Kernel::kBiasOnce is of calls with a bias; return Kernel::kAsItIs where there is none");
  std::size_t results = 0;
  for_each_output(graph.op(id), [&](ValueId) { ++results; });
  if (made.results.size() != results)
    refuse("it gives " + std::to_string(made.results.size()) + " layouts for " + std::to_string(results) + " results");
  const bool sums = std::ranges::any_of(made.results, &TensorLayout::is_partial);
  if (sums && results != 1) refuse("terms of a sum are of an operator with one result; return ShardedOp::whole()");
}

/// Whether it is a product whose result other operators read. A row-parallel one takes slices of features if its input
/// is in slices of tokens.
bool is_layer(const OpDef& def) { return def.op_class == OpClass::kMatmul && !(def.layer && def.layer->makes_loss); }

}  // namespace

ShardedOp ShardRules::apply(const std::vector<TensorLayout>& layouts, OpId id, std::vector<ValueId> sharded) {
  const auto& rule = ops::definition_of(graph_.op(id).op).sharding;
  if (sharded.empty() || !rule) return ShardedOp::whole();
  ShardCall call(graph_, layouts, types_, id, std::move(sharded));
  auto made = rule(call);
  require_usable(made, graph_, id);
  return made;
}

ShardedOp ShardRules::operator()(const std::vector<TensorLayout>& layouts, OpId id) {
  std::vector<ValueId> sharded;
  for_each_input(graph_.op(id), [&](ValueId value) {
    const bool is_new = std::ranges::find(sharded, value) == sharded.end();
    if (layouts[value.index()].is_sharded() && is_new) sharded.push_back(value);
  });
  const auto& def = ops::definition_of(graph_.op(id).op);
  const auto is_sequence = [&](ValueId value) { return layouts[value.index()].is_sequence(); };
  if (!sharded.empty() && std::ranges::all_of(sharded, is_sequence))
    return along_tokens(apply(layouts, id, std::move(sharded)), def);
  std::erase_if(sharded, is_sequence);
  auto rule = apply(layouts, id, std::move(sharded));
  const bool in_two_ways = std::ranges::any_of(rule.needs, [&](const auto& need) { return is_sequence(need.first); });
  return in_two_ways && !is_layer(def) ? ShardedOp::whole() : rule;
}

}  // namespace autopar::tensor_parallel
