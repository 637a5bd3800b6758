#pragma once

#include <optional>
#include <string>
#include <vector>

#include <autopar/capture/op_graph.hpp>

#include "capture/trace/capture.hpp"

namespace autopar::trace {

/// A difference between a forward's current recording and its capture.
struct CaptureChange {
  std::string op;    ///< as the dispatcher names it
  std::string path;  ///< nearest parameter or buffer, may be empty
  std::string what;  ///< "its argument 'other' was 0.5 and is 0.45"
};

/// Captures once more, at the first of the capture's batch sizes, and compares with the graph. This detects changes of
/// members and globals, which forward reads besides its arguments. None if it is the same program. Costs a third of a
/// capture.
/// @param options  the options of the capture
/// @throws CaptureError if the forward cannot be captured any more
[[nodiscard]] std::optional<CaptureChange> change_since_capture(const OpGraph& graph, const torch::nn::Module& module,
                                                                const std::vector<InputSpec>& inputs,
                                                                const FlatForward& forward,
                                                                const CaptureOptions& options = {});

}  // namespace autopar::trace
