#include "torch/interpret/draws.hpp"

#include <mutex>

#include <ATen/Context.h>

namespace autopar {

namespace {

/// Mixes one more word into a hash so that every bit of both matters (the finaliser of splitmix64).
std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
  std::uint64_t z = hash + 0x9E3779B97F4A7C15ULL + word * 0xD1B54A32D192ED03ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

// libtorch's default generators are shared by the threads of a process, and so are ranks in a loopback world.
std::mutex& default_generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

std::uint64_t draw_seed(DrawKey key, OpId op, std::int64_t first_sample, int shard) {
  auto hash = mix(key.seed, key.call);
  hash = mix(hash, static_cast<std::uint64_t>(op.value()));
  hash = mix(hash, static_cast<std::uint64_t>(first_sample + 1));
  return shard == 0 ? hash : mix(hash, static_cast<std::uint64_t>(shard));
}

DefaultGeneratorGuard::DefaultGeneratorGuard(c10::Device device, std::uint64_t seed)
    : exclusive_(default_generator_mutex()), generator_(at::globalContext().defaultGenerator(device)) {
  const std::lock_guard<std::mutex> lock(generator_.mutex());
  state_ = generator_.get_state();
  generator_.set_current_seed(seed);
}

DefaultGeneratorGuard::~DefaultGeneratorGuard() {
  const std::lock_guard<std::mutex> lock(generator_.mutex());
  generator_.set_state(state_);
}

}  // namespace autopar
