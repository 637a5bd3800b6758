#include <memory>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include "shard/tensor_buffer.hpp"
#include "torch/deployment/world_sums.hpp"
#include "torch/parameters/gradient_buckets.hpp"

namespace autopar::deployment {

namespace {

bool is_inexact(const at::Tensor& tensor) { return tensor.is_floating_point() || tensor.is_complex(); }

}  // namespace

at::Tensor real_parts(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
}

void WorldSums::reduce(at::Tensor& flat) {
  const auto buffer = buffer_of(flat);
  wire_.wait(wire_.all_reduce(buffer, parameters::dtype_of(flat.scalar_type()), group_));
}

std::vector<at::Tensor> WorldSums::sum(const std::vector<at::Tensor>& addends) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sums(addends.size());
  if (members_ == 1) {
    for (std::size_t i = 0; i < addends.size(); ++i) sums[i] = addends[i].detach();
    return sums;
  }
  for (const bool inexact : {true, false}) {
    std::vector<at::Tensor> parts;
    for (const auto& addend : addends) {
      if (is_inexact(addend) != inexact) continue;
      parts.push_back(real_parts(addend.detach()).to(device_, inexact ? at::kDouble : at::kLong).reshape({-1}));
    }
    if (parts.empty()) continue;
    auto flat = parts.size() == 1 ? parts[0].clone() : at::cat(parts);
    if (flat.numel() > 0) reduce(flat);
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < addends.size(); ++i) {
      const auto& addend = addends[i];
      if (is_inexact(addend) != inexact) continue;
      const auto real = real_parts(addend.detach());
      const auto total = flat.narrow(0, offset, real.numel()).view(real.sizes()).to(real.scalar_type());
      sums[i] = addend.is_complex() ? at::view_as_complex(total.contiguous()) : total;
      offset += real.numel();
    }
  }
  return sums;
}

}  // namespace autopar::deployment
