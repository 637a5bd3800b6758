#include "torch/fused/layer_norm.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include "capture/ir/compact.hpp"
#include "capture/ir/value_uses.hpp"
#include "kernels/layer_norm_source.hpp"
#include "ops/names.hpp"
#include "ops/norms.hpp"
#include "ops/registry.hpp"
#include "ops/rules.hpp"
#include "shard/kept.hpp"
#include "torch/fused/bias_gradient.hpp"
#include "torch/fused/fused_ops.hpp"
#include "torch/fused/launch.hpp"
#include "torch/fused/seeded_dropout.hpp"

namespace autopar::fused {

namespace {

using at::Tensor;
using std::optional;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using NormShape = kernels::LayerNormGradientShape;

/// How the kernels cover data [rows, columns]: blocks of `threads`, where each thread has `packs` packs of a row: 1, 2
/// or 4.
struct RowCover {
  std::int64_t rows, columns;
  std::int64_t packs = 0;  ///< 0: a row is too long
  unsigned threads = 0;

  explicit RowCover(const Tensor& data) : RowCover(data.numel() / data.size(-1), data.size(-1), data.element_size()) {}
  RowCover(std::int64_t of_rows, std::int64_t of_columns, std::int64_t bytes) : rows(of_rows), columns(of_columns) {
    constexpr std::int64_t kMostThreads = NormShape::kMostThreads, kWarp = 32;
    const auto in_row = columns * bytes / detail::kPackBytes;
    for (const std::int64_t each : {1, 2, 4}) {
      if (packs > 0 || in_row > each * kMostThreads) continue;
      packs = each;
      threads = static_cast<unsigned>(detail::parts_for(detail::parts_for(in_row, each), kWarp) * kWarp);
    }
  }

  /// Each block writes partial sums, so its threads should process several rows in sequence. If rows fill a large GPU,
  /// each multiprocessor has one block. The block takes as many rows at a time as it has registers for.
  kernels::LaunchShape gradient_shape() const {
    constexpr unsigned kMultiprocessors = 132, kLeastRows = 8;
    const unsigned at_a_time = NormShape::most_of_block(packs) / threads;
    if (rows >= std::int64_t{kMultiprocessors} * at_a_time * kLeastRows)
      return {kMultiprocessors, 1, threads, at_a_time};
    return {static_cast<unsigned>(std::max<std::int64_t>(rows / kLeastRows, 1)), 1, threads, 1};
  }
};

/// "add_layer_norm_bf16_f32_1"
std::string row_kernel(const char* what, const Tensor& data, const Tensor& numbers, const RowCover& cover) {
  return std::string(what) + detail::kernel_type(data.scalar_type()) + "_" +
         detail::kernel_type(numbers.scalar_type()) + "_" + std::to_string(cover.packs);
}

/// Whether the kernels support the arguments. Both addends have the same type and sizes; weight and bias are
/// contiguous, in that type or in single precision.
bool takes_rows(const Tensor& input, const Tensor& residual, at::IntArrayRef shape, const optional<Tensor>& weight,
                const optional<Tensor>& bias) {
  constexpr std::int64_t kMostRows = std::int64_t{1} << 30;  // the backward kernel's row counter goes past the last row
  if (!input.is_cuda() || input.dim() < 2 || input.numel() == 0) return false;
  if (input.numel() / input.size(-1) > kMostRows) return false;
  if (!has_layer_norm_kernels(input.scalar_type(), input.size(-1))) return false;
  const bool of_last_dim = shape.size() == 1 && input.size(-1) == shape[0];
  const auto is_like = [&](const Tensor& other) {
    return other.scalar_type() == input.scalar_type() && other.sizes() == input.sizes() &&
           other.device() == input.device();
  };
  if (!of_last_dim || !is_like(residual) || !weight.has_value() || !bias.has_value()) return false;
  const auto type = weight->scalar_type();
  const bool weighs = (type == at::kFloat || type == input.scalar_type()) && bias->scalar_type() == type &&
                      weight->is_contiguous() && bias->is_contiguous() && weight->device() == input.device() &&
                      bias->device() == input.device();
  return weighs &&
         devices::context_of(input.device().type()).has_kernels(kernels::kLayerNormKernels, input.device().index());
}

/// Whether the kernels support this dropout, or none is needed.
bool takes_draws(double p, const optional<Tensor>& seed) {
  return p == 0 || (p < 1 && seed.has_value() && seed->scalar_type() == at::kLong && seed->numel() > 0);
}

/// The dropout of the first addend, as kernel arguments.
struct Draws {
  const void* seed_at;  ///< the seed's place on the device; null: use `seed`
  unsigned long long seed;
  unsigned kept_below;
  float scale;

  Draws(double p, const PhiloxSeed& of)
      : seed_at(detail::data_of(of.place)), seed(of.number), scale(static_cast<float>(1 / (1 - p))) {
    constexpr double kWords = 4294967296.0;
    kept_below = static_cast<unsigned>(std::clamp(std::round((1 - p) * kWords), 1.0, kWords - 1));
  }
};

/// Whether the autograd node that receives the gradient of `numbers` accepts another type.
bool takes_single(const Tensor& numbers) {
  if (!numbers.requires_grad()) return true;
  const auto edge = torch::autograd::impl::gradient_edge(numbers);
  return edge.is_valid() && !edge.function->input_metadata(edge.input_nr).grad_dtype();
}

struct AddLayerNormFunction : torch::autograd::Function<AddLayerNormFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& input, const Tensor& residual,
                               const Tensor& weight, const Tensor& bias, double eps, double p,
                               const optional<Tensor>& given_seed) {
    const auto seed = given_seed.value_or(Tensor());
    const RowCover cover(input);
    const auto left = detail::dense_in_packs(input), right = detail::dense_in_packs(residual);
    const auto factors = detail::dense_in_packs(weight), addends = detail::dense_in_packs(bias);
    const auto sum = at::empty_like(left), result = at::empty_like(left);
    const auto statistics = at::empty({2, cover.rows}, left.options().dtype(at::kFloat));
    const auto draws = draws_of(p, seed);
    const auto kernel = row_kernel(draws ? "dropout_add_layer_norm_" : "add_layer_norm_", left, weight, cover);
    const auto launch = [&](auto... of_draws) {
      detail::launch(left, kernels::kLayerNormKernels, kernel.c_str(),
                     {static_cast<unsigned>(cover.rows), 1, cover.threads, 1}, detail::data_of(left),
                     detail::data_of(right), detail::data_of(factors), detail::data_of(addends), detail::memory_of(sum),
                     detail::memory_of(result), detail::memory_of(statistics), cover.rows,
                     static_cast<int>(cover.columns), static_cast<float>(eps), of_draws...);
    };
    if (draws)
      launch(draws->seed_at, draws->seed, draws->kept_below, draws->scale);
    else
      launch();
    context->save_for_backward({sum, weight, statistics, seed});
    context->saved_data["p"] = p;
    context->saved_data["in_single"] = takes_single(weight) && takes_single(bias);
    context->set_materialize_grads(false);
    return {sum, result};
  }

  static variable_list backward(AutogradContext* context, variable_list given) {
    autopar::detail::refuse_double_backward("layer norm");
    const auto saved = context->get_saved_variables();
    const auto &sum = saved[0], &weight = saved[1], &statistics = saved[2];
    const auto draws = draws_of(context->saved_data["p"].toDouble(), saved[3]);
    const bool is_normalised = given[1].defined();
    if (!is_normalised && (!draws || !given[0].defined())) return gradients(given[0], given[0], {}, {});
    const RowCover cover(sum);
    const auto of_result = is_normalised ? detail::dense_in_packs(given[1]) : at::zeros_like(sum);
    const auto of_sum = given[0].defined() ? detail::dense_in_packs(given[0]) : Tensor();
    const auto factors = detail::dense_in_packs(weight);
    const auto of_residual = at::empty_like(sum), of_input = draws ? at::empty_like(sum) : of_residual;
    // For casts of parameters: sums are in single precision, as the parameters are.
    const auto type = context->saved_data["in_single"].toBool() ? at::kFloat : weight.scalar_type();
    const auto of_weight = at::empty_like(weight, type), of_bias = at::empty_like(weight, type);
    const auto shape = cover.gradient_shape();
    const auto partial = at::empty({shape.blocks_x, NormShape::kSums, cover.columns}, statistics.options());
    const auto sums_of_input = at::empty({cover.columns}, statistics.options());
    const int columns = static_cast<int>(cover.columns);
    const auto kernel =
        row_kernel(draws ? "dropout_add_layer_norm_gradient_" : "add_layer_norm_gradient_", sum, weight, cover);
    const auto launch = [&](auto... of_draws) {
      detail::launch(sum, kernels::kLayerNormKernels, kernel.c_str(), shape, detail::data_of(of_result),
                     detail::data_of(of_sum), detail::data_of(sum), detail::data_of(factors),
                     detail::data_of(statistics), detail::memory_of(of_residual), detail::memory_of(partial),
                     static_cast<int>(cover.rows), columns, of_draws...);
    };
    if (draws)
      launch(detail::memory_of(of_input), draws->seed_at, draws->seed, draws->kept_below, draws->scale);
    else
      launch();
    const auto adds_up = std::string("add_layer_norm_sums_") + detail::kernel_type(type);
    detail::launch(sum, kernels::kLayerNormKernels, adds_up.c_str(), NormShape::adding_up(cover.columns),
                   detail::data_of(partial), static_cast<int>(shape.blocks_x), detail::memory_of(of_weight),
                   detail::memory_of(of_bias), detail::memory_of(sums_of_input), columns);
    attach_bias_gradient(of_input, sums_of_input);  // for the linear layer that computed the input
    return is_normalised ? gradients(of_input, of_residual, of_weight, of_bias)
                         : gradients(of_input, of_residual, {}, {});
  }

 private:
  static optional<Draws> draws_of(double p, const Tensor& seed) {
    return p > 0 ? optional<Draws>(Draws(p, to_seed(seed))) : std::nullopt;
  }
  static variable_list gradients(const Tensor& of_input, const Tensor& of_residual, const Tensor& of_weight,
                                 const Tensor& of_bias) {
    return {of_input, of_residual, of_weight, of_bias, Tensor(), Tensor(), Tensor()};
  }
};

/// Dropout by libtorch's operators. Without a seed the default generator draws.
Tensor dropped(const Tensor& input, double p, const optional<Tensor>& seed) {
  if (p == 0) return input;
  if (!seed.has_value()) return at::dropout(input, p, /*train=*/true);
  return seeded_dropout(input, p, to_seed(*seed));
}

using AddLayerNormResults = std::tuple<Tensor, Tensor>;

optional<AddLayerNormResults> add_layer_norm_in_kernels(const Tensor& input, const Tensor& residual,
                                                        at::IntArrayRef shape, const optional<Tensor>& weight,
                                                        const optional<Tensor>& bias, double eps, bool /*cudnn_enable*/,
                                                        double p, const optional<Tensor>& seed) {
  if (!takes_rows(input, residual, shape, weight, bias) || !takes_draws(p, seed)) return std::nullopt;
  const auto made = AddLayerNormFunction::apply(input, residual, *weight, *bias, eps, p, seed);
  return AddLayerNormResults{made[0], made[1]};
}

AddLayerNormResults add_layer_norm_of_libtorch(const Tensor& input, const Tensor& residual, at::IntArrayRef shape,
                                               const optional<Tensor>& weight, const optional<Tensor>& bias, double eps,
                                               bool cudnn_enable, double p, const optional<Tensor>& seed) {
  const auto sum = dropped(input, p, seed) + residual;
  return {sum, at::layer_norm(sum, shape, weight, bias, eps, cudnn_enable)};
}

/// The operator's arguments.
struct AddLayerNormArgument {
  enum : std::int32_t { kInput, kResidual, kShape, kWeight, kBias, kEps, kCudnnEnable, kP, kSeed, kCount };
};

// ---------------------------------------------------------------- pattern

/// Arguments of aten::layer_norm.
enum LayerNormArgument : std::int32_t { kNormInput, kNormShape, kNormWeight, kNormBias, kNormEps, kNormCudnn };

/// Arguments of aten::dropout.
enum DropoutArgument : std::int32_t { kDropoutInput, kDropoutP, kDropoutTrain };

/// A sum, and the norm that is its first reader.
struct NormOfSum {
  OpId sum, norm;
  OpId dropout = OpId::none();  ///< computes one addend, which only the sum reads
};

bool is_sum_of_alike(const OpGraph& graph, OpId op) {
  if (!graph.is(op, ops::kAdd) || graph.overload(op) != "Tensor" || !graph.op(op).integers.empty()) return false;
  const auto left = graph.input(op, 0), right = graph.input(op, 1), made = graph.output(op);
  const auto& factor = graph.op(op).args[2];
  if (!left.valid() || !right.valid() || !factor.isInt() || factor.toInt() != 1) return false;
  const auto is_like_result = [&](ValueId value) {
    return graph.value(value).sizes == graph.value(made).sizes && graph.value(value).dtype == graph.value(made).dtype;
  };
  return is_like_result(left) && is_like_result(right);
}

/// Whether an operator is a layer norm over the last dim, with weight and bias.
bool is_norm_of_rows(const OpGraph& graph, OpId op) {
  if (!graph.is(op, ops::kLayerNorm) || !graph.op(op).integers.empty()) return false;
  const auto& shape = graph.op(op).args[kNormShape];
  return shape.isIntList() && shape.toIntList().size() == 1 && graph.input(op, kNormWeight).valid() &&
         graph.input(op, kNormBias).valid() &&
         graph.value(graph.input(op, kNormInput)).dtype == graph.value(graph.output(op)).dtype;
}

/// Whether the sum may be computed at the place of the norm.
bool sum_may_wait(const OpGraph& graph, const ir::ValueUses& uses, const NormOfSum& found) {
  return !uses.touched_between(graph.output(found.sum), found.sum, found.norm) &&
         !uses.written_between(graph.input(found.sum, 0), found.sum, found.norm) &&
         !uses.written_between(graph.input(found.sum, 1), found.sum, found.norm);
}

/// Whether an operator is a dropout for this sum alone, and may run at the place of the norm.
bool drops_for(const OpGraph& graph, const ir::ValueUses& uses, OpId op, const NormOfSum& found) {
  if (!op.valid() || !graph.is(op, ops::kDropout) || !graph.op(op).is_random) return false;
  const auto &p = graph.op(op).args[kDropoutP], &train = graph.op(op).args[kDropoutTrain];
  const bool drops_some = train.isBool() && train.toBool() && p.isDouble() && p.toDouble() > 0 && p.toDouble() < 1;
  return drops_some && graph.op(op).integers.empty() &&
         graph.op(op).grad_enabled == graph.op(found.norm).grad_enabled &&
         uses.only_use(graph.output(op)) == found.sum && graph.input(found.sum, 0) != graph.input(found.sum, 1) &&
         !uses.written_between(graph.input(op, kDropoutInput), op, found.norm);
}

/// The dropout that computes the first addend, or else the second; none if neither comes from a dropout.
OpId dropout_of(const OpGraph& graph, const ir::ValueUses& uses, const NormOfSum& found) {
  for (const int addend : {0, 1}) {
    const auto definer = graph.value(graph.input(found.sum, addend)).definer;
    if (drops_for(graph, uses, definer, found)) return definer;
  }
  return OpId::none();
}

std::vector<NormOfSum> norms_of_sums(const OpGraph& graph) {
  const ir::ValueUses uses(graph);
  std::vector<bool> taken(graph.ops.size(), false);
  std::vector<NormOfSum> all;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const auto norm = OpId::of(i);
    if (!is_norm_of_rows(graph, norm)) continue;
    const auto sum = graph.value(graph.input(norm, kNormInput)).definer;
    if (!sum.valid() || taken[sum.index()] || !is_sum_of_alike(graph, sum)) continue;
    if (graph.op(sum).grad_enabled != graph.op(norm).grad_enabled || !sum_may_wait(graph, uses, {sum, norm})) continue;
    taken[sum.index()] = true;
    all.push_back({sum, norm, dropout_of(graph, uses, {sum, norm})});
  }
  return all;
}

OpNode joined_norm(const OpGraph& graph, const NormOfSum& found) {
  const auto op = fused_operator(kAddLayerNorm);
  const auto &sum = graph.op(found.sum), &norm = graph.op(found.norm);
  OpNode node{op, std::vector<c10::IValue>(AddLayerNormArgument::kCount)};
  node.args[AddLayerNormArgument::kShape] = norm.args[kNormShape];
  node.args[AddLayerNormArgument::kEps] = norm.args[kNormEps];
  node.args[AddLayerNormArgument::kCudnnEnable] = norm.args[kNormCudnn];
  node.args[AddLayerNormArgument::kP] = found.dropout.valid() ? graph.op(found.dropout).args[kDropoutP] : 0.0;
  const auto take = [&](std::int32_t position, ValueId value) {
    node.inputs.push_back({position, SlotKind::kTensor, {value}});
    node.reads.push_back(graph.value(value).storage);
  };
  const bool drops = found.dropout.valid();
  const int dropped = drops && graph.input(found.sum, 1) == graph.output(found.dropout) ? 1 : 0;
  take(AddLayerNormArgument::kInput,
       drops ? graph.input(found.dropout, kDropoutInput) : graph.input(found.sum, dropped));
  take(AddLayerNormArgument::kResidual, graph.input(found.sum, 1 - dropped));
  take(AddLayerNormArgument::kWeight, graph.input(found.norm, kNormWeight));
  take(AddLayerNormArgument::kBias, graph.input(found.norm, kNormBias));
  ir::sort_storages(node.reads);
  node.outputs = {{0, SlotKind::kTensor, {graph.output(found.sum)}},
                  {1, SlotKind::kTensor, {graph.output(found.norm)}}};
  node.writes = sum.writes;
  node.writes.insert(node.writes.end(), norm.writes.begin(), norm.writes.end());
  ir::sort_storages(node.writes);
  node.grad_enabled = norm.grad_enabled;
  node.is_random = drops;
  node.path = norm.path;
  return node;
}

/// Joins the sum of two tensors of the same sizes and the layer norm over the last dim that is its first reader. These
/// are the residuals of transformers: `y = x + f(x); … norm(y)`. The sum may have other readers after the norm. A
/// dropout that computes one of the addends, for the sum alone, is included. Its RNG key has the number of the
/// operator, as all draws do. Exact without kernels. O(graph).
OpGraph fold_layer_norms(OpGraph graph) {
  const auto found = norms_of_sums(graph);
  if (found.empty()) return graph;
  std::vector<bool> removed(graph.ops.size(), false);
  for (const auto& each : found) {
    auto node = joined_norm(graph, each);
    graph.value(graph.output(each.sum)).definer = each.norm;
    graph.op(each.norm) = std::move(node);
    removed[each.sum.index()] = true;
    if (each.dropout.valid()) removed[each.dropout.index()] = true;
  }
  ir::compact(graph, removed);
  ir::order_values(graph);
  return graph;
}

// ---------------------------------------------------------------- cost

/// Bytes of the dropout mask. The library's kernels save none and draw again; libtorch's save a mask, as dropout does.
Affine mask_of(const OpCall& op) {
  if (op.number("p", 0) == 0) return {};
  const auto result = op.results().front();
  if (!op.on_cuda()) return ops::bytes_of(op.graph(), result);
  const auto& sizes = op.sizes(result);
  const bool draws_again = has_layer_norm_kernels(op.graph().value(result).dtype, ops::last_size(sizes));
  return draws_again ? Affine{} : ops::elements(sizes);
}

/// The first result is the norm's operand.
SavedBytes saved_by_add_layer_norm(const OpCall& op) {
  auto saved = ops::saved_by_layer_norm(op);
  saved.values = {op.results().front()};
  saved.internal += mask_of(op);
  return saved;
}

/// Shards have both addends in the same slices of dims that are not normalised, with whole weights.
ShardedOp shard_norm_of_sum(ShardCall& call) {
  const auto& op = call.op();
  const auto input = op.tensor("input"), residual = op.tensor("residual");
  const auto is_addend = [&](ValueId operand) { return operand == input || operand == residual; };
  const auto normalised = op.integers("normalized_shape");
  if (!normalised || !std::ranges::all_of(call.sharded(), is_addend)) return ShardedOp::whole();
  const auto units = call.slices(call.sharded().front());
  const bool is_apart = units.dim < op.rank(input) - static_cast<std::int64_t>(normalised->size());
  const bool fits = is_apart && call.require(input, units.dim, units) && call.require(residual, units.dim, units);
  return fits ? call.of_one(units) : ShardedOp::whole();
}

OpDef cost_of_add_layer_norm() {
  auto def = ops::definition_of(ops::kLayerNorm);
  def.name = kAddLayerNorm;
  def.traits = def.traits | OpTrait::kDrawsOnDevice;
  def.saved_by = saved_by_add_layer_norm;
  def.sharding = shard_norm_of_sum;
  return def;
}

}  // namespace

bool has_layer_norm_kernels(c10::ScalarType type, std::int64_t columns) {
  if (detail::kernel_type(type) == nullptr || columns == 0) return false;
  const auto bytes = static_cast<std::int64_t>(c10::elementSize(type));
  return columns * bytes % detail::kPackBytes == 0 && RowCover(1, columns, bytes).packs > 0;
}

FusedOp add_layer_norm() {
  return {.name = kAddLayerNorm,
          .schema =
              "add_layer_norm(Tensor input, Tensor residual, int[] normalized_shape, Tensor? weight, Tensor? bias, "
              "float eps, "
              "bool cudnn_enable, float p=0, Tensor? seed=None) -> (Tensor, Tensor)",
          .pattern = fold_layer_norms,
          .cost = cost_of_add_layer_norm,
          .forward = or_reference<add_layer_norm_in_kernels, add_layer_norm_of_libtorch>,
          .reference = boxed<add_layer_norm_of_libtorch>};
}

}  // namespace autopar::fused
