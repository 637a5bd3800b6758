#pragma once

namespace autopar::detail {

/// Of a check with a budget.
enum class Answer { kYes, kNo, kUnknown };

}  // namespace autopar::detail
