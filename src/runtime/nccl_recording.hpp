#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/runtime/any_transport.hpp>

namespace autopar::detail {

/// Whether work that is given to the stream becomes part of a CUDA graph.
[[nodiscard]] bool is_capturing(cudaStream_t stream, Rank self);

/// The operations of a CUDA graph. When it runs, nobody on the host knows how far it is; so the graph writes, before
/// and after each operation, to a word of host memory for the operation's stream.
class NcclRecording final : public RecordedOperations {
 public:
  using Clock = std::chrono::steady_clock;

  explicit NcclRecording(Rank self);
  ~NcclRecording() override;

  // ---- while the graph is captured

  /// Right before an operation on a stream that is being captured.
  void begin(cudaStream_t stream, std::string action, Rank peer);
  /// Right after it.
  void end(cudaStream_t stream);

  // ---- while the graph runs; one caller at a time

  struct Waiting {
    std::string action;
    Rank peer;    ///< none: other members of a group
    Seconds age;  ///< since it was first seen
  };
  /// The operation that began and has not ended for the longest time; nothing if there is none.
  [[nodiscard]] std::optional<Waiting> longest_waiting(Clock::time_point now);
  /// Another run of the graph: ages count from now.
  void restart_watch();
  /// Whether somebody was warned of what waits in this run.
  [[nodiscard]] bool& warned() { return warned_; }

 private:
  struct Operation {
    std::string action;
    Rank peer;
  };
  /// Of one stream. Its word counts begins and ends, so it is odd while an operation runs.
  struct Lane {
    std::size_t word;
    std::vector<Operation> operations;
    std::uint32_t seen = 0;
    Clock::time_point since{};
  };
  void write(cudaStream_t stream, std::size_t word, std::size_t value);

  static constexpr std::size_t kWords = 1024;  ///< streams at most: two for each other rank, and groups

  Rank self_;
  std::uint32_t* words_ = nullptr;
  std::map<cudaStream_t, Lane> lanes_;
  bool warned_ = false;
};

}  // namespace autopar::detail
