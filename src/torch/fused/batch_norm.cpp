#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "capture/ir/batch_norm_relu.hpp"
#include "kernels/batch_norm_source.hpp"
#include "ops/names.hpp"
#include "ops/norms.hpp"
#include "ops/registry.hpp"
#include "shard/kept.hpp"
#include "torch/fused/fused_ops.hpp"
#include "torch/fused/launch.hpp"

namespace autopar {

namespace {

using at::Tensor;
using std::optional;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Arguments of a batch norm that are no operands.
struct BatchNormNumbers {
  double momentum, eps;
  bool relu;
};

// ---------------------------------------------------------------- launches

/// Of data [rows, channels].
struct Extent {
  std::int64_t rows, channels;
  std::int64_t packs;  ///< of channels, 16 bytes each
};

Extent extent_of(const Tensor& data) {
  const auto channels = data.size(1);
  return {data.numel() / channels, channels, channels * data.element_size() / detail::kPackBytes};
}

/// Blocks that take all rows, each some. @param most  of blocks
LaunchShape over_rows(const Extent& of, std::int64_t most) {
  constexpr std::int64_t kMostThreadsX = 64, kLeastRowsOfThread = 4;
  const auto threads_x =
      static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::min(of.packs, kMostThreadsX))));
  const auto threads_y = BatchNormTables::kThreads / threads_x;
  const auto blocks_x = (of.packs + threads_x - 1) / threads_x;
  const auto blocks_y = std::clamp<std::int64_t>(of.rows / (threads_y * kLeastRowsOfThread), 1,
                                                 std::max<std::int64_t>(1, most / blocks_x));
  return {static_cast<unsigned>(blocks_x), static_cast<unsigned>(blocks_y), static_cast<unsigned>(threads_x),
          static_cast<unsigned>(threads_y)};
}

/// Four a multiprocessor of a large GPU, which then all run at once: partial sums are written by each. Those of
/// gradients keep more numbers and run three at once.
constexpr std::int64_t kSummingBlocks = 528, kGradientSummingBlocks = 396;
constexpr std::int64_t kMappingBlocks = 2112;

/// "batch_norm_sums_f32": the kernel for the type of the data.
std::string kernel_for(const Tensor& data, const std::string& what) {
  return "batch_norm_" + what + detail::kernel_type(data.scalar_type());
}

template <class... Arguments>
void launch(const Tensor& on, const std::string& kernel, const LaunchShape& shape, Arguments... arguments) {
  detail::launch(on, kBatchNormKernels, kernel.c_str(), shape, arguments...);
}

/// Whether the kernels take it: channels next to each other, numbers beside the data in single precision.
bool takes(const Tensor& input, std::initializer_list<Tensor> numbers) {
  if (!input.is_cuda() || detail::kernel_type(input.scalar_type()) == nullptr || input.dim() < 2 || input.numel() == 0)
    return false;
  return input.stride(1) == 1 && input.is_non_overlapping_and_dense() && input.numel() > input.size(1) &&
         input.size(1) * input.element_size() % detail::kPackBytes == 0 && detail::is_aligned(input) &&
         std::ranges::all_of(numbers, [&](const Tensor& each) { return detail::is_single_beside(each, input); }) &&
         context_of(input.device().type()).has_kernels(kBatchNormKernels, input.device().index());
}

/// The same numbers, placed as `input` is.
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

/// What a backward reads.
struct Saved {
  Tensor input, statistics, affine;
  Tensor result;  ///< undefined unless the sign of relu's operand needs it
};

struct Gradients {
  Tensor input, weight, bias, residual;
};

/// Memory for the gradient of relu's operand: that of a gradient which nobody else has, where there is one.
Tensor memory_for_passed(const Tensor& first, const Tensor& second) {
  const auto is_free = [](const Tensor& gradient) {
    return gradient.defined() && gradient.use_count() == 1 && gradient.storage().use_count() == 1;
  };
  return is_free(first) ? first : is_free(second) ? second : at::empty_like(first);
}

/// @param given  gradients of the result from one reader or two, taken; the second may be undefined
Gradients gradients(const Saved& saved, variable_list& given, bool relu, bool of_input) {
  using detail::data_of, detail::memory_of;
  const auto of = extent_of(saved.input);
  const auto summing = over_rows(of, kGradientSummingBlocks), mapping = over_rows(of, kMappingBlocks);
  const auto& single = saved.statistics.options();
  const auto first = laid_out_as(saved.input, std::move(given[0])),
             second = laid_out_as(saved.input, std::move(given[1]));
  const auto partial = detail::partial_sums(saved.input, summing.blocks_y, of.channels);
  const auto factors = at::empty({3, of.channels}, single);
  // The gradient of relu's operand, where the first pass writes it; else that of the result, of which both make it.
  const bool writes_passed = second.defined() || saved.result.defined();
  const auto passed = writes_passed ? memory_for_passed(first, second) : first;
  if (writes_passed) passed.unsafeGetTensorImpl()->bump_version();  // sums of what was there are no longer its own
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
    detail::refuse_double_backward("batch norm");
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

Tensor of_libtorch(const Tensor& input, const optional<Tensor>& weight, const optional<Tensor>& bias,
                   const optional<Tensor>& running_mean, const optional<Tensor>& running_var, bool training,
                   double momentum, double eps, bool cudnn_enabled, const optional<Tensor>& residual, bool relu) {
  auto result = at::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled);
  if (residual.has_value()) result.add_(*residual);
  if (relu) result.relu_();
  return result;
}

/// See ir/batch_norm_relu.hpp.
std::tuple<Tensor, Tensor> batch_norm_relu(const Tensor& input, const optional<Tensor>& weight,
                                           const optional<Tensor>& bias, const optional<Tensor>& running_mean,
                                           const optional<Tensor>& running_var, bool training, double momentum,
                                           double eps, bool cudnn_enabled, const optional<Tensor>& residual,
                                           bool relu) {
  const auto or_none = [](const optional<Tensor>& tensor) { return tensor.value_or(Tensor()); };
  const bool fits =
      !residual.has_value() || (residual->scalar_type() == input.scalar_type() && residual->sizes() == input.sizes());
  if (!training || !fits ||
      !takes(input, {or_none(weight), or_none(bias), or_none(running_mean), or_none(running_var)}))
    return detail::twice(of_libtorch(input, weight, bias, running_mean, running_var, training, momentum, eps,
                                     cudnn_enabled, residual, relu));
  const auto made = BatchNormFunction::apply(input, weight, bias, running_mean, running_var, residual,
                                             BatchNormNumbers{momentum, eps, relu});
  return {made[0], made[1]};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(autopar, library) {
  library.def(
      "batch_norm_relu(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool "
      "training, float momentum, float eps, bool cudnn_enabled, Tensor? residual, bool relu) -> (Tensor, Tensor)",
      batch_norm_relu);
}

namespace detail {

namespace {

/// Of the result only the sign is needed. Without a residual kernels make it once more of the operand.
SavedBytes saved_by_batch_norm_relu(const OpCall& op) {
  auto saved = ops::saved_by_batch_norm(op);
  const bool makes_again = !op.tensor("residual").valid() && takes_images_in_packs(op);
  if (op.flag("relu", false) && !makes_again) saved.values.push_back(op.results().front());
  return saved;
}

/// On CPUs the second gradient of the operand lies over the result, of which ReLU's gradient is made before.
OpWorkspace workspace_of_batch_norm_relu(const OpCall& op) {
  return op.flag("relu", false) ? OpWorkspace{} : ops::workspace_of_batch_norm(op);
}

}  // namespace

OpDef batch_norm_relu_definition() {
  auto def = ops::definition_of(ops::kBatchNorm);
  def.name = kBatchNormRelu;
  def.traits = def.traits | OpTrait::kDuplicatedOutputs;
  def.saved_by = saved_by_batch_norm_relu;
  def.workspace = workspace_of_batch_norm_relu;
  return def;
}

}  // namespace detail

}  // namespace autopar
