#include "torch/interpret/seeded_draws.hpp"

#include <algorithm>
#include <mutex>

#include <ATen/Context.h>

#include "ops/registry.hpp"

namespace autopar::interpret {

namespace {

/// Mixes one more word into a hash so that every bit of both matters (the finaliser of splitmix64).
std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
  std::uint64_t z = hash + 0x9E3779B97F4A7C15ULL + word * 0xD1B54A32D192ED03ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

// The threads of a process share libtorch's default generators; ranks in a loopback world are threads too.
std::mutex& default_generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

std::uint64_t philox_seed(const RngKey& key, const RngSite& site) {
  auto hash = mix(key.seed, key.call);
  hash = mix(hash, static_cast<std::uint64_t>(site.op.value()));
  hash = mix(hash, static_cast<std::uint64_t>(site.first_sample + 1));
  return site.shard == 0 ? hash : mix(hash, static_cast<std::uint64_t>(site.shard));
}

fused::PhiloxSeed seed_of(const RngKey& key, const RngSite& site) {
  const bool is_recorded = key.recorded && key.recorded->are_recorded();
  return is_recorded ? fused::PhiloxSeed{0, key.recorded->place(site)} : fused::PhiloxSeed{philox_seed(key, site)};
}

// libtorch's Philox draws inside device kernels. Other operators draw on the host (randperm), or have their own RNG
// state (recurrent layers of cuDNN).
bool draws_from_memory(const OpGraph& graph, OpId op) {
  const auto& def = ops::definition_of(graph.op(op).op);
  // Operators that fill a new tensor, with parameters given as tensors, read these on the host.
  const bool fills_another = def.kind == OpKind::kFill && !graph.name(op).ends_with('_');
  return def.has(OpTrait::kDrawsOnDevice) && !fills_another;
}

DefaultGeneratorGuard::DefaultGeneratorGuard(c10::Device device, const fused::PhiloxSeed& seed)
    : exclusive_(default_generator_mutex()), generator_(at::globalContext().defaultGenerator(device)) {
  const auto drawing = seed.place.defined() ? fused::make_generator(device, seed) : at::Generator();
  const std::lock_guard<std::mutex> lock(generator_.mutex());
  if (drawing.defined()) {
    with_its_state_ = generator_.graphsafe_get_state();
    generator_.graphsafe_set_state(drawing);
    return;
  }
  state_ = generator_.get_state();
  generator_.set_current_seed(seed.number);
}

DefaultGeneratorGuard::~DefaultGeneratorGuard() {
  const std::lock_guard<std::mutex> lock(generator_.mutex());
  if (with_its_state_.defined()) {
    generator_.graphsafe_set_state(with_its_state_);
  } else {
    generator_.set_state(state_);
  }
}

SeededGenerators::SeededGenerators(c10::Device device, std::uint64_t seed) : exclusive_(default_generator_mutex()) {
  std::vector<c10::Device> devices{c10::Device(c10::kCPU)};
  if (device.type() != c10::kCPU) devices.push_back(device);
  for (const auto& each : devices) {
    auto generator = at::globalContext().defaultGenerator(each);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    before_.emplace_back(generator, generator.get_state());
    generator.set_current_seed(seed);
  }
}

SeededGenerators::~SeededGenerators() {
  for (auto& [generator, state] : before_) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  }
}

}  // namespace autopar::interpret
