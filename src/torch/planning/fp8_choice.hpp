#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include <autopar/capture/op_graph.hpp>
#include <autopar/core/cluster.hpp>
#include <autopar/plan/options.hpp>

#include "capture/algebra/batch_algebra.hpp"

namespace autopar::planning {

struct Fp8Choice {
  std::vector<std::string> weights;                           ///< of layers that run in 8 bits, in program order
  std::vector<std::pair<std::string, std::string>> left_out;  ///< weights of others, with the reason
};

/// The linear layers of a program that run in 8 bits: all but the first, the last and class heads, whose sizes are
/// multiples of 16. They read a cast of their weight, and products gain more than the casts of their operands take.
/// @param device  with rates of products and memory; none: where products only compute the same numbers, casts count
///                for nothing
[[nodiscard]] Fp8Choice fp8_layers_of(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                      const std::optional<Device>& device = std::nullopt);

/// The same for the device of these options, none without precision = fp8. @param device  of this rank
[[nodiscard]] Fp8Choice chosen_fp8_layers(const Options& options, c10::Device device, const OpGraph& graph,
                                          const algebra::BatchSemantics& plan);

}  // namespace autopar::planning
