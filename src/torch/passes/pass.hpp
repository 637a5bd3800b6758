#pragma once

#include <cstdint>
#include <string_view>

#include <c10/core/DeviceType.h>

#include <autopar/capture/op_graph.hpp>

namespace autopar::passes {

/// What a program is compiled for.
struct PassTarget {
  c10::DeviceType device = c10::DeviceType::CPU;
  bool fuses = false;          ///< operators may be joined into the library's fused ones (`Options::fusion`)
  bool chunks_logits = false;  ///< class heads make their logits in chunks (`Options::class_head`)
};

/// When a pass runs.
enum class PassCondition : std::uint8_t { kAlways, kFusion, kChunkedLogits };

/// A rewrite of a program into one with the same results, but for what its header says of roundings. Values and
/// operators are renumbered; leaves, inputs and outputs stay in their order.
struct Pass {
  std::string_view name;  ///< of its function: what logs say and `Options::graph_after` takes
  PassCondition condition;
  OpGraph (*run)(OpGraph graph, const PassTarget& target);
};

}  // namespace autopar::passes
