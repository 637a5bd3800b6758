#include "capture/algebra/global_sums.hpp"

#include <map>

namespace autopar::algebra {

std::vector<GlobalSum> global_sums(const OpGraph& graph, const BatchSemantics& plan) {
  std::map<ValueId, GlobalSum::Weighing> sums;
  for (const auto& output : plan.outputs) {
    if (output.kind == OutputKind::kPartialSum) sums[output.value] = GlobalSum::Weighing::kAddend;
    if (output.kind == OutputKind::kReplicated) {
      sums[output.value] = output.differentiable ? GlobalSum::Weighing::kWeighted : GlobalSum::Weighing::kFirst;
    }
  }
  for (const auto& input : plan.epilogue_inputs) {
    const bool exact = !c10::isFloatingType(graph.value(input.value).dtype);
    sums[input.value] = !input.weighted ? GlobalSum::Weighing::kAddend
                        : exact         ? GlobalSum::Weighing::kFirst
                                        : GlobalSum::Weighing::kWeighted;
  }
  std::vector<GlobalSum> out;
  for (const auto& [value, weighing] : sums) out.push_back({value, weighing});
  return out;
}

}  // namespace autopar::algebra
