#include <autopar/io/host_name.hpp>
#include <autopar/training/event_file.hpp>

#include <array>
#include <bit>
#include <cstring>

#include <unistd.h>

#include <autopar/core/error.hpp>
#include <autopar/io/wall_clock.hpp>

namespace autopar::training {

namespace {

// ---- little-endian numbers, as the framing has them

template <class Number>
std::string bytes_of(Number number) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof(number), '\0');
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

/// A CRC over data that hold CRCs is weak; so the format keeps it rotated and moved.
std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8u; }

// ---- protocol buffers' wire format

enum class Wire : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string varint(std::uint64_t number) {
  std::string bytes;
  for (; number >= 0x80; number >>= 7) bytes += static_cast<char>(number | 0x80);
  return bytes + static_cast<char>(number);
}

std::string key(unsigned field, Wire wire) { return varint(field << 3 | static_cast<unsigned>(wire)); }

std::string field(unsigned number, std::string_view bytes) {
  return key(number, Wire::kBytes) + varint(bytes.size()) + std::string(bytes);
}
std::string field(unsigned number, std::uint64_t value) { return key(number, Wire::kVarint) + varint(value); }
std::string field(unsigned number, double value) { return key(number, Wire::kFixed64) + bytes_of(value); }
std::string field(unsigned number, float value) { return key(number, Wire::kFixed32) + bytes_of(value); }

// ---- the messages: numbers of fields as in event.proto and summary.proto

std::string event(double time, std::int64_t step, unsigned what, std::string_view content) {
  return field(1, time) + field(2, static_cast<std::uint64_t>(step)) + field(what, content);
}

constexpr unsigned kFileVersion = 3, kSummary = 5, kSessionLog = 7;
constexpr std::uint64_t kStart = 1;  // SessionLog.SessionStatus

std::filesystem::path made_path(const std::filesystem::path& folder) {
  for (int serial = 0;; ++serial) {  // two starts within a second
    auto path = folder / ("events.out.tfevents." + std::to_string(static_cast<std::int64_t>(seconds_since_1970())) +
                          "." + host_name() + "." + std::to_string(::getpid()) + "." + std::to_string(serial));
    if (!std::filesystem::exists(path)) return path;
  }
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> entries{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      entries[i] = i;
      for (int bit = 0; bit < 8; ++bit) entries[i] = entries[i] >> 1 ^ ((entries[i] & 1) != 0 ? 0x82f63b78u : 0u);
    }
    return entries;
  }();
  std::uint32_t crc = ~0u;
  for (const char byte : bytes) crc = table[(crc ^ static_cast<unsigned char>(byte)) & 0xffu] ^ crc >> 8;
  return ~crc;
}

EventFile::EventFile(const std::filesystem::path& folder, std::int64_t after)
    : path_(made_path(folder)), file_(path_, std::ios::binary) {
  write_record(event(seconds_since_1970(), 0, kFileVersion, "brain.Event:2"));
  if (after > 0) write_record(event(seconds_since_1970(), after + 1, kSessionLog, field(1, kStart)));
}

void EventFile::write(double time, std::int64_t step, const Values& values) {
  std::string summary;
  for (const auto& [name, value] : values) summary += field(1, field(1, name) + field(2, static_cast<float>(value)));
  write_record(event(time, step, kSummary, summary));
}

void EventFile::write_record(std::string_view event) {
  const auto length = bytes_of(static_cast<std::uint64_t>(event.size()));
  file_ << length << bytes_of(masked(crc32c(length))) << event << bytes_of(masked(crc32c(event))) << std::flush;
  if (!file_) throw ConfigError("cannot write the file; is the disk full?", path_.string());
}

}  // namespace autopar::training
