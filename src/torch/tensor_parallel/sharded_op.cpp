#include "torch/tensor_parallel/sharded_op.hpp"

#include <algorithm>
#include <optional>

#include "capture/ir/cross_entropy.hpp"

namespace autopar {

namespace {

using algebra::OpContext;
using algebra::wrap_dim;

constexpr SizeExpr kOne{0, 1};

class Rule {
 public:
  Rule(const OpGraph& graph, const std::vector<TensorLayout>& layouts, std::vector<BatchType>& types, OpId id)
      : graph_(graph), layouts_(layouts), types_(types), op_(graph, types, options_, id) {
    for_each_input(graph.op(id), [&](ValueId value) {
      if (!layouts_[value.index()].is_sharded() || is_sharded(value)) return;
      sharded_.push_back(value);
    });
  }

  [[nodiscard]] ShardedOp apply() {
    const auto is_sequence = [&](ValueId value) { return layouts_[value.index()].is_sequence(); };
    if (!sharded_.empty() && std::ranges::all_of(sharded_, is_sequence)) return along_tokens(by_family());
    std::erase_if(sharded_, is_sequence);
    const auto rule = by_family();
    const bool in_two_ways = std::ranges::any_of(rule.needs, [&](const auto& need) { return is_sequence(need.first); });
    return in_two_ways && !is_layer() ? ShardedOp::whole() : rule;
  }

 private:
  [[nodiscard]] ShardedOp by_family() {
    if (sharded_.empty()) return ShardedOp::whole();
    for (const auto value : sharded_) out_.needs[value] = slices(value);
    switch (op_.traits().family) {
      case OpFamily::kPointwise:
      case OpFamily::kCopyValue:
      case OpFamily::kDropout:
      case OpFamily::kFill:
      case OpFamily::kCopyInto:
        return pointwise();
      case OpFamily::kLikeFactory:
        return of_one(slices(sharded_.front()));
      case OpFamily::kReshape:
        return reshape();
      case OpFamily::kExpand:
      case OpFamily::kRepeat:
        return expand();
      case OpFamily::kAppendDim:
        return with_other_last_dim();
      case OpFamily::kRepeatInterleave:
        return repeat_each();
      case OpFamily::kSplit:
      case OpFamily::kSlice:
        return along_own_dim() ? pieces() : by_dims();
      case OpFamily::kAlongDims:
        return op_.base_name() == "glu" && along_own_dim() ? glu() : by_dims();
      case OpFamily::kPermute:
      case OpFamily::kSqueeze:
      case OpFamily::kUnsqueeze:
      case OpFamily::kSelect:
      case OpFamily::kIndex:
      case OpFamily::kIndexSelect:
      case OpFamily::kCat:
      case OpFamily::kStack:
      case OpFamily::kReduce:
      case OpFamily::kReduceMean:
      case OpFamily::kReduceSum:
      case OpFamily::kTrailing:
        return by_dims();
      case OpFamily::kLayerNorm:
        return op_.has("residual") ? norm_of_sum() : by_dims();
      case OpFamily::kContraction:
        return contraction();
      case OpFamily::kLinear:
        return op_.base_name() == "linear" ? linear() : ShardedOp::whole();
      case OpFamily::kAttention:
        return op_.base_name() == "scaled_dot_product_attention" ? attention() : ShardedOp::whole();
      case OpFamily::kEmbedding:
        return embedding();
      case OpFamily::kClassLoss:
        return class_loss();
      case OpFamily::kClassHead:
        return class_head();
      default:
        return ShardedOp::whole();
    }
  }

  /// One by inputs takes these of features that it gets in slices of tokens.
  [[nodiscard]] bool is_layer() const {
    const auto family = op_.traits().family;
    return family == OpFamily::kLinear || family == OpFamily::kContraction;
  }

  /// What reads weights is not computed on slices of tokens: gradients of weights would be exchanged.
  [[nodiscard]] ShardedOp along_tokens(ShardedOp rule) const {
    switch (op_.traits().family) {
      case OpFamily::kLinear:
      case OpFamily::kContraction:
      case OpFamily::kAttention:
      case OpFamily::kEmbedding:
      case OpFamily::kClassLoss:
      case OpFamily::kClassHead:
        return ShardedOp::whole();
      default:
        break;
    }
    for (auto& result : rule.results) {
      if (!result.is_sharded()) return ShardedOp::whole();
      result = TensorLayout::sequence(result.slices());
    }
    return rule;
  }

  [[nodiscard]] const UnitSlices& slices(ValueId value) const { return layouts_[value.index()].slices(); }
  [[nodiscard]] bool is_sharded(ValueId value) const { return std::ranges::find(sharded_, value) != sharded_.end(); }
  [[nodiscard]] const std::vector<SizeExpr>& sizes(ValueId value) const { return graph_.value(value).sizes; }
  [[nodiscard]] std::int64_t rank(ValueId value) const { return op_.rank(value); }

  ShardedOp of_one(const UnitSlices& result) {
    out_.in_slices = true;
    out_.results.assign(op_.results().size(), TensorLayout::sharded(result));
    return out_;
  }
  ShardedOp sum() {
    out_.in_slices = true;
    out_.results.assign(op_.results().size(), TensorLayout::partial());
    return out_;
  }

  /// Notes that an operand takes part in a sharded dim, its own `dim`: there it must have the same units.
  /// @return whether it can
  bool require(ValueId operand, std::int64_t dim, const UnitSlices& as) {
    if (dim < 0 || dim >= rank(operand)) return true;
    const auto wanted = as.at_dim(dim);
    if (is_sharded(operand)) return slices(operand) == wanted;
    if (sizes(operand)[static_cast<std::size_t>(dim)] == kOne) return true;
    if (sizes(operand)[static_cast<std::size_t>(dim)] != as.size_of(as.units)) return false;
    const auto [known, is_new] = out_.needs.try_emplace(operand, wanted);
    return known->second == wanted;
  }

  /// A memory that is written must be that of the result.
  [[nodiscard]] bool writes_whole() const {
    const auto at = op_.written_argument();
    if (at < 0) return false;
    const auto written = op_.tensors(at);
    return written.empty() || !is_sharded(written.front());
  }

  ShardedOp pointwise() {
    const auto to = static_cast<std::int64_t>(op_.result_sizes().size());
    const auto first = sharded_.front();
    const auto result = slices(first).at_dim(slices(first).dim + to - rank(first));
    if (result.dim < 0 || writes_whole()) return ShardedOp::whole();
    for (const auto operand : op_.tensors()) {
      if (!require(operand, result.dim - (to - rank(operand)), result)) return ShardedOp::whole();
    }
    return of_one(result);
  }

  ShardedOp reshape() {
    const auto self = op_.first_tensor();
    if (!is_sharded(self) || op_.base_name() == "_reshape_alias") return ShardedOp::whole();
    const auto result = reshaped(slices(self), sizes(self), op_.result_sizes());
    return result ? of_one(*result) : ShardedOp::whole();
  }

  ShardedOp expand() {
    const auto self = op_.first_tensor();
    if (!is_sharded(self)) return ShardedOp::whole();
    const auto& to = op_.result_sizes();
    const auto dim = slices(self).dim + static_cast<std::int64_t>(to.size()) - rank(self);
    const bool keeps = to[static_cast<std::size_t>(dim)] == slices(self).size_of(slices(self).units);
    return keeps ? of_one(slices(self).at_dim(dim)) : ShardedOp::whole();
  }

  /// Complex numbers of pairs, and the way back.
  ShardedOp with_other_last_dim() {
    const auto& own = slices(sharded_.front());
    const bool is_kept =
        own.dim + 1 < rank(sharded_.front()) || op_.result_sizes().size() > sizes(sharded_.front()).size();
    return is_kept ? of_one(own) : ShardedOp::whole();
  }

  /// Every element so often, one behind the other: heads of keys for the queries of their group.
  ShardedOp repeat_each() {
    const auto self = op_.tensor("self");
    const bool is_plain = self.valid() && !op_.is_none("dim") && op_.is_none("output_size") &&
                          op_.tensors().size() == 1 && !op_.has_batch_sizes();
    if (!is_plain || !is_sharded(self)) return ShardedOp::whole();
    return of_one(along_own_dim() ? slices(self).times(op_.integer("repeats", 1)) : slices(self));
  }

  [[nodiscard]] bool along_own_dim() const {
    const auto self = op_.first_tensor();
    return is_sharded(self) && wrap_dim(op_.integer("dim", 0), rank(self)) == slices(self).dim;
  }

  /// Pieces along the sharded dim, each of whole parts: queries, keys and values of fused projections.
  ShardedOp pieces() {
    const auto& whole = slices(op_.first_tensor());
    if (op_.base_name() == "unbind" || op_.integer("step", 1) != 1 || op_.tensors().size() != 1 ||
        whole.outer.depends_on_batch()) {
      return ShardedOp::whole();
    }
    auto begin = std::optional(SizeExpr{});
    if (op_.traits().family == OpFamily::kSlice && !op_.is_none("start")) begin = op_.expression("start");
    if (!begin || begin->depends_on_batch() || begin->fixed < 0) return ShardedOp::whole();
    out_.in_slices = true;
    for (std::size_t k = 0; k < op_.results().size(); ++k) {
      const auto size = op_.result_sizes(k)[static_cast<std::size_t>(whole.dim)];
      const auto piece = size.depends_on_batch() ? std::nullopt : whole.piece(begin->fixed, size.fixed);
      if (!piece) return ShardedOp::whole();
      out_.results.push_back(TensorLayout::sharded(*piece));
      begin->fixed += size.fixed;
    }
    return out_;
  }
  /// One half of the blocks by a gate from the other.
  ShardedOp glu() {
    auto half = slices(op_.first_tensor());
    const auto blocks = quotient(half.outer, {0, 2});
    if (!blocks) return ShardedOp::whole();
    half.outer = *blocks;
    return of_one(half);
  }

  /// Operators that only move dims, or work along others than the sharded one: the batch algebra's rules, with units in
  /// place of samples.
  ShardedOp by_dims() {
    const auto& layout = slices(sharded_.front());
    for (const auto value : sharded_) {
      if (slices(value).at_dim(0) != layout.at_dim(0)) return ShardedOp::whole();
    }
    for (const auto value : sharded_) types_[value.index()] = BatchType::batched(slices(value).dim);
    const auto typed = algebra::type_over_samples(op_);
    for (const auto value : sharded_) types_[value.index()] = BatchType::replicated();
    if (writes_whole()) return ShardedOp::whole();
    if (typed.verdict != algebra::Verdict::kTyped || typed.handling.scale_output || typed.batch_norm || typed.count) {
      return ShardedOp::whole();
    }
    out_.in_slices = true;
    for (const auto& type : typed.outputs) {
      if (type.is(BatchKind::kPartialSum)) {
        out_.results.push_back(TensorLayout::partial());
      } else if (type.is_batched() && type.outer == 1 && type.inner == 1) {
        out_.results.push_back(TensorLayout::sharded(layout.at_dim(type.dim)));
      } else {
        return ShardedOp::whole();
      }
    }
    return out_;
  }

  /// Both addends in the same slices of dims that are not normalised, with whole weights.
  ShardedOp norm_of_sum() {
    const auto input = op_.tensor("input"), residual = op_.tensor("residual");
    const auto is_addend = [&](ValueId operand) { return operand == input || operand == residual; };
    const auto normalised = op_.integers("normalized_shape");
    if (!normalised || !std::ranges::all_of(sharded_, is_addend)) return ShardedOp::whole();
    const auto units = slices(sharded_.front());
    const bool is_apart = units.dim < rank(input) - static_cast<std::int64_t>(normalised->size());
    const bool fits = is_apart && require(input, units.dim, units) && require(residual, units.dim, units);
    return fits ? of_one(units) : ShardedOp::whole();
  }

  ShardedOp contraction() {
    const bool adds = algebra::has_addend(op_);
    const auto product = algebra::contraction_of(op_);
    const bool adds_otherwise = adds && (op_.base_name() != "addmm" || op_.written_argument() >= 0);
    if (!product || adds_otherwise) return ShardedOp::whole();
    const auto addend = adds ? op_.first_tensor() : ValueId::none();
    std::optional<int> label;
    UnitSlices units;
    for (std::size_t k = 0; k < product->operands.size(); ++k) {
      if (!is_sharded(product->operands[k])) continue;
      units = slices(product->operands[k]);
      label = product->labels[k].at(static_cast<std::size_t>(units.dim));
    }
    if (!label) return ShardedOp::whole();
    for (std::size_t k = 0; k < product->operands.size(); ++k) {
      const auto& labels = product->labels[k];
      const auto at = std::ranges::find(labels, *label);
      const auto operand = product->operands[k];
      if (std::ranges::count(labels, *label) > 1) return ShardedOp::whole();
      if (is_sharded(operand) && at == labels.end()) return ShardedOp::whole();
      if (at != labels.end() && !require(operand, at - labels.begin(), units)) return ShardedOp::whole();
    }
    const auto found = std::ranges::find(product->result, *label);
    if (found == product->result.end()) return adds ? sum_without(addend) : sum();
    const auto dim = found - product->result.begin();
    const auto to = static_cast<std::int64_t>(product->result.size());
    const bool fits = !adds || require(addend, dim - (to - rank(addend)), units);
    return fits ? of_one(units.at_dim(dim)) : ShardedOp::whole();
  }
  /// Of a product to which something is added, as it is.
  ShardedOp sum_without(ValueId addend) {
    const bool as_it_is = op_.number("alpha", 1) == 1 && op_.number("beta", 1) == 1 && op_.node().integers.empty();
    if (is_sharded(addend) || !as_it_is) return ShardedOp::whole();
    out_.kernel = ShardedOp::Kernel::kWithoutBias;
    return sum();
  }

  ShardedOp linear() {
    const auto x = op_.tensor("input"), weight = op_.tensor("weight"), bias = op_.tensor("bias");
    const auto last = rank(x) - 1;
    if (is_sharded(weight) && slices(weight).dim == 0) {
      if (is_sharded(x) || (bias.valid() && !require(bias, 0, slices(weight)))) return ShardedOp::whole();
      return of_one(slices(weight).at_dim(last));
    }
    const bool by_inputs = is_sharded(weight) || (is_sharded(x) && slices(x).dim == last);
    if (!by_inputs) {  // the layer works on the last dim of its input alone
      const bool others_whole = !is_sharded(weight) && !is_sharded(bias);
      return is_sharded(x) && others_whole ? of_one(slices(x)) : ShardedOp::whole();
    }
    const auto& units = is_sharded(weight) ? slices(weight) : slices(x);
    if (is_sharded(bias) || !require(x, last, units) || !require(weight, 1, units)) return ShardedOp::whole();
    if (bias.valid()) out_.kernel = ShardedOp::Kernel::kWithoutBias;
    return sum();
  }

  /// Heads, or what lies in front of them. Where several heads of queries share one of keys (grouped-query attention),
  /// a unit is such a group; one head of keys for all is whole on every shard.
  ShardedOp attention() {
    const auto query = op_.tensor("query"), mask = op_.tensor("attn_mask"), first = sharded_.front();
    const auto from_right = rank(first) - slices(first).dim;
    if (first == mask || from_right < 3) return ShardedOp::whole();
    const auto group = heads_of_key(from_right);
    const auto heads = slices(first).at_dim(rank(query) - from_right).times(first == query ? 1 : group);
    const auto of_keys = heads.over(group);
    if (heads.dim < 0 || !of_keys || !require(query, heads.dim, heads)) return ShardedOp::whole();
    for (const auto* name : {"key", "value"}) {
      const auto operand = op_.tensor(name);
      if (rank(operand) != rank(query) || !require(operand, heads.dim, *of_keys)) return ShardedOp::whole();
    }
    if (mask.valid() && !require(mask, rank(mask) - from_right, heads)) return ShardedOp::whole();
    return is_sharded(query) || out_.needs.count(query) > 0 ? of_one(heads) : ShardedOp::whole();
  }
  /// How many heads of queries share one of keys and values.
  [[nodiscard]] std::int64_t heads_of_key(std::int64_t from_right) const {
    const auto query = op_.tensor("query"), key = op_.tensor("key");
    if (!op_.flag("enable_gqa", false) || from_right != 3 || rank(query) < 3 || rank(key) < 3) return 1;
    const auto dim = [&](ValueId operand) { return sizes(operand)[static_cast<std::size_t>(rank(operand) - 3)]; };
    const auto group = quotient(dim(query), dim(key));
    return group && !group->depends_on_batch() && dim(key) != kOne ? group->fixed : 1;
  }

  ShardedOp embedding() {
    const auto weight = op_.tensor("weight"), indices = op_.tensor("indices");
    if (!is_sharded(weight) || is_sharded(indices)) return ShardedOp::whole();
    if (slices(weight).dim == 1) return of_one(slices(weight).at_dim(rank(indices)));
    const bool counts = op_.flag("scale_grad_by_freq", false) || op_.flag("sparse", false);
    if (counts || !slices(weight).is_plain()) return ShardedOp::whole();
    out_.kernel = ShardedOp::Kernel::kEmbeddingRows;
    return sum();
  }

  ShardedOp class_loss() {
    if (op_.base_name() != "cross_entropy_loss") return ShardedOp::whole();
    const auto logits = op_.tensor("self"), target = op_.tensor("target");
    const std::int64_t classes = rank(logits) == 1 ? 0 : 1;
    const bool of_indices = c10::isIntegralType(graph_.value(target).dtype, /*includeBool=*/false);
    if (sharded_ != std::vector{logits} || slices(logits).dim != classes || !of_indices) return ShardedOp::whole();
    if (!slices(logits).is_plain()) return ShardedOp::whole();
    const auto type = graph_.value(logits).dtype;
    const bool is_wide = type == at::kFloat || type == at::kDouble || graph_.is(op_.id(), kCrossEntropy);
    if (!is_wide) return ShardedOp::whole();  // its loss is of single precision
    out_.in_slices = true;
    out_.kernel = ShardedOp::Kernel::kClassLoss;
    out_.results.assign(op_.results().size(), TensorLayout::whole());
    return out_;
  }

  ShardedOp class_head() {
    const auto projection = op_.tensor("projection"), bias = op_.tensor("projection_bias");
    if (!is_sharded(projection)) return ShardedOp::whole();
    const auto& classes = slices(projection);
    const bool is_plain = classes.dim == 0 && classes.is_plain();
    const bool others_whole =
        std::ranges::all_of(sharded_, [&](ValueId operand) { return operand == projection || operand == bias; });
    if (!is_plain || !others_whole || (bias.valid() && !require(bias, 0, classes))) return ShardedOp::whole();
    out_.in_slices = true;
    out_.kernel = ShardedOp::Kernel::kClassHead;
    out_.results.assign(op_.results().size(), TensorLayout::whole());
    return out_;
  }

  const OpGraph& graph_;
  const std::vector<TensorLayout>& layouts_;
  std::vector<BatchType>& types_;
  AlgebraOptions options_;
  OpContext op_;
  std::vector<ValueId> sharded_;
  ShardedOp out_;
};

}  // namespace

std::int32_t position_of_bias(const OpNode& node) { return traits_of(node.op).family == OpFamily::kLinear ? 2 : 0; }

ShardedOp ShardRules::operator()(const std::vector<TensorLayout>& layouts, OpId id) {
  return Rule(graph_, layouts, types_, id).apply();
}

}  // namespace autopar
