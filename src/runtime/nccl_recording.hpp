#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <cuda_runtime_api.h>

#include <autopar/core/ids.hpp>
#include <autopar/runtime/any_transport.hpp>

#include "nccl_communicator.hpp"
#include "recorded_progress.hpp"

namespace autopar::detail {

/// Whether work that is given to the stream becomes part of a CUDA graph.
[[nodiscard]] bool is_capturing(cudaStream_t stream, Rank self);

/// The operations of a CUDA graph, which run one after the other. When it runs, nobody on the host knows how far it is;
/// so the graph writes to a word of host memory before and after each operation. It does so beside them, on another
/// stream, so that nothing waits for a write.
class NcclRecording final : public RecordedOperations {
 public:
  explicit NcclRecording(Rank self);
  ~NcclRecording() override;

  // ---- while the graph is captured

  /// An operation begins when the device passes the event.
  void begin(const Event& event, std::string action, Rank peer);
  /// The latest operation has ended when the device passes the event.
  void end(const Event& event);
  /// Right before the capture ends: the stream waits for the last write.
  void join(cudaStream_t stream);

  // ---- while the graph runs; one caller at a time

  [[nodiscard]] std::optional<RecordedProgress::Waiting> waiting(RecordedProgress::Clock::time_point now);
  /// Another run of the graph: ages count from now.
  void restart_watch();
  /// Whether somebody was warned of what waits in this run.
  [[nodiscard]] bool& warned() { return warned_; }

 private:
  void write_after(const Event& event, std::uint32_t value);

  Rank self_;
  Event written_;
  cudaStream_t writes_ = nullptr;
  std::uint32_t* word_ = nullptr;
  RecordedProgress progress_;
  bool warned_ = false;
};

}  // namespace autopar::detail
