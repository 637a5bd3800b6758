#include "torch/graphs/repeated_calls.hpp"

#include <utility>

namespace autopar::graphs {

using steps::CudaGraphPhase;

steps::CudaGraphPhase RepeatedCalls::next(const std::shared_ptr<const void>& program,
                                          const std::vector<std::int64_t>& samples) {
  if (!latest_.is(program, samples)) {
    latest_ = {program, samples};
    calls_ = 0;
  }
  if (recorded_.is(program, samples)) {
    calls_ = 0;
    return CudaGraphPhase::kReplay;
  }
  if (refused_.is(program, samples) || recordings_ == kMostRecordings) return CudaGraphPhase::kEager;
  ++calls_;
  if (calls_ <= kRunsBefore) return CudaGraphPhase::kEager;
  return calls_ == kRunsBefore + 1 ? CudaGraphPhase::kWarmup : CudaGraphPhase::kCapture;
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

}  // namespace autopar::graphs
