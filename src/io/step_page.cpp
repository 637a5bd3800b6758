#include <autopar/io/step_page.hpp>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>

#include <fcntl.h>
#include <unistd.h>

#include <autopar/core/error.hpp>
#include <autopar/io/checksum.hpp>

namespace autopar {

namespace {

struct Page {
  StepReached reached;
  std::uint64_t checksum = 0;
};

std::uint64_t checksum_of(const StepReached& reached) { return checksum(std::as_bytes(std::span(&reached, 1))); }

}  // namespace

StepPage::StepPage(const std::filesystem::path& file) {
  require_regular(file);
  file_ = RegularFile(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (file_.descriptor() < 0) throw ConfigError(std::strerror(errno), file.string());
}

void StepPage::reach(const StepReached& reached) noexcept {
  const Page page{reached, checksum_of(reached)};
  static_cast<void>(!::pwrite(file_.descriptor(), &page, sizeof page, 0));
}

std::optional<StepReached> step_reached(const std::filesystem::path& file) {
  try {
    const auto opened = open_regular(file);
    constexpr int kAttempts = 3;  // a writer may be between two bytes
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      Page page;
      if (::pread(opened.descriptor(), &page, sizeof page, 0) != sizeof page) continue;
      if (page.checksum == checksum_of(page.reached) && page.reached.step >= 0 && std::isfinite(page.reached.time))
        return page.reached;
    }
  } catch (const ConfigError&) {
  }
  return std::nullopt;
}

}  // namespace autopar
