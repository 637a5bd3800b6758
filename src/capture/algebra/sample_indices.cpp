#include "capture/algebra/sample_indices.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "capture/algebra/op_context.hpp"

namespace autopar {

namespace {

using algebra::OpContext;

/// Integers that index a dim of a tensor.
struct Picked {
  ValueId indices;
  SizeExpr size;  ///< of the dim
};

bool is_integer(const OpGraph& graph, ValueId value) {
  const auto type = graph.value(value).dtype;
  return type == c10::ScalarType::Long || type == c10::ScalarType::Int;
}

bool has_samples(const OpGraph& graph, ValueId value) { return !algebra::batch_dims(graph.value(value).sizes).empty(); }

void add(std::vector<Picked>& picked, const OpContext& op, ValueId indices, ValueId from, std::int64_t dim) {
  if (!indices.valid() || !from.valid() || !is_integer(op.graph(), indices)) return;
  const auto& sizes = op.sizes(from);
  dim = algebra::wrap_dim(dim, op.rank(from));
  if (dim >= 0 && dim < op.rank(from)) picked.push_back({indices, sizes[static_cast<std::size_t>(dim)]});
}

void add_by_dims(std::vector<Picked>& picked, const OpContext& op) {
  const auto at = op.position("indices");
  for (const auto& slot : op.node().inputs) {
    if (slot.position != at) continue;
    for (std::size_t dim = 0; dim < slot.values.size(); ++dim)
      add(picked, op, slot.values[dim], op.first_tensor(), static_cast<std::int64_t>(dim));
  }
}

/// What the op picks by number.
std::vector<Picked> picked_by(const OpContext& op) {
  std::vector<Picked> picked;
  const auto self = op.first_tensor();
  switch (op.traits().family) {
    case OpFamily::kEmbedding:
    case OpFamily::kEmbeddingBag:
      add(picked, op, op.tensor("indices"), op.tensor("weight"), 0);
      break;
    case OpFamily::kIndex:
    case OpFamily::kIndexPut:
      add_by_dims(picked, op);
      break;
    case OpFamily::kIndexSelect:
    case OpFamily::kIndexAdd:
    case OpFamily::kGather:
    case OpFamily::kScatter: {
      const auto index = op.tensor(op.has("index") ? "index" : "indices");
      const bool has_dim = op.has("dim") && !op.is_none("dim");
      if (has_dim || (self.valid() && op.rank(self) == 1)) add(picked, op, index, self, op.integer("dim", 0));
      break;
    }
    case OpFamily::kClassLoss:
    case OpFamily::kRowLoss:
      if (op.has("target") && self.valid()) add(picked, op, op.tensor("target"), self, op.rank(self) > 1 ? 1 : 0);
      break;
    case OpFamily::kAppendDim:  // one_hot: the result's last dim runs over classes
      if (self.valid() && is_integer(op.graph(), self) && !op.results().empty() && !op.result_sizes().empty())
        picked.push_back({self, op.result_sizes().back()});
      break;
    default:
      break;
  }
  return picked;
}

/// Whether the results' integers are those of the op's operands, or follow from them one by one.
bool keeps_integers(OpFamily family) {
  switch (family) {
    case OpFamily::kPointwise:
    case OpFamily::kCopyValue:
    case OpFamily::kCopyInto:
    case OpFamily::kReshape:
    case OpFamily::kPermute:
    case OpFamily::kSqueeze:
    case OpFamily::kUnsqueeze:
    case OpFamily::kExpand:
    case OpFamily::kBroadcastTensors:
    case OpFamily::kSelect:
    case OpFamily::kSlice:
    case OpFamily::kSplit:
    case OpFamily::kRepeat:
    case OpFamily::kRepeatInterleave:
    case OpFamily::kCat:
    case OpFamily::kStack:
      return true;
    default:
      return false;
  }
}

class IndexSearch {
 public:
  IndexSearch(const OpGraph& graph, ValueId argument) : graph_(graph), numbers_(graph.values.size(), false) {
    numbers_[argument.index()] = true;
  }

  SampleIndex run() {
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      const OpContext op(graph_, no_types_, options_, OpId::of(i));
      for (const auto& [indices, size] : picked_by(op)) {
        if (numbers_[indices.index()] && size.depends_on_batch()) return {OpId::of(i)};
      }
      if (!follows(op)) continue;
      for (const auto result : op.results()) numbers_[result.index()] = is_integer(graph_, result);
    }
    return {};
  }

 private:
  [[nodiscard]] bool follows(const OpContext& op) const {
    if (picks_whole_numbers(op)) return numbers_[op.first_tensor().index()];
    if (!keeps_integers(op.traits().family)) return false;
    bool any = false, has_own_offset = false;
    for (const auto operand : op.tensors()) {
      if (!is_integer(graph_, operand)) continue;
      any = any || numbers_[operand.index()];
      has_own_offset = has_own_offset || (op.traits().family == OpFamily::kPointwise && !numbers_[operand.index()] &&
                                          has_samples(graph_, operand));
    }
    return any && !has_own_offset;
  }

  /// Integers taken from a tensor of integers are that tensor's.
  [[nodiscard]] bool picks_whole_numbers(const OpContext& op) const {
    const auto family = op.traits().family;
    const bool picks = family == OpFamily::kIndex || family == OpFamily::kIndexSelect || family == OpFamily::kGather;
    return picks && op.first_tensor().valid() && is_integer(graph_, op.first_tensor());
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

}  // namespace autopar
