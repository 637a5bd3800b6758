#pragma once

#include <cstdint>
#include <mutex>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "torch/interpret/slice.hpp"
#include "torch/ir/op_graph.hpp"

namespace autopar {

/// Seed of the draws of one operator on one slice. Different in any argument gives different draws; the same arguments
/// give the same draws on every rank, whatever ran before.
/// @param first_sample  -1 for draws that all slices have in common
/// @param shard         of the operator's result, where tensor shards have slices of it
[[nodiscard]] std::uint64_t draw_seed(DrawKey key, OpId op, std::int64_t first_sample, int shard = 0);

/// While it lives, the default generator of `device` gives the draws of `seed`; after it, those it would have given.
/// For operators that take no generator. Threads of one process exclude each other.
class DefaultGeneratorGuard {
 public:
  DefaultGeneratorGuard(c10::Device device, std::uint64_t seed);
  ~DefaultGeneratorGuard();
  DefaultGeneratorGuard(const DefaultGeneratorGuard&) = delete;
  DefaultGeneratorGuard& operator=(const DefaultGeneratorGuard&) = delete;

 private:
  std::unique_lock<std::mutex> exclusive_;
  at::Generator generator_;
  at::Tensor state_;
};

}  // namespace autopar
