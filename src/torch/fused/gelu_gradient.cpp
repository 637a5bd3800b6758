#include "torch/fused/gelu_gradient.hpp"

#include <cstdint>
#include <limits>
#include <string>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu_backward.h>

#include "kernels/gelu_gradient_source.hpp"
#include "torch/fused/bias_gradient.hpp"
#include "torch/fused/column_sums.hpp"
#include "torch/fused/launch.hpp"

namespace autopar::fused {

namespace {

/// False where double backward may be needed.
bool fits_gelu_kernel(const at::Tensor& gradient, const at::Tensor& x) {
  if (!x.is_cuda() || at::GradMode::is_enabled() || x.dim() < 2 || x.numel() == 0) return false;
  const bool alike = gradient.scalar_type() == x.scalar_type() && gradient.sizes() == x.sizes() &&
                     gradient.device() == x.device() && detail::kernel_type(x.scalar_type()) != nullptr;
  const bool without_gaps = x.is_contiguous() && gradient.is_contiguous();
  if (!alike || !without_gaps || !detail::is_aligned(x) || !detail::is_aligned(gradient)) return false;
  return x.size(-1) * x.element_size() % detail::kPackBytes == 0 &&
         x.size(-1) <= std::numeric_limits<std::int32_t>::max() && has_column_sums(x.device()) &&
         devices::context_of(x.device().type()).has_kernels(kernels::kGeluGradientKernels, x.device().index());
}

}  // namespace

at::Tensor gelu_gradient(const at::Tensor& gradient, const at::Tensor& x, std::string_view approximate) {
  if (!fits_gelu_kernel(gradient, x)) return at::gelu_backward(gradient, x, approximate);
  constexpr std::int64_t kBlocks = 264;  // two per multiprocessor of a large GPU, all resident at once
  const auto columns = x.size(-1), rows = x.numel() / columns;
  const auto packs = columns * x.element_size() / detail::kPackBytes;
  const auto blocks = blocks_of_rows(
      rows, packs, std::int64_t{kernels::GeluGradientShape::kRows} * kernels::GeluGradientShape::kFlight, kBlocks);
  const auto made = at::empty_like(x);
  const auto single = x.options().dtype(at::kFloat);
  const auto partial = at::empty({blocks.down, columns}, single), sums = at::empty({columns}, single);
  const auto kernel =
      std::string(approximate == "tanh" ? "tanh_" : "") + "gelu_gradient_" + detail::kernel_type(x.scalar_type());
  detail::launch(x, kernels::kGeluGradientKernels, kernel.c_str(),
                 {static_cast<unsigned>(blocks.across), static_cast<unsigned>(blocks.down),
                  kernels::GeluGradientShape::kPacks, kernels::GeluGradientShape::kRows},
                 detail::data_of(gradient), detail::data_of(x), detail::memory_of(made), detail::memory_of(partial),
                 rows, static_cast<int>(packs), static_cast<int>(blocks.rows));
  add_up_columns(partial, sums);
  attach_bias_gradient(made, sums);
  return made;
}

}  // namespace autopar::fused
