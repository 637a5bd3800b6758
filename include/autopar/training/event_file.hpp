#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <autopar/training/values.hpp>

namespace autopar::training {

/// CRC32C (Castagnoli). @source RFC 3720, appendix B.4
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes);

/// The file that TensorBoard shows scalars from: records of TensorFlow's framing that hold `Event` messages.
/// @source tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto, framework/summary.proto
class EventFile {
 public:
  /// Makes `events.out.tfevents.<time>.<host>.<process>` in the folder. TensorBoard reads it behind those of earlier
  /// starts of a run, and then drops what these have of steps after `after`.
  /// @throws ConfigError if it cannot be written
  EventFile(const std::filesystem::path& folder, std::int64_t after);

  /// @param time  seconds since 1970
  void write(double time, std::int64_t step, const Values& values);

 private:
  void write_record(std::string_view event);

  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace autopar::training
