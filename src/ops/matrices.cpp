#include <algorithm>

#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

/// Whether the right-hand sides are vectors: one per matrix, or one for all (libtorch's linalg_solve_is_vector_rhs).
bool is_vector(const OpCall& op, ValueId matrices, ValueId sides) {
  const auto& of_matrices = op.sizes(matrices);
  const auto& of_sides = op.sizes(sides);
  return of_sides.size() == 1 || (of_sides.size() + 1 == of_matrices.size() &&
                                  std::equal(of_sides.begin(), of_sides.end(), of_matrices.begin()));
}

/// Number of last dims of an operand that are no batch dims: 2 for a matrix, 1 for a vector, 0 for a tolerance.
std::int64_t own_dims(const OpCall& op, ValueId value, std::string_view argument) {
  const auto name = op.base_name();
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), argument) != names.end();
  };
  if (is_one_of({"pivots", "LU_pivots", "tau"}) || (name == "ormqr" && argument == "input2")) return 1;
  if (is_one_of({"atol", "rtol", "rcond"})) return 0;
  const bool may_be_vector =
      (name == "_linalg_solve_ex" && argument == "B") || (name == "linalg_lstsq" && argument == "b");
  return may_be_vector && is_vector(op, op.first_tensor(), value) ? 1 : 2;
}

/// Samples are the columns of the right-hand sides, or the rows if `left` is false. Each column is solved separately,
/// with matrices that all samples share.
std::optional<BatchTyping> type_columns(const OpCall& op) {
  constexpr std::string_view kSolvers[] = {"_linalg_solve_ex", "linalg_solve_triangular", "triangular_solve",
                                           "cholesky_solve",   "linalg_lu_solve",         "linalg_ldl_solve",
                                           "linalg_lstsq"};
  if (std::find(std::begin(kSolvers), std::end(kSolvers), op.base_name()) == std::end(kSolvers)) return std::nullopt;
  const auto sides = op.tensor(op.has("B") ? "B" : op.has("b") ? "b" : "self");
  const auto& type = op.type(sides);
  if (!type.is_batched() || type.dim != op.rank(sides) - (op.flag("left", true) ? 1 : 2)) return std::nullopt;
  for (const auto operand : op.tensors()) {
    if (operand == sides) continue;
    if (op.type(operand).has_samples() || is_vector(op, operand, sides)) return std::nullopt;
  }
  BatchTyping result = typed(op, BatchType::replicated());
  result.outputs.front() = type.at_dim(type.dim + static_cast<std::int64_t>(op.result_sizes().size()) - op.rank(sides));
  return result;
}

bool has_no_elements(const Sizes& sizes) { return std::find(sizes.begin(), sizes.end(), SizeExpr{}) != sizes.end(); }

BatchTyping matrices(const OpCall& op) {
  if (auto columns = type_columns(op)) return *columns;
  struct Operand {
    ValueId value;
    std::int64_t batch_rank;
  };
  std::vector<Operand> operands;
  const auto& arguments = op.node().op.schema().arguments();
  for (const auto& slot : op.node().inputs) {
    const auto& argument = arguments[static_cast<std::size_t>(slot.position)];
    if (argument.is_out() || !slot.values.front().valid()) continue;
    const auto value = slot.values.front();
    operands.push_back({value, op.rank(value) - own_dims(op, value, argument.name())});
  }
  std::int64_t batch_rank = 0;
  for (const auto& operand : operands) batch_rank = std::max(batch_rank, operand.batch_rank);
  std::optional<BatchType> shared;
  for (const auto& operand : operands) {
    const auto& type = op.type(operand.value);
    if (!type.has_samples()) continue;
    if (type.dim >= operand.batch_rank) return BatchTyping::mixes("it works along the batch");
    const auto here = type.at_dim(type.dim + batch_rank - operand.batch_rank);
    if (shared && *shared != here) return BatchTyping::mixes("it joins samples with other samples");
    shared = here;
  }
  if (!shared) return BatchTyping::mixes("its result grows with the batch, its operands do not");
  const bool shares_matrix = !op.type(operands.front().value).has_samples();
  BatchTyping result = typed(op, *shared);
  for (std::size_t k = 0; k < result.outputs.size(); ++k) {
    const auto& sizes = op.result_sizes(k);
    const auto dims = batch_dims(sizes);
    if (!dims.empty()) result.outputs[k] = shared->at_dim(dims.front());
    const bool of_the_matrix = has_no_elements(sizes) || (k > 0 && shares_matrix);  // its factors, its rank
    if (dims.empty() && of_the_matrix) result.outputs[k] = BatchType::replicated();
  }
  return result;
}

}  // namespace

/// Factorisations, inverses, solvers: matrices in the last two dims, and vectors and numbers that go with them.
void add_matrices(OpList& list) {
  OpDef def;
  def.over_samples = matrices;
  def.treatment = kPerSample;
  def.summary = "matrices in the last two dims; mixes if one of them is that of samples";
  list.add(def, SavedTensors::kResult,
           {"inverse", "linalg_inv", "linalg_cholesky", "linalg_cholesky_ex", "cholesky", "linalg_inv_ex", "linalg_qr",
            "_linalg_svd", "_linalg_eigh", "linalg_lu_factor_ex", "linalg_lu", "linalg_eig", "_linalg_eigvals",
            "linalg_ldl_factor_ex"});
  list.add(def, SavedTensors::kInputAndResult,
           {"det", "linalg_det", "cholesky_inverse", "cholesky_solve", "linalg_solve_triangular", "triangular_solve",
            "_linalg_solve_ex", "_linalg_det", "_linalg_slogdet", "linalg_pinv", "linalg_lu_solve", "linalg_ldl_solve",
            "linalg_householder_product", "ormqr", "linalg_lstsq"});
  list.add(def, SavedTensors::kInput, {"linalg_matrix_exp"});
  list.add(def, SavedTensors::kNothing, {"lu_unpack", "geqrf"});
}

}  // namespace autopar::ops
