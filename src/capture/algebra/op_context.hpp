#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <autopar/core/units.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "capture/ir/op_table.hpp"

namespace autopar::algebra {

using Sizes = std::vector<SizeExpr>;

/// How a rule answers.
enum class Verdict : std::uint8_t {
  kTyped,     ///< `outputs` and `handling` hold
  kMixes,     ///< no handling makes slices exact
  kNeedsSum,  ///< exact once the partial sums among its operands are complete
};

struct RuleResult {
  Verdict verdict = Verdict::kMixes;
  std::string reason;              ///< kMixes, kNeedsSum
  std::vector<BatchType> outputs;  ///< one per tensor result, lists flattened
  OpHandling handling;
  std::optional<LossCount> count;  ///< divide by this global count
  std::optional<BatchNormPlan> batch_norm;

  [[nodiscard]] static RuleResult mixes(std::string why) {
    RuleResult result;
    result.reason = std::move(why);
    return result;
  }
  [[nodiscard]] static RuleResult needs_sum(std::string why) {
    RuleResult result = mixes(std::move(why));
    result.verdict = Verdict::kNeedsSum;
    return result;
  }
};

/// One op with the types of its operands; arguments by name, since positions differ between overloads.
class OpContext {
 public:
  OpContext(const OpGraph& graph, const std::vector<BatchType>& types, const AlgebraOptions& options, OpId id);

  [[nodiscard]] const OpGraph& graph() const { return graph_; }
  [[nodiscard]] const AlgebraOptions& options() const { return options_; }
  [[nodiscard]] bool on_cuda() const { return options_.device == c10::DeviceType::CUDA; }
  [[nodiscard]] OpId id() const { return id_; }
  [[nodiscard]] const OpNode& node() const { return node_; }
  [[nodiscard]] const OpTraits& traits() const { return traits_; }
  /// "add" for aten::add_; the whole name for others.
  [[nodiscard]] std::string_view base_name() const { return base_name_; }
  [[nodiscard]] const std::string& overload() const { return node_.op.schema().overload_name(); }

  /// Schema position of an argument, -1 if there is none of that name.
  [[nodiscard]] std::int32_t position(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const { return position(name) >= 0; }

  /// Tensors of an argument (of all arguments), undefined ones left out.
  [[nodiscard]] std::vector<ValueId> tensors(std::int32_t position) const;
  [[nodiscard]] std::vector<ValueId> tensors() const;
  /// First tensor of an argument, none if there is none.
  [[nodiscard]] ValueId tensor(std::string_view name) const;
  [[nodiscard]] ValueId first_tensor() const;

  [[nodiscard]] const BatchType& type(ValueId value) const { return types_[value.index()]; }
  [[nodiscard]] const Sizes& sizes(ValueId value) const { return graph_.value(value).sizes; }
  [[nodiscard]] std::int64_t rank(ValueId value) const { return static_cast<std::int64_t>(sizes(value).size()); }
  [[nodiscard]] const std::vector<ValueId>& results() const { return results_; }
  [[nodiscard]] const Sizes& result_sizes(std::size_t k = 0) const { return sizes(results_.at(k)); }
  [[nodiscard]] bool is_floating(ValueId value) const;

  [[nodiscard]] bool is_none(std::string_view name) const;
  [[nodiscard]] std::int64_t integer(std::string_view name, std::int64_t absent) const;
  [[nodiscard]] bool flag(std::string_view name, bool absent) const;
  [[nodiscard]] double number(std::string_view name, double absent) const;
  /// Elements of an int[] or int argument; nullopt for None or no such argument.
  [[nodiscard]] std::optional<std::vector<std::int64_t>> integers(std::string_view name) const;
  /// Expression of an integer argument (element), constant or growing with the batch.
  [[nodiscard]] std::optional<SizeExpr> expression(std::string_view name, std::int32_t element = -1) const;
  /// Whether an integer that grows with the batch is used as size or index.
  [[nodiscard]] bool has_batch_sizes() const;

  /// Position of the argument that is written in place, -1 if none is.
  [[nodiscard]] std::int32_t written_argument() const { return written_; }

 private:
  const OpGraph& graph_;
  const std::vector<BatchType>& types_;
  const AlgebraOptions& options_;
  OpId id_;
  const OpNode& node_;
  const OpTraits& traits_;
  std::string_view base_name_;
  std::int32_t written_ = -1;
  std::vector<ValueId> results_;
};

[[nodiscard]] constexpr std::int64_t wrap_dim(std::int64_t dim, std::int64_t rank) {
  return dim < 0 ? dim + rank : dim;
}

/// Elements of a value at a batch size.
[[nodiscard]] double elements_at(const Sizes& sizes, std::int64_t batch);
/// The function of the batch that has these values at one and two samples, or what comes next to it from above.
[[nodiscard]] Affine line_through(double at_one, double at_two);
/// Elements of a value as a function of the batch; a product of two batch dims is linearised at one and two samples.
[[nodiscard]] Affine elements(const Sizes& sizes);
/// One a dim: dims with equal labels run together, and those whose label the result lacks are summed.
using Labels = std::vector<int>;

/// A product of tensors, summed over some of its dims.
struct Contraction {
  std::vector<ValueId> operands;
  std::vector<Labels> labels;  ///< like operands
  Labels result;
};

/// That of an op of the family kContraction, without what it adds to it; nothing if an equation is not understood.
[[nodiscard]] std::optional<Contraction> contraction_of(const OpContext& op);
/// Whether such an op adds its first operand to the product: addmm and its relatives.
[[nodiscard]] bool has_addend(const OpContext& op);
/// Distinct dims of an einsum, as one product of sizes, times two.
[[nodiscard]] std::optional<Affine> einsum_volume(const OpContext& op);

/// Whether a value of these sizes has an element, however many samples there are.
[[nodiscard]] bool has_elements(const Sizes& sizes);
/// The dims of a value that grow with the batch.
[[nodiscard]] std::vector<std::int64_t> batch_dims(const Sizes& sizes);

/// Type that fits a value whose content does not depend on which sample is which (constants, draws): replicated without
/// a batch dim, sample-major batched with one; kWhole otherwise.
[[nodiscard]] BatchType type_by_sizes(const Sizes& sizes);

/// Same type for all results, no handling.
[[nodiscard]] RuleResult typed(const OpContext& op, BatchType type);

/// Broadcasts operands (aligned at the last dim) to `rank` dims: the type they share there. Replicated operands fit
/// any.
/// @return nullopt if two operands have samples in different dims or layouts
[[nodiscard]] std::optional<BatchType> broadcast(const OpContext& op, const std::vector<ValueId>& operands,
                                                 std::int64_t rank);

/// Typing rule of an op with at least one operand that has samples, or with a result that has; no partial sums.
[[nodiscard]] RuleResult type_over_samples(const OpContext& op);
/// Typing rule of an op with partial sums among its operands.
[[nodiscard]] RuleResult type_over_sums(const OpContext& op);

[[nodiscard]] RuleResult type_shape_op(const OpContext& op);        ///< views, copies, factories, cat
[[nodiscard]] RuleResult type_index_op(const OpContext& op);        ///< embedding, index, gather, scatter
[[nodiscard]] RuleResult type_contraction_op(const OpContext& op);  ///< matmul, einsum, linear
[[nodiscard]] RuleResult type_loss_op(const OpContext& op);
[[nodiscard]] RuleResult type_layer_op(const OpContext& op);   ///< norms, pools, recurrent, attention, dropout
[[nodiscard]] RuleResult type_matrix_op(const OpContext& op);  ///< factorisations, solvers
[[nodiscard]] RuleResult type_reduction_op(const OpContext& op);

}  // namespace autopar::algebra
