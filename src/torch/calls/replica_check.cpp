#include "torch/calls/replica_check.hpp"

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/hash_tensor.h>
#include <ATen/ops/view_as_real.h>

#include <autopar/core/error.hpp>

namespace autopar::calls {

namespace {

std::uint64_t hash_of_bits(const at::Tensor& tensor) {
  const auto real = tensor.is_complex() ? at::view_as_real(tensor.detach()) : tensor.detach();
  return real.numel() == 0
             ? 0
             : static_cast<std::uint64_t>(at::hash_tensor(real.flatten()).view(at::kLong).item<std::int64_t>());
}

}  // namespace

void require_equal_replicas(ranks::Ranks& ranks, const parameters::ParameterStore& parameters, std::int64_t call) {
  const at::NoGradGuard no_grad;
  const auto compared = [&](const parameters::ManagedTensor& tensor) {
    return tensor.is_parameter && tensor.holders.size() > 1 && !parameters.is_sharded(tensor);
  };
  std::vector<std::uint64_t> mine;
  for (const auto& tensor : parameters.tensors()) {
    if (compared(tensor)) mine.push_back(parameters.holds(tensor) ? hash_of_bits(tensor.handle) : 0);
  }
  const auto all = ranks.all_gather(std::as_bytes(std::span(mine)), "comparing the replicas' parameters");
  std::size_t i = 0;
  for (const auto& tensor : parameters.tensors()) {
    if (!compared(tensor)) continue;
    const auto of = [&](Rank rank) {
      std::uint64_t hash = 0;
      std::memcpy(&hash, all[rank.index()].data() + i * sizeof(hash), sizeof(hash));
      return hash;
    };
    const std::vector<std::vector<Rank>> whole{tensor.holders};
    const auto& sets = tensor.slices ? tensor.replicas_of_shard : whole;
    for (const auto& equal : sets) {
      const auto first = equal.front();
      for (const auto rank : equal) {
        if (of(rank) == of(first)) continue;
        throw InvalidArgument("verify_replicas: before call " + std::to_string(call) + " parameter '" + tensor.name() +
                              "' has other values on rank " + std::to_string(rank.value()) + " (hash " +
                              std::to_string(of(rank)) + ") than on rank " + std::to_string(first.value()) + " (hash " +
                              std::to_string(of(first)) +
                              "); one of them was stepped otherwise, or written; load a checkpoint on all ranks");
      }
    }
    ++i;
  }
}

}  // namespace autopar::calls
