#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Generator.h>

#include <autopar/capture/op_graph.hpp>

namespace autopar::init {

/// Whether the elements are contiguous in memory.
[[nodiscard]] bool is_contiguous(const ValueInfo& info);

/// How many 32-bit numbers a random operator takes from the CPU generator, if its sizes alone decide this. Known for
/// large contiguous uniform and normal (aten/src/ATen/native/cpu/DistributionTemplates.h). None: run it to find out.
[[nodiscard]] std::optional<std::uint64_t> plain_draws(const OpGraph& graph, const OpNode& node);

/// Takes the generator's lock.
[[nodiscard]] at::Tensor state_of(at::Generator& generator);
void set_state(at::Generator& generator, const at::Tensor& state);

/// Advances a CPU generator by `count` 32-bit numbers. About half a nanosecond each.
void skip_draws(at::Generator& generator, std::uint64_t count);

}  // namespace autopar::init
