#pragma once

#include <cstdint>
#include <optional>

#include "torch/capture/capture_change.hpp"
#include "torch/ir/op_graph.hpp"

namespace autopar::detail {

/// The first place where a forward recorded otherwise than before; none if it is the same program.
/// @param before  a capture, or one whose integers are solved: its arguments are those of `batch`
/// @param now     a capture at `batch`
[[nodiscard]] std::optional<CaptureChange> first_change(const OpGraph& before, const OpGraph& now, std::int64_t batch);

}  // namespace autopar::detail
