#include "torch/placement/fp8_choice.hpp"

#include <algorithm>
#include <set>

#include "torch/autograd/split_backward.hpp"
#include "torch/fused/fused_ops.hpp"

namespace autopar::placement {

namespace {

struct Linear {
  std::string weight;
  bool is_head = false;
  bool is_in_packs = false;
};

std::vector<Linear> linears_in(const OpGraph& graph, const algebra::BatchSemantics& plan) {
  constexpr std::int64_t kPack = 16;
  std::vector<Linear> linears;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const auto op = OpId::of(i);
    if (graph.is(op, fused::kLinearCrossEntropy)) linears.push_back({"", true, false});
    const auto split = autograd::split_backward_of(graph, plan, op);
    if (!split || !split->is_product || !split->of_cast) continue;
    const auto& weight = graph.value(split->weight);
    linears.push_back({weight.name, false, std::ranges::all_of(weight.sizes, [](SizeExpr size) {
                         return !size.depends_on_batch() && size.fixed % kPack == 0;
                       })});
  }
  return linears;
}

}  // namespace

Fp8Choice fp8_layers_of(const OpGraph& graph, const algebra::BatchSemantics& plan) {
  const auto linears = linears_in(graph, plan);
  std::set<std::string> at_ends;
  if (!linears.empty()) at_ends = {linears.front().weight, linears.back().weight};
  Fp8Choice choice;
  std::set<std::string> known;
  for (const auto& linear : linears) {
    if (linear.is_head || !known.insert(linear.weight).second) continue;
    if (at_ends.contains(linear.weight))
      choice.left_out.emplace_back(linear.weight, "it is the first or last linear layer");
    else if (!linear.is_in_packs)
      choice.left_out.emplace_back(linear.weight, "its sizes are no multiples of 16");
    else
      choice.weights.push_back(linear.weight);
  }
  return choice;
}

}  // namespace autopar::placement
