#include <autopar/io/free_space.hpp>

#include <cstdint>
#include <limits>
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
  const auto space = std::filesystem::space(existing, error);
  if (error || space.available == std::numeric_limits<std::uintmax_t>::max()) return;
  if (needed.value() <= 0 || static_cast<std::uintmax_t>(needed.value()) <= space.available) return;
  throw CheckpointError(folder.string() + ": " + std::to_string(needed.value()) + " bytes are needed, " +
                        std::to_string(space.available) +
                        " are available on its file system; free some, or name "
                        "another folder");
}

}  // namespace autopar
