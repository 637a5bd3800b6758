#include "torch/interpret/recorded_seeds.hpp"

#include <string>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros.h>

#include <autopar/core/error.hpp>

#include "torch/interpret/seeded_draws.hpp"

namespace autopar::interpret {

RecordedSeeds::RecordedSeeds(c10::Device device, std::int64_t most)
    : memory_(at::zeros({most, 2}, at::TensorOptions().dtype(at::kLong).device(device))) {}

at::Tensor RecordedSeeds::place(const RngSite& site) {
  const auto [known, is_new] = places_.try_emplace(site, static_cast<std::int64_t>(places_.size()));
  if (known->second >= memory_.size(0)) {
    throw Error("a step draws at more places than " + std::to_string(memory_.size(0)) + ", which were counted before");
  }
  return memory_.select(0, known->second);
}

// Copies from pinned memory, which nobody else writes, so that the host does not wait.
void RecordedSeeds::set(const RngKey& key) {
  const auto made = at::zeros(memory_.sizes(), at::TensorOptions().dtype(at::kLong).pinned_memory(memory_.is_cuda()));
  auto* const numbers = made.mutable_data_ptr<std::int64_t>();
  for (const auto& [site, place] : places_) numbers[2 * place] = static_cast<std::int64_t>(philox_seed(key, site));
  const at::AutoDispatchBelowADInplaceOrView no_version;
  memory_.copy_(made, /*non_blocking=*/true);
}

}  // namespace autopar::interpret
