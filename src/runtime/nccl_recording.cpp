#include <autopar/runtime/config.hpp>

#if AUTOPAR_HAS_CUDA

#include "nccl_recording.hpp"

#include <utility>

#include <cuda.h>

#include <autopar/core/error.hpp>

namespace autopar::detail {

namespace {

/// Of the driver, which is not linked: its library is where GPUs are. The runtime sets bytes alone.
auto set_words_function(Rank self) {
  constexpr unsigned kVersion = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check_cuda("cudaGetDriverEntryPointByVersion",
             cudaGetDriverEntryPointByVersion("cuMemsetD32Async", &function, kVersion, cudaEnableDefault, &result),
             self);
  if (result != cudaDriverEntryPointSuccess || function == nullptr)
    throw TransportError("the driver has no cuMemsetD32Async", self, Rank::none(), "recording of a step");
  return reinterpret_cast<decltype(&cuMemsetD32Async)>(function);
}

}  // namespace

bool is_capturing(cudaStream_t stream, Rank self) {
  cudaStreamCaptureStatus status{};
  check_cuda("cudaStreamIsCapturing", cudaStreamIsCapturing(stream, &status), self);
  return status == cudaStreamCaptureStatusActive;
}

NcclRecording::NcclRecording(Rank self) : self_(self), written_(self) {
  void* memory = nullptr;
  check_cuda("cudaHostAlloc", cudaHostAlloc(&memory, sizeof(*word_), cudaHostAllocMapped), self_);
  word_ = static_cast<std::uint32_t*>(memory);
  *word_ = 0;
  check_cuda("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&writes_, cudaStreamNonBlocking), self_);
}

NcclRecording::~NcclRecording() {
  cudaStreamDestroy(writes_);
  cudaFreeHost(word_);
}

void NcclRecording::begin(const Event& event, std::string action, Rank peer) {
  write_after(event, progress_.begin(std::move(action), peer));
}

void NcclRecording::end(const Event& event) { write_after(event, progress_.end()); }

void NcclRecording::join(cudaStream_t stream) {
  if (progress_.end() == 0) return;
  check_cuda("cudaEventRecord", cudaEventRecord(written_.get(), writes_), self_);
  check_cuda("cudaStreamWaitEvent", cudaStreamWaitEvent(stream, written_.get(), 0), self_);
}

void NcclRecording::write_after(const Event& event, std::uint32_t value) {
  static const auto set_words = set_words_function(self_);
  check_cuda("cudaStreamWaitEvent", cudaStreamWaitEvent(writes_, event.get(), 0), self_);
  const auto code = set_words(reinterpret_cast<CUdeviceptr>(word_), value, 1, writes_);
  if (code != CUDA_SUCCESS)
    throw TransportError("cuMemsetD32Async refuses to be recorded", self_, Rank::none(), "recording of a step",
                         static_cast<int>(code));
}

std::optional<RecordedProgress::Waiting> NcclRecording::waiting(RecordedProgress::Clock::time_point now) {
  return progress_.waiting(*static_cast<const volatile std::uint32_t*>(word_), now);
}

void NcclRecording::restart_watch() {
  progress_.restart();
  warned_ = false;
}

}  // namespace autopar::detail

#endif
