#include "torch/algebra/global_sums.hpp"

#include <map>

namespace autopar {

std::vector<GlobalSum> global_sums(const OpGraph& graph, const BatchPlan& plan) {
  std::map<ValueId, GlobalSum::Share> sums;
  for (const auto& output : plan.outputs) {
    if (output.kind == OutputKind::kPartialSum) sums[output.value] = GlobalSum::Share::kAddend;
    if (output.kind == OutputKind::kReplicated) {
      sums[output.value] = output.differentiable ? GlobalSum::Share::kWeighted : GlobalSum::Share::kFirst;
    }
  }
  for (const auto& input : plan.epilogue_inputs) {
    const bool exact = !c10::isFloatingType(graph.value(input.value).dtype);
    sums[input.value] = !input.weighted ? GlobalSum::Share::kAddend
                        : exact         ? GlobalSum::Share::kFirst
                                        : GlobalSum::Share::kWeighted;
  }
  std::vector<GlobalSum> out;
  for (const auto& [value, share] : sums) out.push_back({value, share});
  return out;
}

}  // namespace autopar
