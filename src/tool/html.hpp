#pragma once

#include <string>

#include "timeline.hpp"

namespace autopar::tool {

/// A timeline as one HTML page that needs nothing else: an SVG with two lanes a rank (computing; messages and sums),
/// an axis above and below, and words for each bar when the pointer rests on it.
[[nodiscard]] std::string to_html(const StepTimeline& timeline, const std::string& title, const std::string& mark);

}  // namespace autopar::tool
