#pragma once

namespace autopar::detail {

/// The answer of a check with a budget; kUnknown if the budget ended first.
enum class Answer { kYes, kNo, kUnknown };

}  // namespace autopar::detail
