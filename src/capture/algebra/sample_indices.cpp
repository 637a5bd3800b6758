#include "capture/algebra/sample_indices.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/rules.hpp"

namespace autopar::algebra {

namespace {

bool is_integer(const OpGraph& graph, ValueId value) {
  const auto type = graph.value(value).dtype;
  return type == c10::ScalarType::Long || type == c10::ScalarType::Int;
}

bool has_samples(const OpGraph& graph, ValueId value) { return !ops::batch_dims(graph.value(value).sizes).empty(); }

class IndexSearch {
 public:
  IndexSearch(const OpGraph& graph, ValueId argument) : graph_(graph), numbers_(graph.values.size(), false) {
    numbers_[argument.index()] = true;
  }

  SampleIndex run() {
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      const OpCall op(graph_, no_types_, options_, OpId::of(i));
      for (const auto& [indices, size] : op.def().picks ? op.def().picks(op) : std::vector<PickedDim>()) {
        const bool is_argument = indices.valid() && is_integer(graph_, indices) && numbers_[indices.index()];
        if (is_argument && size.depends_on_batch()) return {OpId::of(i)};
      }
      if (!follows(op)) continue;
      for (const auto result : op.results()) numbers_[result.index()] = is_integer(graph_, result);
    }
    return {};
  }

 private:
  [[nodiscard]] bool follows(const OpCall& op) const {
    if (picks_whole_numbers(op)) return numbers_[op.first_tensor().index()];
    if (!op.def().has(OpTrait::kKeepsIntegers)) return false;
    bool any = false, has_own_offset = false;
    for (const auto operand : op.tensors()) {
      if (!is_integer(graph_, operand)) continue;
      any = any || numbers_[operand.index()];
      has_own_offset = has_own_offset || (op.def().kind == OpKind::kPointwise && !numbers_[operand.index()] &&
                                          has_samples(graph_, operand));
    }
    return any && !has_own_offset;
  }

  /// Integers taken from a tensor of integers are that tensor's.
  [[nodiscard]] bool picks_whole_numbers(const OpCall& op) const {
    return op.def().has(OpTrait::kPicksElements) && op.first_tensor().valid() && is_integer(graph_, op.first_tensor());
  }

  const OpGraph& graph_;
  const std::vector<BatchType> no_types_;
  const AlgebraOptions options_;
  std::vector<bool> numbers_;  ///< by value: its integers are the argument's
};

}  // namespace

std::vector<SampleIndex> sample_indices(const OpGraph& graph) {
  std::vector<SampleIndex> found;
  for (const auto input : graph.inputs) {
    const bool may_be = is_integer(graph, input) && has_samples(graph, input);
    found.push_back(may_be ? IndexSearch(graph, input).run() : SampleIndex{});
  }
  return found;
}

}  // namespace autopar::algebra
