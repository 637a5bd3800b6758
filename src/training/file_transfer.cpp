#include "file_transfer.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <autopar/core/error.hpp>
#include <autopar/io/regular_file.hpp>

namespace autopar::training {

namespace {

constexpr const char* kTransferAction = "copying a snapshot";
constexpr std::int64_t kPortion = 16 << 20;  // bytes

std::string system_error(const std::filesystem::path& file, const char* what) {
  return file.string() + " cannot be " + what + ": " + std::strerror(errno);
}

bool read_at(int descriptor, std::span<std::byte> out, std::int64_t position) {
  while (!out.empty()) {
    const auto got = ::pread(descriptor, out.data(), out.size(), position);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    out = out.subspan(static_cast<std::size_t>(got));
    position += got;
  }
  return true;
}

bool write_all(int descriptor, std::span<const std::byte> data) {
  while (!data.empty()) {
    const auto written = ::write(descriptor, data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data = data.subspan(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

std::string send_file(World& world, const std::filesystem::path& file, Bytes bytes, Rank to) {
  std::string failure;
  RegularFile opened;
  try {
    opened = open_regular(file, Links::kRefused);
  } catch (const Error& error) {
    failure = error.what();
  }
  std::vector<std::byte> portion(static_cast<std::size_t>(std::min(kPortion, bytes.value())));
  for (std::int64_t sent = 0; sent < bytes.value();) {
    const auto part = std::span(portion).first(static_cast<std::size_t>(std::min(kPortion, bytes.value() - sent)));
    if (failure.empty() && !read_at(opened.descriptor(), part, sent)) failure = system_error(file, "read");
    if (!failure.empty()) std::ranges::fill(part, std::byte(0));
    world.send(part, to, kTransferAction);
    sent += static_cast<std::int64_t>(part.size());
  }
  return failure;
}

std::string receive_file(World& world, const std::filesystem::path& file, Bytes bytes, Rank from) {
  std::string failure;
  ::unlink(file.c_str());
  constexpr mode_t kOwnerReads = 0600;
  const RegularFile opened(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kOwnerReads));
  if (opened.descriptor() < 0) failure = system_error(file, "made");
  std::vector<std::byte> portion(static_cast<std::size_t>(std::min(kPortion, bytes.value())));
  for (std::int64_t received = 0; received < bytes.value();) {
    const auto part = std::span(portion).first(static_cast<std::size_t>(std::min(kPortion, bytes.value() - received)));
    world.receive(part, from, kTransferAction);
    if (failure.empty() && !write_all(opened.descriptor(), part)) failure = system_error(file, "written");
    received += static_cast<std::int64_t>(part.size());
  }
  return failure;
}

}  // namespace autopar::training
