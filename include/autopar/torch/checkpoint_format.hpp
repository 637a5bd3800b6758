#pragma once

#include <memory>
#include <string_view>
#include <utility>

namespace autopar {

namespace checkpoint {
class Format;
}

/// How a checkpoint lies on disk, as a value: `model->save(folder, optimizer, {.format = ap::single_file()})`.
class CheckpointFormat {
 public:
  explicit CheckpointFormat(std::shared_ptr<const checkpoint::Format> format) : format_(std::move(format)) {}

  /// For messages and comparisons between ranks, such as "single_file".
  [[nodiscard]] std::string_view name() const;
  /// For autopar itself.
  [[nodiscard]] const checkpoint::Format& get() const { return *format_; }

 private:
  std::shared_ptr<const checkpoint::Format> format_;
};

/// One safetensors file, `model.safetensors` in the folder. Rank 0 writes and reads it, one tensor at a time.
[[nodiscard]] CheckpointFormat single_file();

/// How to save a checkpoint; equal on all ranks.
struct SaveOptions {
  CheckpointFormat format = single_file();
};

}  // namespace autopar
