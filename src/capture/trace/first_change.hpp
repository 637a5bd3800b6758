#pragma once

#include <cstdint>
#include <optional>

#include <autopar/capture/op_graph.hpp>

#include "capture/trace/capture_change.hpp"

namespace autopar::trace {

/// The first difference between two captures of a forward; none if it is the same program.
/// @param before  a capture, or a solved program, which is compared at `batch`
/// @param now     a capture at `batch`
[[nodiscard]] std::optional<CaptureChange> first_change(const OpGraph& before, const OpGraph& now, std::int64_t batch);

}  // namespace autopar::trace
