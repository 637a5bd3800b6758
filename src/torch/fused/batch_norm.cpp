#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "capture/ir/compact.hpp"
#include "capture/ir/value_uses.hpp"
#include "kernels/batch_norm_source.hpp"
#include "ops/names.hpp"
#include "ops/norms.hpp"
#include "ops/registry.hpp"
#include "shard/kept.hpp"
#include "torch/fused/fused_ops.hpp"
#include "torch/fused/launch.hpp"

namespace autopar::fused {

namespace {

using at::Tensor;
using std::optional;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Arguments of a batch norm that are not tensors.
struct BatchNormNumbers {
  double momentum, eps;
  bool relu;
};

// ---------------------------------------------------------------- launches

/// The size of data [rows, channels].
struct Extent {
  std::int64_t rows, channels;
  std::int64_t packs;  ///< of channels, 16 bytes each
};

Extent extent_of(const Tensor& data) {
  const auto channels = data.size(1);
  return {data.numel() / channels, channels, channels * data.element_size() / detail::kPackBytes};
}

/// Launch shape whose blocks together cover all rows. @param most  the most blocks
kernels::LaunchShape over_rows(const Extent& of, std::int64_t most) {
  constexpr std::int64_t kMostThreadsX = 64, kLeastRowsOfThread = 4;
  const auto threads_x =
      static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::min(of.packs, kMostThreadsX))));
  const auto threads_y = kernels::BatchNormTables::kThreads / threads_x;
  const auto blocks_x = (of.packs + threads_x - 1) / threads_x;
  const auto blocks_y = std::clamp<std::int64_t>(of.rows / (threads_y * kLeastRowsOfThread), 1,
                                                 std::max<std::int64_t>(1, most / blocks_x));
  return {static_cast<unsigned>(blocks_x), static_cast<unsigned>(blocks_y), static_cast<unsigned>(threads_x),
          static_cast<unsigned>(threads_y)};
}

/// Four blocks per multiprocessor of a large GPU, all resident at once, because each block writes partial sums.
/// Gradient kernels use more registers; three of their blocks are resident.
constexpr std::int64_t kSummingBlocks = 528, kGradientSummingBlocks = 396;
constexpr std::int64_t kMappingBlocks = 2112;

/// "batch_norm_sums_f32": the name of the kernel for the type of the data.
std::string kernel_for(const Tensor& data, const std::string& what) {
  return "batch_norm_" + what + detail::kernel_type(data.scalar_type());
}

template <class... Arguments>
void launch(const Tensor& on, const std::string& kernel, const kernels::LaunchShape& shape, Arguments... arguments) {
  detail::launch(on, kernels::kBatchNormKernels, kernel.c_str(), shape, arguments...);
}

/// Whether the kernels support the data: channels contiguous, and the other tensors in single precision.
bool takes(const Tensor& input, std::initializer_list<Tensor> numbers) {
  if (!input.is_cuda() || detail::kernel_type(input.scalar_type()) == nullptr || input.dim() < 2 || input.numel() == 0)
    return false;
  return input.stride(1) == 1 && input.is_non_overlapping_and_dense() && input.numel() > input.size(1) &&
         input.size(1) * input.element_size() % detail::kPackBytes == 0 && detail::is_aligned(input) &&
         std::ranges::all_of(numbers, [&](const Tensor& each) { return detail::is_single_beside(each, input); }) &&
         devices::context_of(input.device().type()).has_kernels(kernels::kBatchNormKernels, input.device().index());
}

/// The same numbers in the layout of `input`.
Tensor laid_out_as(const Tensor& input, Tensor tensor) {
  if (!tensor.defined() || (tensor.strides() == input.strides() && detail::is_aligned(tensor))) return tensor;
  return at::empty_like(input).copy_(tensor);
}

struct Normalised {
  Tensor result, statistics, affine;  ///< the last two [2, channels] and [3, channels], see kBatchNormKernels
};

Normalised normalise(const Tensor& input, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                     const Tensor& running_var, const Tensor& given_residual, const BatchNormNumbers& numbers) {
  using detail::data_of, detail::memory_of;
  const auto of = extent_of(input);
  const auto summing = over_rows(of, kSummingBlocks), mapping = over_rows(of, kMappingBlocks);
  const auto single = input.options().dtype(at::kFloat).memory_format(std::nullopt);
  const auto residual = laid_out_as(input, given_residual);
  const auto partial = detail::partial_sums(input, summing.blocks_y, of.channels);
  Normalised made{at::empty_like(input), at::empty({2, of.channels}, single), at::empty({3, of.channels}, single)};
  const int channels = static_cast<int>(of.channels), blocks = static_cast<int>(summing.blocks_y);
  launch(input, kernel_for(input, "sums_"), summing, data_of(input), memory_of(partial), of.rows, channels);
  launch(input, kernel_for(input, "statistics_"), detail::over_columns(of.channels), data_of(partial), blocks,
         data_of(input), data_of(weight), data_of(bias), memory_of(running_mean), memory_of(running_var),
         memory_of(made.statistics), memory_of(made.affine), of.rows, channels, numbers.momentum, numbers.eps);
  launch(input, kernel_for(input, "apply_"), mapping, data_of(input), data_of(residual), data_of(made.affine),
         memory_of(made.result), of.rows, channels, static_cast<int>(numbers.relu));
  return made;
}

// ---------------------------------------------------------------- gradients

/// Saved tensors of a backward.
struct Saved {
  Tensor input, statistics, affine;
  Tensor result;  ///< undefined unless the backward needs the sign of ReLU's operand
};

struct Gradients {
  Tensor input, weight, bias, residual;
};

/// Memory for the gradient of ReLU's operand: an incoming gradient's memory if nobody else has it.
Tensor memory_for_passed(const Tensor& first, const Tensor& second) {
  const auto is_free = [](const Tensor& gradient) {
    return gradient.defined() && gradient.use_count() == 1 && gradient.storage().use_count() == 1;
  };
  return is_free(first) ? first : is_free(second) ? second : at::empty_like(first);
}

/// @param given  gradients of the result from one or two readers, consumed; the second may be undefined
Gradients gradients(const Saved& saved, variable_list& given, bool relu, bool of_input) {
  using detail::data_of, detail::memory_of;
  const auto of = extent_of(saved.input);
  const auto summing = over_rows(of, kGradientSummingBlocks), mapping = over_rows(of, kMappingBlocks);
  const auto& single = saved.statistics.options();
  const auto first = laid_out_as(saved.input, std::move(given[0])),
             second = laid_out_as(saved.input, std::move(given[1]));
  const auto partial = detail::partial_sums(saved.input, summing.blocks_y, of.channels);
  const auto factors = at::empty({3, of.channels}, single);
  // The gradient of ReLU's operand if the first pass writes it; otherwise the gradient of the result, from which both
  // passes compute it.
  const bool writes_passed = second.defined() || saved.result.defined();
  const auto passed = writes_passed ? memory_for_passed(first, second) : first;
  if (writes_passed)
    passed.unsafeGetTensorImpl()->bump_version();  // a bias gradient attached to the old contents is
                                                   // no longer valid
  Gradients made{of_input ? at::empty_like(saved.input) : Tensor(), at::empty({of.channels}, single),
                 at::empty({of.channels}, single), passed};
  const int channels = static_cast<int>(of.channels), blocks = static_cast<int>(summing.blocks_y);
  const std::string mask = !relu ? "" : saved.result.defined() ? "relu_result_" : "relu_";
  launch(first, kernel_for(first, "gradient_sums_" + mask + (second.defined() ? "two_" : "")), summing, data_of(first),
         data_of(second), data_of(saved.input), data_of(saved.result), data_of(saved.affine), memory_of(partial),
         memory_of(writes_passed ? passed : Tensor()), of.rows, channels);
  launch(first, "batch_norm_coefficients", detail::over_columns(of.channels), data_of(partial), blocks,
         data_of(saved.statistics), data_of(saved.affine), memory_of(made.weight), memory_of(made.bias),
         memory_of(factors), of.rows, channels, static_cast<int>(first.scalar_type() == at::kFloat));
  if (of_input) {
    launch(first, kernel_for(first, relu && !writes_passed ? "gradient_relu_" : "gradient_"), mapping, data_of(passed),
           data_of(saved.input), data_of(saved.affine), data_of(factors), memory_of(made.input), of.rows, channels);
  }
  return made;
}

struct BatchNormFunction : torch::autograd::Function<BatchNormFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& input, const optional<Tensor>& weight,
                               const optional<Tensor>& bias, const optional<Tensor>& running_mean,
                               const optional<Tensor>& running_var, const optional<Tensor>& residual,
                               const BatchNormNumbers& numbers) {
    const auto factor = weight.value_or(Tensor()), addend = bias.value_or(Tensor()),
               added = residual.value_or(Tensor());
    auto made = normalise(input, factor, addend, running_mean.value_or(Tensor()), running_var.value_or(Tensor()), added,
                          numbers);
    const bool reads_result = numbers.relu && added.defined();
    context->save_for_backward({input, made.statistics, made.affine, reads_result ? made.result : Tensor()});
    context->saved_data["relu"] = numbers.relu;
    context->saved_data["of_input"] = input.requires_grad();
    context->saved_data["of_weight"] = factor.defined() && factor.requires_grad();
    context->saved_data["of_bias"] = addend.defined() && addend.requires_grad();
    context->saved_data["of_residual"] = added.defined() && added.requires_grad();
    context->set_materialize_grads(false);
    return {made.result, detail::same_memory(made.result)};
  }

  static variable_list backward(AutogradContext* context, variable_list& given) {
    autopar::detail::refuse_double_backward("batch norm");
    if (!given[0].defined()) std::swap(given[0], given[1]);
    if (!given[0].defined()) return variable_list(7);
    const auto tensors = context->get_saved_variables();
    const Saved saved{tensors[0], tensors[1], tensors[2], tensors[3]};
    const auto flag = [&](const char* name) { return context->saved_data.at(name).toBool(); };
    auto made = gradients(saved, given, flag("relu"), flag("of_input"));
    const auto wanted = [&](const char* name, Tensor& gradient) { return flag(name) ? gradient : Tensor(); };
    return {wanted("of_input", made.input),
            wanted("of_weight", made.weight),
            wanted("of_bias", made.bias),
            Tensor(),
            Tensor(),
            wanted("of_residual", made.residual),
            Tensor()};
  }
};

// ---------------------------------------------------------------- the operator

using BatchNormResults = std::tuple<Tensor, Tensor>;

optional<BatchNormResults> batch_norm_in_kernels(const Tensor& input, const optional<Tensor>& weight,
                                                 const optional<Tensor>& bias, const optional<Tensor>& running_mean,
                                                 const optional<Tensor>& running_var, bool training, double momentum,
                                                 double eps, bool /*cudnn_enabled*/, const optional<Tensor>& residual,
                                                 bool relu) {
  const auto or_none = [](const optional<Tensor>& tensor) { return tensor.value_or(Tensor()); };
  const bool fits =
      !residual.has_value() || (residual->scalar_type() == input.scalar_type() && residual->sizes() == input.sizes());
  if (!training || !fits ||
      !takes(input, {or_none(weight), or_none(bias), or_none(running_mean), or_none(running_var)}))
    return std::nullopt;
  const auto made = BatchNormFunction::apply(input, weight, bias, running_mean, running_var, residual,
                                             BatchNormNumbers{momentum, eps, relu});
  return BatchNormResults{made[0], made[1]};
}

BatchNormResults batch_norm_of_libtorch(const Tensor& input, const optional<Tensor>& weight,
                                        const optional<Tensor>& bias, const optional<Tensor>& running_mean,
                                        const optional<Tensor>& running_var, bool training, double momentum, double eps,
                                        bool cudnn_enabled, const optional<Tensor>& residual, bool relu) {
  auto result = at::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled);
  if (residual.has_value()) result.add_(*residual);
  if (relu) result.relu_();
  return detail::twice(result);
}

/// The operator's arguments; the first are the arguments of aten::batch_norm.
struct BatchNormArgument {
  enum : std::int32_t {
    kInput,
    kWeight,
    kBias,
    kRunningMean,
    kRunningVar,
    kTraining,
    kMomentum,
    kEps,
    kCudnnEnabled,
    kResidual,
    kRelu,
    kCount
  };
};

// ---------------------------------------------------------------- pattern

struct Norm {
  OpId norm, addition, relu;  ///< the last two may be none
  ValueId residual;           ///< none without an addition

  [[nodiscard]] OpId last() const { return relu.valid() ? relu : addition.valid() ? addition : norm; }
};

bool trains(const OpGraph& graph, OpId op) {
  return graph.is(op, ops::kBatchNorm) && graph.op(op).args[BatchNormArgument::kTraining].toBool() &&
         graph.op(op).integers.empty();
}

/// The op that is the value's only reader and may be joined with its producer; none if there is no such op.
OpId next(const OpGraph& graph, const ir::ValueUses& uses, OpId maker) {
  const auto reader = uses.only_use(graph.output(maker));
  const bool joins = reader.valid() && graph.op(reader).grad_enabled == graph.op(maker).grad_enabled &&
                     graph.op(reader).outputs.size() == 1;
  return joins ? reader : OpId::none();
}

/// The tensor of the same sizes that the op adds to `value`; none if the op does something else or overwrites that
/// tensor.
ValueId added_to(const OpGraph& graph, OpId op, ValueId value) {
  const bool in_place = graph.is(op, ops::kAddInPlace);
  if ((!in_place && !graph.is(op, ops::kAdd)) || graph.overload(op) != "Tensor" || !graph.op(op).integers.empty())
    return ValueId::none();
  const auto& factor = graph.op(op).args[2];
  const auto left = graph.input(op, 0), right = graph.input(op, 1);
  if (!factor.isInt() || factor.toInt() != 1 || left == right || (in_place && left != value)) return ValueId::none();
  const auto other = left == value ? right : left;
  const auto &info = graph.value(value), &of_other = graph.value(other);
  return info.sizes == of_other.sizes && info.dtype == of_other.dtype ? other : ValueId::none();
}

/// Whether the norm may run at the place of the last op.
bool may_wait(const OpGraph& graph, const ir::ValueUses& uses, const Norm& found) {
  for (const std::int32_t operand : {BatchNormArgument::kInput, BatchNormArgument::kWeight, BatchNormArgument::kBias}) {
    const auto value = graph.input(found.norm, operand);
    if (value.valid() && uses.written_between(value, found.norm, found.last())) return false;
  }
  if (found.residual.valid() && uses.written_between(found.residual, found.addition, found.last())) return false;
  for (const std::int32_t operand : {BatchNormArgument::kRunningMean, BatchNormArgument::kRunningVar}) {
    const auto value = graph.input(found.norm, operand);
    if (value.valid() && uses.touched_between(value, found.norm, found.last())) return false;
  }
  return true;
}

Norm with_addition(const OpGraph& graph, const ir::ValueUses& uses, OpId norm) {
  Norm found{norm, OpId::none(), OpId::none(), ValueId::none()};
  if (const auto reader = next(graph, uses, norm); reader.valid()) {
    found.residual = added_to(graph, reader, graph.output(norm));
    if (found.residual.valid()) found.addition = reader;
  }
  return found;
}

/// The norm with the following operators that can be joined with it.
Norm norm_of(const OpGraph& graph, const ir::ValueUses& uses, OpId norm, const std::vector<bool>& taken) {
  auto found = with_addition(graph, uses, norm);
  if (found.addition.valid() && (taken[found.addition.index()] || !may_wait(graph, uses, found)))
    found = {norm, OpId::none(), OpId::none(), ValueId::none()};
  const auto reader = next(graph, uses, found.last());
  if (!reader.valid() || (!graph.is(reader, ops::kRelu) && !graph.is(reader, ops::kReluInPlace))) return found;
  auto longer = found;
  longer.relu = reader;
  return may_wait(graph, uses, longer) ? longer : found;
}

OpNode joined_node(const OpGraph& graph, const Norm& found) {
  const auto op = fused_operator(kBatchNormRelu);
  const auto &norm = graph.op(found.norm), &last = graph.op(found.last());
  OpNode node{op, norm.args};
  node.args.resize(BatchNormArgument::kCount);
  node.args[BatchNormArgument::kRelu] = found.relu.valid();
  node.inputs = norm.inputs;
  node.reads = norm.reads;
  if (found.residual.valid()) {
    node.inputs.push_back({BatchNormArgument::kResidual, SlotKind::kTensor, {found.residual}});
    node.reads.push_back(graph.value(found.residual).storage);
  }
  ir::sort_storages(node.reads);
  node.outputs = last.outputs;
  node.writes = norm.writes;
  const auto made = graph.value(graph.output(found.norm)).storage,
             result = graph.value(graph.output(found.last())).storage;
  std::ranges::replace(node.writes, made, result);
  ir::sort_storages(node.writes);
  node.grad_enabled = norm.grad_enabled;
  node.path = norm.path;
  return node;
}

/// Joins a batch norm in training mode, the addition of a tensor of the same sizes, and ReLU: `relu_(norm(x) +=
/// shortcut)`. The addition, ReLU or both may be missing; values between them must have no other reader. Kernels do not
/// round the norm's result before the addition; libtorch's operators give the same bits. O(graph).
OpGraph fold_batch_norms(OpGraph graph) {
  std::vector<Norm> norms;
  std::vector<bool> removed(graph.ops.size(), false);
  {
    const ir::ValueUses uses(graph);
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      if (!trains(graph, OpId::of(i))) continue;
      norms.push_back(norm_of(graph, uses, OpId::of(i), removed));
      for (const auto op : {norms.back().norm, norms.back().addition, norms.back().relu}) {
        if (op.valid()) removed[op.index()] = true;
      }
    }
  }
  if (norms.empty()) return graph;
  for (const auto& found : norms) {
    auto node = joined_node(graph, found);
    graph.value(graph.output(found.last())).previous = ValueId::none();
    graph.op(found.last()) = std::move(node);
    removed[found.last().index()] = false;
  }
  ir::compact(graph, removed);
  ir::order_values(graph);
  return graph;
}

// ---------------------------------------------------------------- cost

/// ReLU's backward needs only the sign of the result. Without a residual, kernels recompute it from the operand.
SavedBytes saved_by_batch_norm_relu(const OpCall& op) {
  auto saved = ops::saved_by_batch_norm(op);
  const bool makes_again = !op.tensor("residual").valid() && detail::takes_images_in_packs(op);
  if (op.flag("relu", false) && !makes_again) saved.values.push_back(op.results().front());
  return saved;
}

/// On CPUs the operand's second gradient overlaps the result, from which ReLU's gradient is computed before.
OpWorkspace workspace_of_batch_norm_relu(const OpCall& op) {
  return op.flag("relu", false) ? OpWorkspace{} : ops::workspace_of_batch_norm(op);
}

OpDef cost_of_batch_norm() {
  auto def = ops::definition_of(ops::kBatchNorm);
  def.name = kBatchNormRelu;
  def.traits = def.traits | OpTrait::kDuplicatedOutputs;
  def.saved_by = saved_by_batch_norm_relu;
  def.workspace = workspace_of_batch_norm_relu;
  return def;
}

}  // namespace

FusedOp batch_norm_relu() {
  return {
      .name = kBatchNormRelu,
      .schema =
          "batch_norm_relu(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool "
          "training, float momentum, float eps, bool cudnn_enabled, Tensor? residual, bool relu) -> (Tensor, Tensor)",
      .pattern = fold_batch_norms,
      .cost = cost_of_batch_norm,
      .forward = or_reference<batch_norm_in_kernels, batch_norm_of_libtorch>,
      .reference = boxed<batch_norm_of_libtorch>};
}

}  // namespace autopar::fused
