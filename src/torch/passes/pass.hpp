#pragma once

#include <cstdint>
#include <string_view>

#include <c10/core/DeviceType.h>

#include <autopar/capture/op_graph.hpp>

namespace autopar::passes {

/// The target for which a program is compiled.
struct PassTarget {
  c10::DeviceType device = c10::DeviceType::CPU;
  bool fuses = false;          ///< operators may be joined into the library's fused ones (`Options::fusion`)
  bool chunks_logits = false;  ///< fused linear cross entropies compute chunked logits (`Options::class_head`)
};

/// When a pass runs.
enum class PassCondition : std::uint8_t { kAlways, kFusion, kChunkedLogits };

/// A rewrite of a program into one with the same results, except for rounding that its header documents. Values and
/// operators are renumbered; leaves, inputs and outputs stay in their order.
struct Pass {
  std::string_view name;  ///< name of its function, as in logs and `Options::graph_after`
  PassCondition condition;
  OpGraph (*run)(OpGraph graph, const PassTarget& target);
};

}  // namespace autopar::passes
