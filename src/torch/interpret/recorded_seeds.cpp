#include "torch/interpret/recorded_seeds.hpp"

#include <string>

#include <ATen/ops/zeros.h>

#include <autopar/core/error.hpp>

#include "torch/interpret/draws.hpp"

namespace autopar {

RecordedSeeds::RecordedSeeds(c10::Device device, std::int64_t most)
    : memory_(at::zeros({most, 2}, at::TensorOptions().dtype(at::kLong).device(device))) {}

at::Tensor RecordedSeeds::place(const DrawSite& site) {
  const auto [known, is_new] = places_.try_emplace(site, static_cast<std::int64_t>(places_.size()));
  if (known->second >= memory_.size(0)) {
    throw Error("a step draws at more places than " + std::to_string(memory_.size(0)) + ", which were counted before");
  }
  return memory_.select(0, known->second);
}

at::Tensor RecordedSeeds::of(const DrawKey& key) const {
  const auto made = at::zeros(memory_.sizes(), at::kLong);
  auto* const numbers = made.mutable_data_ptr<std::int64_t>();
  for (const auto& [site, place] : places_) numbers[2 * place] = static_cast<std::int64_t>(draw_seed(key, site));
  return made;
}

}  // namespace autopar
