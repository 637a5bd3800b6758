#include "torch/fused/addends.hpp"

#include <cstdint>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <autopar/core/assert.hpp>

#include "kernels/addends_source.hpp"
#include "torch/fused/launch.hpp"

namespace autopar::fused {

namespace {

constexpr std::int64_t kNumbersOfPack = detail::kPackBytes / 2;

bool adds_in_kernels(const at::Tensor& addends, const at::Tensor& sum) {
  return addends.is_cuda() && addends.is_contiguous() && sum.is_contiguous() && sum.numel() > 0 &&
         sum.numel() % kNumbersOfPack == 0 && detail::is_aligned(addends) && detail::is_aligned(sum) &&
         devices::context_of(addends.device().type()).has_kernels(kernels::kAddendsKernels, addends.device().index());
}

void add_in_kernels(const at::Tensor& addends, const at::Tensor& sum, bool adds) {
  constexpr auto kThreads = kernels::AddendsShape::kThreads;
  const auto packs = sum.numel() / kNumbersOfPack;
  const kernels::LaunchShape shape{static_cast<unsigned>(detail::parts_for(packs, kThreads)), 1, kThreads, 1};
  const auto members = static_cast<int>(addends.size(0));
  if (sum.scalar_type() == at::kFloat)
    detail::launch(sum, kernels::kAddendsKernels, "add_up_f32", shape, detail::data_of(addends), members,
                   static_cast<long long>(packs), detail::memory_of(sum), adds ? 1 : 0);
  else
    detail::launch(sum, kernels::kAddendsKernels, "add_up_bf16", shape, detail::data_of(addends), members,
                   static_cast<long long>(packs), detail::memory_of(sum));
}

}  // namespace

// libtorch's sum over a dimension may add in another order.
void add_up(const at::Tensor& addends, const at::Tensor& sum, Destination destination) {
  const at::NoGradGuard no_grad;
  const bool adds = destination == Destination::kAdds, is_fp32 = sum.scalar_type() == at::kFloat;
  AUTOPAR_ASSERT(addends.dim() == 2 && addends.size(0) > 0 && addends.size(1) == sum.numel(),
                 "addends of another size than their sum");
  AUTOPAR_ASSERT(is_fp32 || (sum.scalar_type() == at::kBFloat16 && !adds), "addends whose sum is not in fp32");
  if (adds_in_kernels(addends, sum)) return add_in_kernels(addends, sum, adds);
  const auto made = is_fp32 ? sum : at::empty(sum.sizes(), sum.options().dtype(at::kFloat));
  if (!adds) made.copy_(addends[0]).add_(0);  // begins at 0, as in kernels: a sum is never -0
  for (std::int64_t member = adds ? 0 : 1; member < addends.size(0); ++member) made.add_(addends[member]);
  if (!is_fp32) sum.copy_(made);
}

}  // namespace autopar::fused
