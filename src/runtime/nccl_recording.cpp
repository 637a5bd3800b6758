#include <autopar/runtime/config.hpp>

#if AUTOPAR_HAS_CUDA

#include "nccl_recording.hpp"

#include <algorithm>
#include <utility>

#include <cuda.h>

#include <autopar/core/error.hpp>

#include "nccl_communicator.hpp"

namespace autopar::detail {

namespace {

/// Of the driver, which is not linked: its library is where GPUs are.
auto write_value_function(Rank self) {
  static_assert(sizeof(cuuint32_t) == sizeof(std::uint32_t));
  constexpr unsigned kVersion = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check_cuda("cudaGetDriverEntryPointByVersion",
             cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &function, kVersion, cudaEnableDefault, &result),
             self);
  if (result != cudaDriverEntryPointSuccess || function == nullptr)
    throw TransportError("the driver has no cuStreamWriteValue32", self, Rank::none(), "recording of a step");
  return reinterpret_cast<decltype(&cuStreamWriteValue32)>(function);
}

}  // namespace

bool is_capturing(cudaStream_t stream, Rank self) {
  cudaStreamCaptureStatus status{};
  check_cuda("cudaStreamIsCapturing", cudaStreamIsCapturing(stream, &status), self);
  return status == cudaStreamCaptureStatusActive;
}

NcclRecording::NcclRecording(Rank self) : self_(self) {
  void* memory = nullptr;
  check_cuda("cudaHostAlloc", cudaHostAlloc(&memory, kWords * sizeof(std::uint32_t), cudaHostAllocMapped), self_);
  words_ = static_cast<std::uint32_t*>(memory);
  std::fill_n(words_, kWords, 0);
}

NcclRecording::~NcclRecording() { cudaFreeHost(words_); }

void NcclRecording::begin(cudaStream_t stream, std::string action, Rank peer) {
  write(stream, lanes_.begin(stream, std::move(action), peer));
}

void NcclRecording::end(cudaStream_t stream) { write(stream, lanes_.end(stream)); }

void NcclRecording::write(cudaStream_t stream, const RecordedLanes::Mark& mark) {
  constexpr auto kAction = "recording of a step";
  static const auto write_value = write_value_function(self_);
  if (mark.word >= kWords) throw TransportError("it uses too many communicators", self_, Rank::none(), kAction);
  const auto code =
      write_value(stream, reinterpret_cast<CUdeviceptr>(words_ + mark.word), mark.value, CU_STREAM_WRITE_VALUE_DEFAULT);
  if (code != CUDA_SUCCESS)
    throw TransportError("cuStreamWriteValue32 refuses to be recorded", self_, Rank::none(), kAction,
                         static_cast<int>(code));
}

std::optional<RecordedLanes::Waiting> NcclRecording::longest_waiting(RecordedLanes::Clock::time_point now) {
  return lanes_.longest_waiting({words_, kWords}, now);
}

void NcclRecording::restart_watch() {
  lanes_.restart();
  warned_ = false;
}

}  // namespace autopar::detail

#endif
