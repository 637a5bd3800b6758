#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "shard/kept.hpp"
#include "torch/kernels/launch.hpp"
#include "torch/kernels/layer_norm_source.hpp"
#include "torch/kernels/summed_columns.hpp"

namespace autopar {

namespace {

using at::Tensor;
using std::optional;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using NormShape = LayerNormGradientShape;

/// How the kernels cover data [rows, columns]: blocks of `threads`, each with `packs` packs of a row, 1, 2 or 4.
struct RowCover {
  std::int64_t rows, columns;
  std::int64_t packs = 0;  ///< 0: a row is too long
  unsigned threads = 0;

  explicit RowCover(const Tensor& data) : rows(data.numel() / data.size(-1)), columns(data.size(-1)) {
    constexpr std::int64_t kMostThreads = NormShape::kMostThreads, kWarp = 32;
    const auto in_row = columns * data.element_size() / detail::kPackBytes;
    for (const std::int64_t each : {1, 2, 4}) {
      if (packs > 0 || in_row > each * kMostThreads) continue;
      packs = each;
      threads = static_cast<unsigned>(((in_row + each - 1) / each + kWarp - 1) / kWarp * kWarp);
    }
  }

  /// As many as run at once on a large GPU. Each writes sums, so that it should have some rows.
  std::int64_t gradient_blocks() const {
    constexpr std::int64_t kMultiprocessors = 132, kLeastRows = 8;
    const auto most = kMultiprocessors * (NormShape::at_once(packs) * NormShape::kMostThreads / threads);
    return std::clamp<std::int64_t>(rows / kLeastRows, 1, most);
  }
};

/// "add_layer_norm_bf16_f32_1"
std::string row_kernel(const char* what, const Tensor& data, const Tensor& numbers, const RowCover& cover) {
  return std::string(what) + detail::kernel_type(data.scalar_type()) + "_" +
         detail::kernel_type(numbers.scalar_type()) + "_" + std::to_string(cover.packs);
}

/// Whether the kernels take them: both addends alike, without gaps; weight and bias of their type or in single
/// precision.
bool takes_rows(const Tensor& input, const Tensor& residual, at::IntArrayRef shape, const optional<Tensor>& weight,
                const optional<Tensor>& bias) {
  if (!input.is_cuda() || detail::kernel_type(input.scalar_type()) == nullptr || input.numel() == 0) return false;
  const bool of_last_dim = shape.size() == 1 && input.dim() > 1 && input.size(-1) == shape[0];
  const auto is_like = [&](const Tensor& other) {
    return other.scalar_type() == input.scalar_type() && other.sizes() == input.sizes() &&
           other.device() == input.device();
  };
  if (!of_last_dim || !is_like(residual) || !weight.has_value() || !bias.has_value()) return false;
  const auto type = weight->scalar_type();
  const bool weighs = (type == at::kFloat || type == input.scalar_type()) && bias->scalar_type() == type &&
                      weight->is_contiguous() && bias->is_contiguous() && weight->device() == input.device() &&
                      bias->device() == input.device();
  const bool in_packs = input.size(-1) * input.element_size() % detail::kPackBytes == 0;
  return weighs && in_packs && RowCover(input).packs > 0 &&
         context_of(input.device().type()).has_kernels(kLayerNormKernels, input.device().index());
}

/// The same numbers without gaps, where packs begin.
Tensor in_rows(const Tensor& tensor) {
  const auto dense = tensor.contiguous();
  return detail::is_aligned(dense) ? dense : dense.clone();
}

struct AddLayerNormFunction : torch::autograd::Function<AddLayerNormFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& input, const Tensor& residual,
                               const Tensor& weight, const Tensor& bias, double eps) {
    const RowCover cover(input);
    const auto left = in_rows(input), right = in_rows(residual);
    const auto sum = at::empty_like(left), result = at::empty_like(left);
    const auto statistics = at::empty({2, cover.rows}, left.options().dtype(at::kFloat));
    detail::launch(left, kLayerNormKernels, row_kernel("add_layer_norm_", left, weight, cover).c_str(),
                   {static_cast<unsigned>(cover.rows), 1, cover.threads, 1}, detail::data_of(left),
                   detail::data_of(right), detail::data_of(weight), detail::data_of(bias), detail::memory_of(sum),
                   detail::memory_of(result), detail::memory_of(statistics), cover.rows,
                   static_cast<int>(cover.columns), static_cast<float>(eps));
    context->save_for_backward({sum, weight, statistics});
    context->set_materialize_grads(false);
    return {sum, result};
  }

  static variable_list backward(AutogradContext* context, variable_list given) {
    detail::refuse_double_backward("layer norm");
    if (!given[1].defined()) return {given[0], given[0], Tensor(), Tensor(), Tensor()};
    const auto saved = context->get_saved_variables();
    const auto &sum = saved[0], &weight = saved[1], &statistics = saved[2];
    const RowCover cover(sum);
    const auto of_result = in_rows(given[1]), of_sum = given[0].defined() ? in_rows(given[0]) : Tensor();
    const auto made = at::empty_like(sum), of_weight = at::empty_like(weight), of_bias = at::empty_like(weight);
    const auto blocks = cover.gradient_blocks();
    const auto partial = at::empty({blocks, NormShape::kSums, cover.columns}, statistics.options());
    const auto sums_of_made = at::empty({cover.columns}, statistics.options());
    const int columns = static_cast<int>(cover.columns);
    detail::launch(sum, kLayerNormKernels, row_kernel("add_layer_norm_gradient_", sum, weight, cover).c_str(),
                   {static_cast<unsigned>(blocks), 1, cover.threads, 1}, detail::data_of(of_result),
                   detail::data_of(of_sum), detail::data_of(sum), detail::data_of(weight), detail::data_of(statistics),
                   detail::memory_of(made), detail::memory_of(partial), cover.rows, columns);
    const auto adds_up = std::string("add_layer_norm_sums_") + detail::kernel_type(weight.scalar_type());
    detail::launch(sum, kLayerNormKernels, adds_up.c_str(), NormShape::adding_up(cover.columns),
                   detail::data_of(partial), static_cast<int>(blocks), detail::memory_of(of_weight),
                   detail::memory_of(of_bias), detail::memory_of(sums_of_made), columns);
    attach_summed_columns(made, sums_of_made);  // for a linear layer that made one of the addends
    return {made, made, of_weight, of_bias, Tensor()};
  }
};

/// The operator: see ir/add_layer_norm.hpp.
std::tuple<Tensor, Tensor> add_layer_norm(const Tensor& input, const Tensor& residual, at::IntArrayRef shape,
                                          const optional<Tensor>& weight, const optional<Tensor>& bias, double eps,
                                          bool cudnn_enable) {
  if (takes_rows(input, residual, shape, weight, bias)) {
    const auto made = AddLayerNormFunction::apply(input, residual, *weight, *bias, eps);
    return {made[0], made[1]};
  }
  const auto sum = input + residual;
  return {sum, at::layer_norm(sum, shape, weight, bias, eps, cudnn_enable)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(autopar, library) {
  library.def(
      "add_layer_norm(Tensor input, Tensor residual, int[] normalized_shape, Tensor? weight, Tensor? bias, float eps, "
      "bool cudnn_enable) -> (Tensor, Tensor)",
      add_layer_norm);
}

}  // namespace autopar
