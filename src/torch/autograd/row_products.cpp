#include "torch/autograd/row_products.hpp"

#include <algorithm>
#include <cstdint>

#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/mm.h>

#include "torch/autograd/sum_type.hpp"
#include "torch/fused/products.hpp"

namespace autopar::autograd {

at::Tensor product_over_rows(const at::Tensor& a, const at::Tensor& b) {
  const auto type = sum_type(a.scalar_type());
  if (type == a.scalar_type()) return a.t().mm(b);
  return a.is_cuda() ? fused::matrix_product(a.t(), b, type) : a.to(type).t().mm(b.to(type));
}

// libtorch has products of 16-bit matrices that accumulate into a wider output for batches.
void put_product_over_rows(const at::Tensor& a, const at::Tensor& b, const at::Tensor& sum,
                           fused::Destination destination) {
  const auto type = sum_type(a.scalar_type());
  const bool adds = destination == fused::Destination::kAdds;
  if (a.is_cuda() && type == a.scalar_type() && type == sum.scalar_type()) {
    auto in_place = sum;
    static_cast<void>(adds ? at::addmm_out(in_place, in_place, a.t(), b) : at::mm_out(in_place, a.t(), b));
    return;
  }
  if (!a.is_cuda() || type == a.scalar_type() || type != sum.scalar_type()) {
    const auto product = product_over_rows(a, b);
    static_cast<void>(adds ? sum.add_(product) : sum.copy_(product));
    return;
  }
  if (fused::multiply_large({a.t(), b, {}, sum, adds})) return;
  auto in_place = sum.unsqueeze(0);
  at::baddbmm_out(in_place, in_place, a.t().unsqueeze(0), b.unsqueeze(0), type, /*beta=*/adds ? 1 : 0);
}

std::optional<PixelRows> pixel_rows_of(const ConvolutionForm& form, const at::Tensor& gradient, const at::Tensor& x,
                                       const at::Tensor& weight) {
  const auto all = [](const std::vector<std::int64_t>& numbers, std::int64_t wanted) {
    return std::ranges::all_of(numbers, [&](std::int64_t number) { return number == wanted; });
  };
  const bool of_pixels = weight.dim() == 4 && weight.size(2) == 1 && weight.size(3) == 1 && all(form.stride, 1) &&
                         all(form.padding, 0) && form.groups == 1 && !form.transposed;
  const auto lies_in_rows = [](const at::Tensor& images) {
    return images.dim() == 4 && images.numel() > 0 && images.is_contiguous(at::MemoryFormat::ChannelsLast);
  };
  if (!of_pixels || !lies_in_rows(gradient) || !lies_in_rows(x)) return std::nullopt;
  const auto rows = [](const at::Tensor& images) { return images.permute({0, 2, 3, 1}).view({-1, images.size(1)}); };
  return PixelRows{rows(gradient), rows(x)};
}

bool gains_as_product(const at::Tensor& gradient, const at::Tensor& weight) {
  constexpr std::int64_t kLarge = 1 << 20;
  return gradient.is_cuda() && sum_type(gradient.scalar_type()) != gradient.scalar_type() && weight.numel() >= kLarge;
}

}  // namespace autopar::autograd
