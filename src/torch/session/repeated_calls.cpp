#include "torch/session/repeated_calls.hpp"

#include <utility>

namespace autopar::session {

RepeatedCalls::Turn RepeatedCalls::next(const std::shared_ptr<const void>& program,
                                        const std::vector<std::int64_t>& samples) {
  if (!latest_.is(program, samples)) {
    latest_ = {program, samples};
    calls_ = 0;
  }
  if (recorded_.is(program, samples)) {
    calls_ = 0;
    return Turn::kReplay;
  }
  if (refused_.is(program, samples) || recordings_ == kMostRecordings) return Turn::kRun;
  ++calls_;
  if (calls_ <= kRunsBefore) return Turn::kRun;
  return calls_ == kRunsBefore + 1 ? Turn::kWarm : Turn::kRecord;
}

void RepeatedCalls::recorded() {
  recorded_ = latest_;
  ++recordings_;
}

void RepeatedCalls::refuse() {
  refused_ = latest_;
  recorded_ = {};
}

void RepeatedCalls::give_up() { refused_ = std::exchange(recorded_, {}); }

void RepeatedCalls::forget() {
  recorded_ = {};
  calls_ = 0;
}

}  // namespace autopar::session
