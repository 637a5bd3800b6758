#include <autopar/runtime/config.hpp>

#if AUTOPAR_HAS_CUDA

#include "nccl_recording.hpp"

#include <algorithm>
#include <atomic>
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
  auto& lane = lanes_.try_emplace(stream, Lane{lanes_.size(), {}}).first->second;
  if (lane.word >= kWords)
    throw TransportError("a recorded step uses too many communicators", self_, Rank::none(), action);
  lane.operations.push_back({std::move(action), peer});
  write(stream, lane.word, 2 * lane.operations.size() - 1);
}

void NcclRecording::end(cudaStream_t stream) {
  const auto& lane = lanes_.at(stream);
  write(stream, lane.word, 2 * lane.operations.size());
}

void NcclRecording::write(cudaStream_t stream, std::size_t word, std::size_t value) {
  static const auto write_value = write_value_function(self_);
  const auto code = write_value(stream, reinterpret_cast<CUdeviceptr>(words_ + word), static_cast<cuuint32_t>(value),
                                CU_STREAM_WRITE_VALUE_DEFAULT);
  if (code != CUDA_SUCCESS)
    throw TransportError("cuStreamWriteValue32 refuses to be recorded", self_, Rank::none(), "recording of a step",
                         static_cast<int>(code));
}

std::optional<NcclRecording::Waiting> NcclRecording::longest_waiting(Clock::time_point now) {
  std::optional<Waiting> longest;
  for (auto& [stream, lane] : lanes_) {
    const auto value = std::atomic_ref(words_[lane.word]).load(std::memory_order_relaxed);
    if (std::exchange(lane.seen, value) != value || lane.since == Clock::time_point{}) lane.since = now;
    if (value % 2 == 0) continue;
    const Seconds age{std::chrono::duration<double>(now - lane.since).count()};
    const auto& operation = lane.operations.at(value / 2);
    if (!longest || longest->age < age) longest = Waiting{operation.action, operation.peer, age};
  }
  return longest;
}

void NcclRecording::restart_watch() {
  for (auto& [stream, lane] : lanes_) lane.since = {};
  warned_ = false;
}

}  // namespace autopar::detail

#endif
