#include "torch/tensor_parallel/tensor_candidates.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "capture/algebra/parameter_reads.hpp"
#include "ops/registry.hpp"
#include "ops/rules.hpp"

namespace autopar::tensor_parallel {

namespace {

/// A way to divide the outputs of a layer.
struct Cut {
  std::int64_t outer = 1, units = 1;
  std::vector<std::int64_t> inner{1};
  friend auto operator<=>(const Cut&, const Cut&) = default;
};

/// A product of samples with a weight; one dim of the weight is the outputs.
struct Layer {
  ValueId weight;  ///< a parameter
  std::int32_t outputs = 0;
};

class Finder {
 public:
  Finder(const OpGraph& graph, const algebra::BatchSemantics& plan, SingleLayers singles)
      : graph_(graph),
        plan_(plan),
        singles_(singles),
        uses_(graph.uses()),
        types_(graph.values.size()),
        taken_(graph.values.size(), false),
        outside_(algebra::read_outside_stages(graph, plan)),
        typing_(graph, [this](OpId op) { return plan_.handling(op).in_stage; }) {
    for (const auto output : graph.outputs) outside_[output.index()] = true;
    for (const auto& input : plan.epilogue_inputs) outside_[input.value.index()] = true;
  }

  std::vector<TensorCandidate> find() {
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      const auto op = OpId::of(i);
      if (!plan_.handling(op).in_stage || seen_.count(op) > 0) continue;
      if (layer_of(op)) try_layer(op);
    }
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      const auto op = OpId::of(i);
      const bool is_free = plan_.handling(op).in_stage && seen_.count(op) == 0;
      if (is_free && definition(op).table >= 0) try_table(op);
    }
    for (std::size_t i = 0; i < graph_.ops.size() && singles_ == SingleLayers::kByInputs; ++i) {
      const auto op = OpId::of(i);
      if (!plan_.handling(op).in_stage || seen_.count(op) > 0 || !layer_of(op)) continue;
      if (auto candidate = by_inputs(op)) keep(std::move(*candidate));
    }
    std::ranges::sort(found_, {}, [](const TensorCandidate& each) { return each.ops.front(); });
    return std::move(found_);
  }

 private:
  [[nodiscard]] bool may_slice(ValueId leaf) const {
    return graph_.value(leaf).kind == ValueKind::kParameter && !taken_[leaf.index()] && !outside_[leaf.index()];
  }
  /// The parameter that a weight is, or is a cast of.
  [[nodiscard]] ValueId parameter_of(ValueId weight) const {
    const auto leaf = leaf_behind(graph_, weight);
    return leaf.valid() && may_slice(leaf) ? leaf : ValueId::none();
  }

  [[nodiscard]] const OpDef& definition(OpId op) const { return ops::definition_of(graph_.op(op).op); }

  [[nodiscard]] std::optional<Layer> layer_of(OpId op) const {
    const auto& form = definition(op).layer;
    if (!form) return std::nullopt;
    const auto weight = parameter_of(graph_.input(op, form->weight));
    if (!weight.valid() || graph_.value(weight).sizes.size() != 2) return std::nullopt;
    return Layer{weight, form->outputs};
  }

  /// Tries to divide a layer. Layers that are divided with it suggest further ways: heads of keys that several heads of
  /// queries share.
  void try_layer(OpId op) {
    const auto own = layer_of(op)->weight;
    std::optional<TensorCandidate> best;
    double least = 0;
    std::vector<OpId> layers{op};
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const auto [weight, dim] = *layer_of(layers[i]);
      for (const auto& cut : cuts_of(layers[i])) {
        if (cut.units < 2) continue;
        auto candidate = grow({{weight, slices_of(cut, dim)}}, cut.units);
        if (!candidate || candidate->leaves.count(own) == 0) continue;
        for (const auto layer : cut_by_outputs(*candidate)) {
          if (std::ranges::find(layers, layer) == layers.end()) layers.push_back(layer);
        }
        const auto exchange = exchanged(*candidate) / cut_elements(*candidate);
        const bool is_better = !best || exchange < least || (exchange == least && candidate->units > best->units);
        if (!is_better) continue;
        least = exchange;
        best = std::move(candidate);
      }
    }
    if (!best) return;
    auto single = is_small_head(op, *best) ? by_inputs(op) : std::nullopt;
    keep(std::move(single ? *single : *best));
  }
  /// Whether the layer is a class head whose column-parallel form exchanges more than its row-parallel one.
  /// Column-parallel sends the features' gradients twice (all-reduce). Row-parallel sends the logits twice and the
  /// features' gradients once.
  [[nodiscard]] bool is_small_head(OpId op, const TensorCandidate& candidate) const {
    if (singles_ != SingleLayers::kByInputs || candidate.class_losses.empty()) return false;
    const auto [weight, outputs] = *layer_of(op);
    const auto size = [&, weight = weight](std::int32_t dim) {
      return graph_.value(weight).sizes[static_cast<std::size_t>(dim)].fixed;
    };
    return cut_by_outputs(candidate).size() == 1 && 2 * size(outputs) < size(1 - outputs);
  }
  /// A candidate of the layer alone, row-parallel, and all that reads its weight.
  [[nodiscard]] std::optional<TensorCandidate> by_inputs(OpId op) {
    const auto [weight, outputs] = *layer_of(op);
    const auto dim = 1 - outputs;
    const auto inputs = graph_.value(weight).sizes[static_cast<std::size_t>(dim)].fixed;
    if (inputs < 2) return std::nullopt;
    const auto layout = typing_.run({{weight, UnitSlices{dim, {0, 1}, inputs, {1}}}}, [](ValueId) { return false; });
    const auto spreads_only = [](const auto& item) {
      return std::ranges::all_of(item.second, [](const auto& move) { return move.move == ir::ShardMove::kScatter; });
    };
    const bool is_alone = !layout.stale.valid() && layout.in_slices.count(op) > 0 && layout.gathered_after.empty() &&
                          std::ranges::all_of(layout.before, spreads_only);
    if (!is_alone) return std::nullopt;
    auto candidate = described(layout, inputs);
    const std::set<ValueId> spread(layout.conflicts.begin(), layout.conflicts.end());
    candidate.spread.assign(spread.begin(), spread.end());
    candidate.by_inputs = true;
    return candidate;
  }
  [[nodiscard]] std::vector<OpId> cut_by_outputs(const TensorCandidate& candidate) const {
    std::vector<OpId> layers;
    for (const auto op : candidate.ops) {
      const auto layer = layer_of(op);
      const auto found = layer ? candidate.leaves.find(layer->weight) : candidate.leaves.end();
      if (found != candidate.leaves.end() && found->second.dim == layer->outputs) layers.push_back(op);
    }
    return layers;
  }

  void try_table(OpId op) {
    const auto weight = parameter_of(graph_.input(op, definition(op).table));
    if (!weight.valid()) return;
    const auto rows = graph_.value(weight).sizes.front().fixed;
    if (auto candidate = grow({{weight, {0, SizeExpr{0, 1}, rows, {1}}}}, rows)) keep(std::move(*candidate));
  }

  void keep(TensorCandidate candidate) {
    for (const auto& [leaf, slices] : candidate.leaves) taken_[leaf.index()] = true;
    seen_.insert(candidate.ops.begin(), candidate.ops.end());
    found_.push_back(std::move(candidate));
  }

  static UnitSlices slices_of(const Cut& cut, std::int32_t dim) { return {dim, {0, cut.outer}, cut.units, cut.inner}; }

  /// The ways that the shapes of later values suggest: heads, gates, or single units.
  [[nodiscard]] std::set<Cut> cuts_of(OpId op) const {
    if (definition(op).layer->makes_loss) return {{1, graph_.value(layer_of(op)->weight).sizes.front().fixed, {1}}};
    const auto result = graph_.output(op);
    const auto features = graph_.value(result).sizes.back().fixed;
    std::set<Cut> cuts{{1, features, {1}}};
    follow(result, 1, features, 4, cuts);
    return cuts;
  }
  /// @param pieces, size  the outputs consist of this many pieces of this size, and `value` has one
  void follow(ValueId value, std::int64_t pieces, std::int64_t size, int depth, std::set<Cut>& cuts) const {
    if (depth == 0) return;
    for (const auto& parts : parts_of(value)) {
      add_cuts_of(parts, pieces, size, depth, cuts);
      if (pieces > 1) add_cuts_of(parts, 1, pieces * size, depth, cuts);
    }
    for (const auto use : uses_[value.index()]) {
      const auto& node = graph_.op(use);
      const auto& def = definition(use);
      if (def.kind == OpKind::kReshape) {
        const auto result = graph_.output(use);
        add_cuts(graph_.value(result).sizes, pieces, size, cuts);
        follow_piece(result, pieces, size, depth, cuts);
      } else if (def.has(OpTrait::kTakesApart)) {
        for_each_output(node, [&](ValueId piece) {
          const auto parts = follow_piece(piece, pieces, size, depth, cuts);
          if (parts > 1) cuts.insert({pieces * parts, size / parts, {1}});
        });
      } else if (def.kind == OpKind::kCopy || def.kind == OpKind::kPointwise) {
        for_each_output(node, [&](ValueId same) { follow(same, pieces, size, depth - 1, cuts); });
      }
    }
  }
  /// The parts into which a program divides a dim of a value, in its order.
  struct Part {
    std::int64_t length = 0;
    ValueId value;
  };
  /// The parts by dim, such as queries beside fewer keys and values.
  [[nodiscard]] std::vector<std::vector<Part>> parts_of(ValueId value) const {
    std::map<std::int64_t, std::map<std::int64_t, Part>> by_begin;  // of each dim
    const auto& sizes = graph_.value(value).sizes;
    for (const auto use : uses_[value.index()]) {
      const OpCall op(graph_, types_, options_, use);
      const auto kind = op.def().kind;
      const bool is_slice = kind == OpKind::kSlice;
      if ((!is_slice && kind != OpKind::kSplit) || op.base_name() == "unbind" || op.first_tensor() != value) continue;
      const auto dim = ops::wrap_dim(op.integer("dim", 0), op.rank(value));
      const auto start = is_slice && !op.is_none("start") ? op.expression("start") : std::optional(SizeExpr{});
      if (!start || start->depends_on_batch() || op.integer("step", 1) != 1) continue;
      auto begin = start->fixed;
      for (std::size_t k = 0; k < op.results().size(); ++k) {
        const auto length = op.result_sizes(k)[static_cast<std::size_t>(dim)];
        const bool is_all = length == sizes[static_cast<std::size_t>(dim)];
        if (!is_all) by_begin[dim].try_emplace(begin, Part{length.fixed, op.results()[k]});
        begin += length.fixed;
      }
    }
    std::vector<std::vector<Part>> out;
    for (const auto& [dim, found] : by_begin) {
      std::vector<Part> parts;
      std::int64_t at = 0;
      for (auto next = found.find(at); next != found.end() && next->second.length > 0; next = found.find(at)) {
        parts.push_back(next->second);
        at += next->second.length;
      }
      const bool is_complete = sizes[static_cast<std::size_t>(dim)] == SizeExpr{0, at};
      if (is_complete && parts.size() > 1) out.push_back(std::move(parts));
    }
    return out;
  }
  /// Adds ways that divide every part into the same number of units. The readers of one part suggest them; other parts
  /// need heads of the same size.
  void add_cuts_of(const std::vector<Part>& parts, std::int64_t pieces, std::int64_t size, int depth,
                   std::set<Cut>& cuts) const {
    const auto sum = [](std::int64_t all, const Part& part) { return all + part.length; };
    const auto length = std::accumulate(parts.begin(), parts.end(), std::int64_t{0}, sum), each = size / length;
    if (size % length != 0) return;
    std::vector<std::set<Cut>> of_parts;
    std::set<Cut> all;
    for (const auto& part : parts) {
      auto& own = of_parts.emplace_back(std::set<Cut>{{1, part.length, {each}}});
      follow(part.value, 1, part.length * each, depth - 1, own);
      all.insert(own.begin(), own.end());
    }
    for (const auto& wanted : all) {
      Cut joined{pieces, wanted.units, {}};
      const auto joins = [&](const std::set<Cut>& own) {
        const auto same = std::ranges::find_if(
            own, [&](const Cut& cut) { return cut.inner == wanted.inner && cut.units % wanted.units == 0; });
        const auto cut = same != own.end() ? std::optional(grouped(*same, wanted.units)) : cut_into(wanted.units, own);
        for (std::int64_t block = 0; cut && block < cut->outer; ++block)
          joined.inner.insert(joined.inner.end(), cut->inner.begin(), cut->inner.end());
        return cut.has_value();
      };
      if (wanted.units == 1 || !std::ranges::all_of(of_parts, joins)) continue;
      joined.outer *= fold_repeated(joined.inner);
      cuts.insert(std::move(joined));
    }
  }
  /// @return the number of such pieces in its operand; 0: it is not a piece
  std::int64_t follow_piece(ValueId piece, std::int64_t pieces, std::int64_t size, int depth,
                            std::set<Cut>& cuts) const {
    const auto& sizes = graph_.value(piece).sizes;
    if (sizes.empty() || sizes.back().fixed <= 1 || size % sizes.back().fixed != 0) return 0;
    const auto parts = size / sizes.back().fixed;
    follow(piece, pieces * parts, sizes.back().fixed, depth - 1, cuts);
    return parts;
  }
  static void add_cuts(const std::vector<SizeExpr>& to, std::int64_t pieces, std::int64_t size, std::set<Cut>& cuts) {
    std::int64_t after = 1;
    for (std::size_t dim = to.size(); dim-- > 0 && size % after == 0;) {
      if (to[dim].depends_on_batch()) {
        cuts.insert({pieces, size / after, {after}});
        return;
      }
      const auto units = to[dim].fixed;
      if (units <= 0) return;
      if (size % (units * after) == 0) cuts.insert({pieces * (size / (units * after)), units, {after}});
      after *= units;
    }
  }

  /// The region that follows from leaves in slices. Other layers that must also be divided are added.
  [[nodiscard]] std::optional<TensorCandidate> grow(LeafSlices leaves, std::int64_t units) {
    constexpr int kRounds = 8;
    for (int round = 0; round < kRounds; ++round) {
      auto layout = typing_.run(leaves, [this](ValueId leaf) { return may_slice(leaf); });
      if (layout.stale.valid()) return std::nullopt;
      if (layout.conflicts.empty()) return described(layout, units);
      bool joined = false;
      for (const auto value : layout.conflicts) joined = join(value, layout, units, leaves) || joined;
      if (!joined) return std::nullopt;
    }
    return std::nullopt;
  }

  /// The way with this number of units, otherwise one whose units can be grouped to it. Example: heads of queries that
  /// share a head of keys.
  [[nodiscard]] static std::optional<Cut> cut_into(std::int64_t units, const std::set<Cut>& cuts) {
    std::optional<Cut> largest;
    for (const auto& cut : cuts) {
      if (cut.units == units) return cut;
      if (cut.units % units != 0) continue;
      auto joined = grouped(cut, units);
      const bool keeps_more = !largest || joined.inner > largest->inner;
      if (keeps_more) largest = std::move(joined);
    }
    return largest;
  }
  /// The way with units grouped to this number.
  /// @pre it divides the number of units
  [[nodiscard]] static Cut grouped(Cut cut, std::int64_t units) {
    for (auto& part : cut.inner) part *= cut.units / units;
    cut.units = units;
    return cut;
  }

  /// Divides the layer or the table that an unsharded value comes from.
  bool join(ValueId value, const ShardedLayout& layout, std::int64_t units, LeafSlices& leaves) const {
    if (layout.layouts[value.index()].is_sharded()) return false;
    for (int steps = 0; steps < 16 && !graph_.value(value).is_leaf(); ++steps) {
      const auto op = graph_.value(value).definer;
      if (const auto layer = layer_of(op)) {
        if (leaves.count(layer->weight) > 0) return false;
        const auto cut = cut_into(units, cuts_of(op));
        if (cut) leaves.emplace(layer->weight, slices_of(*cut, layer->outputs));
        return cut.has_value();
      }
      if (const auto& form = definition(op).layer; form && form->always) return false;  // its weight cannot be divided
      const auto& node = graph_.op(op);
      if (node.inputs.empty()) return false;
      value = node.inputs.front().values.front();
      if (!value.valid()) return false;
    }
    return graph_.value(value).is_leaf() && join_table(value, units, leaves);
  }
  /// A parameter that no layer reads: a bias of scores for each head, looked up by distance.
  bool join_table(ValueId table, std::int64_t units, LeafSlices& leaves) const {
    if (!may_slice(table) || leaves.count(table) > 0) return false;
    const auto& sizes = graph_.value(table).sizes;
    for (std::size_t dim = sizes.size(); dim-- > 0;) {
      if (sizes[dim] != SizeExpr{0, units}) continue;
      leaves.emplace(table, UnitSlices{static_cast<std::int32_t>(dim), {0, 1}, units, {1}});
      return true;
    }
    return false;
  }

  [[nodiscard]] TensorCandidate described(const ShardedLayout& layout, std::int64_t units) const {
    TensorCandidate candidate{.leaves = layout.leaves, .ops = {}, .units = units};
    for (const auto& [op, kernel] : layout.in_slices) {
      candidate.ops.push_back(op);
      if (kernel == ShardedOp::Kernel::kTogether && definition(op).makes_class_loss)
        candidate.class_losses.push_back(graph_.output(op));
    }
    candidate.added_up.assign(layout.sums.begin(), layout.sums.end());
    std::set<ValueId> copied;
    for (const auto& [op, moves] : layout.before) {
      for (const auto& move : moves) {
        if (move.move == ir::ShardMove::kCopy) copied.insert(move.value);
      }
    }
    candidate.copied.assign(copied.begin(), copied.end());
    return candidate;
  }

  /// Number of exchanged elements for two samples, so that what depends on the batch counts.
  [[nodiscard]] double exchanged(const TensorCandidate& candidate) const {
    double elements = 0;
    for (const auto* values : {&candidate.copied, &candidate.added_up}) {
      for (const auto value : *values) elements += static_cast<double>(graph_.value(value).elements(2));
    }
    return elements;
  }
  [[nodiscard]] double cut_elements(const TensorCandidate& candidate) const {
    double elements = 0;
    for (const auto& [leaf, slices] : candidate.leaves) elements += static_cast<double>(graph_.value(leaf).elements(2));
    return elements;
  }

  const OpGraph& graph_;
  const algebra::BatchSemantics& plan_;
  const SingleLayers singles_;
  std::vector<std::vector<OpId>> uses_;
  std::vector<BatchType> types_;  ///< samples are not typed: rules see the operators' arguments only
  AlgebraOptions options_;
  std::vector<bool> taken_, outside_;
  std::set<OpId> seen_;
  ShardTyping typing_;
  std::vector<TensorCandidate> found_;
};

}  // namespace

std::vector<TensorCandidate> find_tensor_candidates(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                                    SingleLayers singles) {
  return Finder(graph, plan, singles).find();
}

double share_by_inputs(const OpGraph& graph, const algebra::BatchSemantics& plan) {
  const auto elements = [&](ValueId leaf) { return static_cast<double>(graph.value(leaf).elements(1)); };
  double all = 0, cut = 0;
  std::set<ValueId> parameters;
  for (const auto& parameter : graph.parameters) parameters.insert(parameter.value);
  for (const auto parameter : parameters) all += elements(parameter);
  for (const auto& candidate : find_tensor_candidates(graph, plan, SingleLayers::kByInputs)) {
    for (const auto& [leaf, slices] : candidate.leaves) cut += candidate.by_inputs ? elements(leaf) : 0;
  }
  return all > 0 ? cut / all : 0;
}

}  // namespace autopar::tensor_parallel
