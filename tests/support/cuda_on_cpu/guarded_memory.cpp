#include "cuda_on_cpu/guarded_memory.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include <autopar/core/error.hpp>

namespace cuda_on_cpu {

namespace {

constexpr std::size_t kPackBytes = 16;
constexpr std::byte kUntouched{0xff};

std::size_t page() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

GuardedMemory::GuardedMemory(std::string name, std::size_t bytes) : name_(std::move(name)), bytes_(bytes) {
  body_ = round_up(std::max<std::size_t>(bytes, 1), page());
  void* const mapped = mmap(nullptr, body_ + 2 * page(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED)
    throw autopar::Error("no memory for '" + name_ + "' of " + std::to_string(bytes) + " bytes: " + strerror(errno));
  pages_ = static_cast<std::byte*>(mapped);
  if (mprotect(pages_ + page(), body_, PROT_READ | PROT_WRITE) != 0) {
    munmap(pages_, body_ + 2 * page());
    throw autopar::Error("the pages of '" + name_ + "' cannot be opened: " + strerror(errno));
  }
  std::fill_n(pages_ + page(), body_, kUntouched);
  begin_ = pages_ + page() + body_ - round_up(bytes, kPackBytes);
}

GuardedMemory::~GuardedMemory() { munmap(pages_, body_ + 2 * page()); }

void GuardedMemory::make_read_only() const { mprotect(pages_ + page(), body_, PROT_READ); }

void GuardedMemory::check_surroundings() const {
  const auto is_untouched = [](std::byte byte) { return byte == kUntouched; };
  const auto* const end = begin_ + bytes_;
  const auto* const body = pages_ + page();
  const auto* const before = std::find_if_not(body, static_cast<const std::byte*>(begin_), is_untouched);
  if (before != begin_)
    throw autopar::Error("written " + std::to_string(begin_ - before) + " bytes before the begin of '" + name_ + "'");
  const auto* const behind = std::find_if_not(end, body + body_, is_untouched);
  if (behind != body + body_)
    throw autopar::Error("written " + std::to_string(behind - end) + " bytes behind the end of '" + name_ + "'");
}

std::optional<std::string> GuardedMemory::describe(const void* address) const {
  const auto* const at = static_cast<const std::byte*>(address);
  if (at < pages_ || at >= pages_ + body_ + 2 * page()) return std::nullopt;
  if (at < begin_) return std::to_string(begin_ - at) + " bytes before the begin of '" + name_ + "'";
  if (at < begin_ + bytes_) return "'" + name_ + "', which is only read,";
  return std::to_string(at - (begin_ + bytes_)) + " bytes behind the end of '" + name_ + "'";
}

}  // namespace cuda_on_cpu
