#include "snapshot_files.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <iomanip>
#include <optional>
#include <span>
#include <sstream>
#include <system_error>

#include <sys/stat.h>
#include <unistd.h>

#include <autopar/core/error.hpp>
#include <autopar/io/checksum.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/regular_file.hpp>
#include <autopar/io/safetensors.hpp>
#include <autopar/io/snapshot_folder.hpp>

#include "place_text.hpp"

namespace autopar::training {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMarkFile = "snapshot";
constexpr const char* kIndexFile = "index.json";
constexpr const char* kPrefix = "step-";
constexpr std::int64_t kMostMark = 1 << 16, kMostIndex = 1 << 30;

std::uint64_t checksum_of(const std::string& text) { return checksum(std::as_bytes(std::span(text))); }

std::string hexadecimal(std::uint64_t value) {
  std::ostringstream text;
  text << std::hex << std::setw(16) << std::setfill('0') << value;
  return text.str();
}

bool has_other_writers(const struct stat& status) {
  return status.st_uid != ::geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0;
}

/// @throws Error with what it is instead of a file that this user alone may write
RegularFile open_private(const fs::path& path) {
  auto file = open_regular(path, Links::kRefused);
  struct stat status {};
  if (::fstat(file.descriptor(), &status) == 0 && !has_other_writers(status)) return file;
  throw ConfigError("others than this user may have written it", path.string());
}

std::string read_private(const fs::path& path, std::int64_t most) {
  const auto file = open_private(path);
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0 || status.st_size > most)
    throw ConfigError("it is larger than " + std::to_string(most) + " bytes", path.string());
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  for (std::size_t done = 0; done < text.size();) {
    const auto got = ::pread(file.descriptor(), text.data() + done, text.size() - done, static_cast<::off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw ConfigError("cannot be read", path.string());
    done += static_cast<std::size_t>(got);
  }
  return text;
}

void write_private(const fs::path& path, const std::string& text) {
  write_text_file(path, text);
  make_private(path);
}

/// Of a folder's name.
std::optional<std::int64_t> step_in(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const char* const begin = name.data() + std::strlen(kPrefix);
  const char* const end = name.data() + name.size();
  std::int64_t step = 0;
  const auto [at, error] = std::from_chars(begin, end, step);
  return error == std::errc() && at == end && step >= 0 ? std::optional(step) : std::nullopt;
}

std::vector<std::pair<std::int64_t, fs::path>> folders_of(const fs::path& run) {
  std::vector<std::pair<std::int64_t, fs::path>> folders;
  std::error_code error;
  for (fs::directory_iterator at(run, error), end; !error && at != end; at.increment(error)) {
    if (const auto step = step_in(at->path().filename().string())) folders.emplace_back(*step, at->path());
  }
  return folders;
}

}  // namespace

fs::path snapshot_of_step(const fs::path& run, std::int64_t step) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "%s%08lld", kPrefix, static_cast<long long>(step));
  return run / name.data();
}

std::string mark_text(const std::string& place, const std::string& index) {
  const auto said = place + '\n' + hexadecimal(checksum_of(index)) + '\n';
  return said + hexadecimal(checksum_of(said)) + '\n';
}

SnapshotMark read_mark(const std::string& text, const fs::path& file) {
  std::istringstream lines(text);
  std::string place, index, sum;
  std::getline(lines, place);
  std::getline(lines, index);
  std::getline(lines, sum);
  SnapshotMark mark;
  const auto [at, error] = std::from_chars(index.data(), index.data() + index.size(), mark.index, 16);
  const bool is_right = error == std::errc() && at == index.data() + index.size() &&
                        text == place + '\n' + index + '\n' + sum + '\n' &&
                        sum == hexadecimal(checksum_of(place + '\n' + index + '\n'));
  if (!is_right) throw InvalidArgument(file.string() + " is damaged: its checksum is wrong");
  mark.place = read_place(place, file);
  mark.text = text;
  return mark;
}

std::vector<SnapshotMark> marked_snapshots(const fs::path& run, std::vector<std::string>& damaged) {
  std::vector<SnapshotMark> found;
  for (const auto& [step, folder] : folders_of(run)) {
    struct stat status {};
    const auto file = folder / kMarkFile;
    if (::lstat(file.c_str(), &status) != 0) continue;  // a half one
    try {
      if (!is_private_folder(folder)) throw InvalidArgument(folder.string() + " is no folder of this user alone");
      auto mark = read_mark(read_private(file, kMostMark), file);
      if (mark.place.step != step) throw InvalidArgument(file.string() + " is of another step");
      static_cast<void>(read_index_of(folder, mark));
      found.push_back(std::move(mark));
    } catch (const Error& error) {
      damaged.emplace_back(error.what());
    }
  }
  return found;
}

std::string read_index_of(const fs::path& snapshot, const SnapshotMark& mark) {
  const auto file = snapshot / kIndexFile;
  auto text = read_private(file, kMostIndex);
  if (checksum_of(text) == mark.index) return text;
  throw InvalidArgument(file.string() + " is damaged: its checksum is wrong");
}

void mark_complete(const fs::path& snapshot, const std::string& index, const std::string& mark) {
  write_private(snapshot / kIndexFile, index);
  write_private(snapshot / kMarkFile, mark);
}

bool is_whole(const fs::path& snapshot, const CheckpointFile& file) {
  const auto path = snapshot / file.name;
  struct stat status {};
  if (!is_private_folder(snapshot) || ::lstat(path.c_str(), &status) != 0) return false;
  try {
    static_cast<void>(open_private(path));
    const SafetensorsReader reader(path);
    if (reader.size() != file.bytes || reader.header_checksum() != file.header_checksum || !reader.has_checksums())
      throw InvalidArgument(path.string() + " is another file");
    std::vector<std::byte> memory;
    for (const auto& entry : reader.entries()) {
      const auto bytes = static_cast<std::size_t>(entry.bytes().value());
      memory.resize(std::max(memory.size(), bytes));
      reader.read(entry.name, std::span(memory).first(bytes));
    }
    return true;
  } catch (const std::exception&) {
    std::error_code ignored;
    fs::remove(path, ignored);
    return false;
  }
}

void make_private(const fs::path& file) {
  constexpr mode_t kOwnerReads = 0600;
  if (::chmod(file.c_str(), kOwnerReads) != 0)
    throw InvalidArgument(file.string() + ": its mode cannot be set: " + std::strerror(errno));
}

void remove_snapshots_but(const fs::path& run, std::int64_t step) {
  for (const auto& [other, folder] : folders_of(run)) {
    std::error_code ignored;
    if (other != step) fs::remove_all(folder, ignored);
  }
}

}  // namespace autopar::training
