#include "starts.hpp"

#include <algorithm>

namespace autopar::tool {

NextStart Starts::after(const StartEnd& end) {
  if (end.status == 0) return NextStart::kFinished;
  if (end.is_asked) return NextStart::kInterrupted;
  if (has_failed_ && failed_at_ == end.step) return NextStart::kSameFault;
  has_failed_ = true;
  failed_at_ = end.step;
  return number_ < most() ? NextStart::kRestart : NextStart::kNoneLeft;
}

NextStart Starts::place(int slots) {
  if (slots < limits_.min_ranks) return NextStart::kTooFewSlots;
  ranks_ = std::min(slots, limits_.ranks);
  return NextStart::kRestart;
}

}  // namespace autopar::tool
