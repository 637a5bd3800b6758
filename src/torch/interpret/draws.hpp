#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <autopar/capture/op_graph.hpp>

#include "torch/fused/draw_seed.hpp"
#include "torch/interpret/recorded_seeds.hpp"
#include "torch/interpret/slice.hpp"

namespace autopar {

/// Seed of the draws at one site. Different in any argument gives different draws; the same arguments give the same
/// draws on every rank, whatever ran before.
[[nodiscard]] std::uint64_t draw_seed(const DrawKey& key, const DrawSite& site);

/// As operators get it: while a step is recorded, its place in memory.
[[nodiscard]] fused::DrawSeed seed_of(const DrawKey& key, const DrawSite& site);

/// Whether an operator's kernels can draw from a place in the device's memory.
[[nodiscard]] bool draws_from_memory(const OpGraph& graph, OpId op);

/// While it lives, the default generator of `device` gives the draws of `seed`; after it, those it would have given.
/// For operators that take no generator. Threads of one process exclude each other.
class DefaultGeneratorGuard {
 public:
  DefaultGeneratorGuard(c10::Device device, const fused::DrawSeed& seed);
  ~DefaultGeneratorGuard();
  DefaultGeneratorGuard(const DefaultGeneratorGuard&) = delete;
  DefaultGeneratorGuard& operator=(const DefaultGeneratorGuard&) = delete;

 private:
  std::unique_lock<std::mutex> exclusive_;
  at::Generator generator_;
  at::Tensor state_;              ///< as it was, but
  at::Generator with_its_state_;  ///< where it has another's state for a while
};

/// While it lives, the default generators of the host and of `device` give the draws of `seed`; after it, those they
/// would have given. For code that is not ours. Threads of one process exclude each other.
class SeededGenerators {
 public:
  SeededGenerators(c10::Device device, std::uint64_t seed);
  ~SeededGenerators();
  SeededGenerators(const SeededGenerators&) = delete;
  SeededGenerators& operator=(const SeededGenerators&) = delete;

 private:
  std::unique_lock<std::mutex> exclusive_;
  std::vector<std::pair<at::Generator, at::Tensor>> before_;  ///< with the states that they had
};

}  // namespace autopar
