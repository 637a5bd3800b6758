#pragma once

#include <cstdint>
#include <optional>

namespace autopar {

/// How a checkpoint lies in its folder. A checkpoint of either format loads under any plan and number of ranks.
enum class CheckpointFormat : std::uint8_t {
  /// `model.safetensors` with the module's own names, and `optimizer.safetensors`. Rank 0 writes both; the others send
  /// it what they hold.
  kSingleFile,
  /// Files of each rank with what it holds. All ranks must see the folder, as on a shared file system.
  kSharded,
};

[[nodiscard]] constexpr CheckpointFormat single_file() { return CheckpointFormat::kSingleFile; }
[[nodiscard]] constexpr CheckpointFormat sharded() { return CheckpointFormat::kSharded; }

/// How to save a checkpoint; equal on all ranks: `model->save(folder, optimizer, {.wait = false})`.
struct SaveOptions {
  std::optional<CheckpointFormat> format{};  ///< none: a single file on one rank, else sharded
  /// false: `save` returns when this rank has copied what it holds to host memory, and a thread writes it. Errors are
  /// thrown by a later call of the model, on all ranks. `model->wait()` waits for the end.
  bool wait = true;
};

}  // namespace autopar
