#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <cuda_runtime_api.h>

#include <autopar/core/ids.hpp>
#include <autopar/runtime/any_transport.hpp>

#include "recorded_lanes.hpp"

namespace autopar::detail {

/// Whether work that is given to the stream becomes part of a CUDA graph.
[[nodiscard]] bool is_capturing(cudaStream_t stream, Rank self);

/// The operations of a CUDA graph. When it runs, nobody on the host knows how far it is; so the graph writes, before
/// and after each operation, to a word of host memory for the operation's stream.
class NcclRecording final : public RecordedOperations {
 public:
  explicit NcclRecording(Rank self);
  ~NcclRecording() override;

  // ---- while the graph is captured

  /// Right before an operation on a stream that is being captured.
  void begin(cudaStream_t stream, std::string action, Rank peer);
  /// Right after it.
  void end(cudaStream_t stream);

  // ---- while the graph runs; one caller at a time

  [[nodiscard]] std::optional<RecordedLanes::Waiting> longest_waiting(RecordedLanes::Clock::time_point now);
  /// Another run of the graph: ages count from now.
  void restart_watch();
  /// Whether somebody was warned of what waits in this run.
  [[nodiscard]] bool& warned() { return warned_; }

 private:
  void write(cudaStream_t stream, const RecordedLanes::Mark& mark);

  static constexpr std::size_t kWords = 1024;  ///< streams at most: two for each other rank, and groups

  Rank self_;
  std::uint32_t* words_ = nullptr;
  RecordedLanes lanes_;
  bool warned_ = false;
};

}  // namespace autopar::detail
