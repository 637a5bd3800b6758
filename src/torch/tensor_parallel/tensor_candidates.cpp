#include "torch/tensor_parallel/tensor_candidates.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "torch/algebra/parameter_reads.hpp"
#include "torch/ir/op_table.hpp"

namespace autopar {

namespace {

/// A way to cut the outputs of a linear layer.
struct Cut {
  std::int64_t outer = 1, units = 1, inner = 1;
  friend auto operator<=>(const Cut&, const Cut&) = default;
};

class Finder {
 public:
  Finder(const OpGraph& graph, const BatchPlan& plan)
      : graph_(graph),
        plan_(plan),
        uses_(graph.uses()),
        taken_(graph.values.size(), false),
        outside_(read_outside_stages(graph, plan)),
        typing_(graph, [this](OpId op) { return plan_.handling(op).in_stage; }) {
    for (const auto output : graph.outputs) outside_[output.index()] = true;
    for (const auto& input : plan.epilogue_inputs) outside_[input.value.index()] = true;
  }

  std::vector<TensorCandidate> find() {
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      const auto op = OpId::of(i);
      if (!plan_.handling(op).in_stage || seen_.count(op) > 0) continue;
      const auto family = traits_of(graph_.op(op).op).family;
      if (family == OpFamily::kLinear && graph_.is(op, "aten::linear")) try_linear(op);
    }
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      const auto op = OpId::of(i);
      const bool is_free = plan_.handling(op).in_stage && seen_.count(op) == 0;
      if (is_free && graph_.is(op, "aten::embedding")) try_embedding(op);
    }
    std::ranges::sort(found_, {}, [](const TensorCandidate& each) { return each.ops.front(); });
    return std::move(found_);
  }

 private:
  [[nodiscard]] bool may_slice(ValueId leaf) const {
    return graph_.value(leaf).kind == ValueKind::kParameter && !taken_[leaf.index()] && !outside_[leaf.index()];
  }
  /// The parameter that a weight is, or a cast of it.
  [[nodiscard]] ValueId parameter_of(ValueId weight) const {
    const auto leaf = leaf_behind(graph_, weight);
    return leaf.valid() && may_slice(leaf) ? leaf : ValueId::none();
  }

  void try_linear(OpId op) {
    const auto weight = parameter_of(graph_.input(op, 1));
    if (!weight.valid()) return;
    std::optional<TensorCandidate> best;
    std::int64_t least = 0;
    for (const auto& cut : cuts_of(op)) {
      if (cut.units < 2) continue;
      auto candidate = grow({{weight, slices_of(cut)}}, cut.units);
      if (!candidate) continue;
      const auto bytes = exchanged(*candidate);
      const bool is_better = !best || bytes < least || (bytes == least && candidate->units > best->units);
      if (!is_better) continue;
      least = bytes;
      best = std::move(candidate);
    }
    if (best) keep(std::move(*best));
  }

  void try_embedding(OpId op) {
    const auto weight = parameter_of(graph_.input(op, 0));
    if (!weight.valid()) return;
    const auto rows = graph_.value(weight).sizes.front().fixed;
    if (auto candidate = grow({{weight, {0, SizeExpr{0, 1}, rows, 1}}}, rows)) keep(std::move(*candidate));
  }

  void keep(TensorCandidate candidate) {
    for (const auto& [leaf, slices] : candidate.leaves) taken_[leaf.index()] = true;
    seen_.insert(candidate.ops.begin(), candidate.ops.end());
    found_.push_back(std::move(candidate));
  }

  static UnitSlices slices_of(const Cut& cut) { return {0, {0, cut.outer}, cut.units, cut.inner}; }

  /// What shapes behind a layer make of its outputs: heads, gates, or single units.
  [[nodiscard]] std::set<Cut> cuts_of(OpId op) const {
    const auto result = graph_.output(op);
    const auto features = graph_.value(result).sizes.back().fixed;
    std::set<Cut> cuts{{1, features, 1}};
    follow(result, 1, features, 4, cuts);
    return cuts;
  }
  /// @param pieces, size  the outputs are so many pieces, of which `value` has one
  void follow(ValueId value, std::int64_t pieces, std::int64_t size, int depth, std::set<Cut>& cuts) const {
    if (depth == 0) return;
    for (const auto use : uses_[value.index()]) {
      const auto& node = graph_.op(use);
      const auto family = traits_of(node.op).family;
      if (family == OpFamily::kReshape) {
        add_cuts(graph_.value(graph_.output(use)).sizes, pieces, size, cuts);
      } else if (family == OpFamily::kSplit || family == OpFamily::kSlice) {
        for_each_output(node, [&](ValueId piece) {
          const auto& sizes = graph_.value(piece).sizes;
          if (sizes.empty() || sizes.back().fixed == 0 || size % sizes.back().fixed != 0) return;
          const auto parts = size / sizes.back().fixed;
          if (parts > 1) cuts.insert({pieces * parts, sizes.back().fixed, 1});
          follow(piece, pieces * parts, sizes.back().fixed, depth - 1, cuts);
        });
      } else if (family == OpFamily::kCopyValue || family == OpFamily::kPointwise) {
        for_each_output(node, [&](ValueId same) { follow(same, pieces, size, depth - 1, cuts); });
      }
    }
  }
  static void add_cuts(const std::vector<SizeExpr>& to, std::int64_t pieces, std::int64_t size, std::set<Cut>& cuts) {
    std::int64_t after = 1;
    for (std::size_t dim = to.size(); dim-- > 0 && size % after == 0;) {
      if (to[dim].depends_on_batch()) {
        cuts.insert({pieces, size / after, after});
        return;
      }
      const auto units = to[dim].fixed;
      if (units <= 0) return;
      if (size % (units * after) == 0) cuts.insert({pieces * (size / (units * after)), units, after});
      after *= units;
    }
  }

  /// The region that leaves in slices give; other layers that must be cut as well join them.
  [[nodiscard]] std::optional<TensorCandidate> grow(LeafSlices leaves, std::int64_t units) {
    constexpr int kLayers = 8;
    for (int round = 0; round < kLayers; ++round) {
      auto layout = typing_.run(leaves, [this](ValueId leaf) { return may_slice(leaf); });
      if (layout.stale.valid()) return std::nullopt;
      if (layout.conflicts.empty()) return described(layout, units);
      bool joined = false;
      for (const auto value : layout.conflicts) joined = join(value, layout, units, leaves) || joined;
      if (!joined) return std::nullopt;
    }
    return std::nullopt;
  }

  /// Cuts the layer that a whole value comes from.
  bool join(ValueId value, const ShardedLayout& layout, std::int64_t units, LeafSlices& leaves) const {
    if (layout.layouts[value.index()].is_sharded()) return false;
    for (int steps = 0; steps < 16 && !graph_.value(value).is_leaf(); ++steps) {
      const auto op = graph_.value(value).definer;
      if (graph_.is(op, "aten::linear")) {
        const auto weight = parameter_of(graph_.input(op, 1));
        if (!weight.valid() || leaves.count(weight) > 0) return false;
        for (const auto& cut : cuts_of(op)) {
          if (cut.units != units) continue;
          leaves.emplace(weight, slices_of(cut));
          return true;
        }
        return false;
      }
      const auto& node = graph_.op(op);
      if (node.inputs.empty()) return false;
      value = node.inputs.front().values.front();
      if (!value.valid()) return false;
    }
    return false;
  }

  [[nodiscard]] TensorCandidate described(const ShardedLayout& layout, std::int64_t units) const {
    TensorCandidate candidate{.leaves = layout.leaves, .ops = {}, .units = units};
    for (const auto& [op, kernel] : layout.in_slices) {
      candidate.ops.push_back(op);
      if (kernel == ShardedOp::Kernel::kClassLoss) candidate.class_losses.push_back(graph_.output(op));
    }
    candidate.added_up.assign(layout.sums.begin(), layout.sums.end());
    std::set<ValueId> copied;
    for (const auto& [op, moves] : layout.before) {
      for (const auto& move : moves) {
        if (move.move == ShardMove::kCopy) copied.insert(move.value);
      }
    }
    candidate.copied.assign(copied.begin(), copied.end());
    return candidate;
  }

  /// For two samples, so that what follows the batch counts.
  [[nodiscard]] std::int64_t exchanged(const TensorCandidate& candidate) const {
    std::int64_t elements = 0;
    for (const auto* values : {&candidate.copied, &candidate.added_up}) {
      for (const auto value : *values) elements += graph_.value(value).elements(2);
    }
    return elements;
  }

  const OpGraph& graph_;
  const BatchPlan& plan_;
  std::vector<std::vector<OpId>> uses_;
  std::vector<bool> taken_, outside_;
  std::set<OpId> seen_;
  ShardTyping typing_;
  std::vector<TensorCandidate> found_;
};

}  // namespace

std::vector<TensorCandidate> find_tensor_candidates(const OpGraph& graph, const BatchPlan& plan) {
  return Finder(graph, plan).find();
}

}  // namespace autopar
