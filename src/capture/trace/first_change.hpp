#pragma once

#include <cstdint>
#include <optional>

#include <autopar/capture/op_graph.hpp>

#include "capture/trace/capture_change.hpp"

namespace autopar::detail {

/// The first place where a forward recorded otherwise than before; none if it is the same program.
/// @param before  a capture, or one whose integers are solved: its arguments are those of `batch`
/// @param now     a capture at `batch`
[[nodiscard]] std::optional<CaptureChange> first_change(const OpGraph& before, const OpGraph& now, std::int64_t batch);

}  // namespace autopar::detail
