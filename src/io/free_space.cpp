#include <autopar/io/free_space.hpp>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <system_error>

#include <autopar/core/error.hpp>

namespace autopar {

void require_space(const std::filesystem::path& folder, Bytes needed) {
  std::error_code error;
  auto existing = std::filesystem::absolute(folder, error);
  while (!error && !std::filesystem::exists(existing, error) && !error && existing.has_relative_path())
    existing = existing.parent_path();
  if (error) return;
  const auto available = free_space(existing);
  if (!available || needed <= Bytes(0) || needed <= *available) return;
  throw CheckpointError(folder.string() + ": " + std::to_string(needed.value()) + " bytes are needed, " +
                        std::to_string(available->value()) +
                        " are available on its file system; free some, or name "
                        "another folder");
}

std::optional<Bytes> free_space(const std::filesystem::path& folder) {
  std::error_code error;
  const auto space = std::filesystem::space(folder, error);
  if (error || space.available == std::numeric_limits<std::uintmax_t>::max()) return std::nullopt;
  constexpr std::uintmax_t kMost = std::numeric_limits<std::int64_t>::max();
  return Bytes(static_cast<std::int64_t>(std::min(space.available, kMost)));
}

std::optional<Bytes> available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string name, line; std::getline(file, line);) {
    std::istringstream words(line);
    std::int64_t kibibytes = 0;
    if (words >> name >> kibibytes && name == "MemAvailable:") return Bytes(kibibytes << 10);
  }
  return std::nullopt;
}

}  // namespace autopar
