#include "torch/fused/gelu.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>

#include "kernels/gelu_source.hpp"
#include "torch/fused/launch.hpp"

namespace autopar::fused {

namespace {

bool fits_gelu_kernel(const at::Tensor& x) {
  if (!x.is_cuda() || x.numel() == 0 || detail::kernel_type(x.scalar_type()) == nullptr) return false;
  const auto bytes = x.numel() * x.element_size();
  return x.is_contiguous() && detail::is_aligned(x) && bytes % detail::kPackBytes == 0 &&
         devices::context_of(x.device().type()).has_kernels(kernels::kGeluKernels, x.device().index());
}

}  // namespace

at::Tensor gelu_of(const at::Tensor& x, std::string_view approximate) {
  if (!fits_gelu_kernel(x)) return at::gelu(x, approximate);
  constexpr std::int64_t kBlocks = 396;  // three per multiprocessor of a large GPU, all resident at once
  const auto packs = x.numel() * x.element_size() / detail::kPackBytes;
  const auto in_flight = detail::parts_for(detail::parts_for(packs, kBlocks), kernels::GeluShape::kThreads);
  const auto of_block = std::min<std::int64_t>(in_flight, kernels::GeluShape::kFlight) * kernels::GeluShape::kThreads;
  const auto blocks = std::min(detail::parts_for(packs, of_block), kBlocks);
  const auto made = at::empty_like(x);
  const auto kernel =
      std::string(approximate == "tanh" ? "tanh_" : "") + "gelu_" + detail::kernel_type(x.scalar_type());
  detail::launch(x, kernels::kGeluKernels, kernel.c_str(),
                 {static_cast<unsigned>(blocks), 1, kernels::GeluShape::kThreads, 1}, detail::data_of(x),
                 detail::memory_of(made), static_cast<long long>(packs), static_cast<int>(of_block));
  return made;
}

}  // namespace autopar::fused
