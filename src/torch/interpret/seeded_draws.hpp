#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <autopar/capture/op_graph.hpp>

#include "torch/fused/philox_seed.hpp"
#include "torch/interpret/recorded_seeds.hpp"
#include "torch/interpret/slice.hpp"

namespace autopar::interpret {

/// The Philox seed of the draws at one site. A change of any argument changes the draws. The same arguments give the
/// same draws on every rank, independent of earlier work.
[[nodiscard]] std::uint64_t philox_seed(const RngKey& key, const RngSite& site);

/// The seed as operators take it: while a step is recorded, its place in memory.
[[nodiscard]] fused::PhiloxSeed seed_of(const RngKey& key, const RngSite& site);

/// Whether an operator's kernels can read their seed from the device's memory.
[[nodiscard]] bool draws_from_memory(const OpGraph& graph, OpId op);

/// While this object lives, the default generator of `device` draws from `seed`; afterwards it continues as before. It
/// is for operators that take no generator. Threads of one process exclude each other.
class DefaultGeneratorGuard {
 public:
  DefaultGeneratorGuard(c10::Device device, const fused::PhiloxSeed& seed);
  ~DefaultGeneratorGuard();
  DefaultGeneratorGuard(const DefaultGeneratorGuard&) = delete;
  DefaultGeneratorGuard& operator=(const DefaultGeneratorGuard&) = delete;

 private:
  std::unique_lock<std::mutex> exclusive_;
  at::Generator generator_;
  at::Tensor state_;              ///< the previous state, undefined if `with_its_state_` is defined
  at::Generator with_its_state_;  ///< holds the previous state if the seed is a place in memory
};

/// While this object lives, the default generators of the host and of `device` draw from `seed`. Afterwards they
/// continue as before. It is for user code. Threads of one process exclude each other.
class SeededGenerators {
 public:
  SeededGenerators(c10::Device device, std::uint64_t seed);
  ~SeededGenerators();
  SeededGenerators(const SeededGenerators&) = delete;
  SeededGenerators& operator=(const SeededGenerators&) = delete;

 private:
  std::unique_lock<std::mutex> exclusive_;
  std::vector<std::pair<at::Generator, at::Tensor>> before_;  ///< generators and their previous states
};

}  // namespace autopar::interpret
