#include <autopar/io/file.hpp>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <span>
#include <system_error>

#include <autopar/core/error.hpp>

#include "atomic_file.hpp"

namespace autopar {

std::string read_text_file(const std::filesystem::path& path, Bytes limit) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) throw ConfigError("cannot read the file: " + error.message(), path.string());
  if (size > static_cast<std::uintmax_t>(limit.value())) {
    throw ConfigError("the file has " + std::to_string(size) + " bytes; at most " + std::to_string(limit.value()) +
                          " are read",
                      path.string());
  }
  std::ifstream in(path, std::ios::binary);
  std::string text(size, '\0');
  in.read(text.data(), static_cast<std::streamsize>(size));
  if (!in) throw ConfigError("cannot read the file: " + std::string(std::strerror(errno)), path.string());
  return text;
}

void write_text_file(const std::filesystem::path& path, std::string_view content) {
  try {
    detail::AtomicFile file(path);
    file.write(std::as_bytes(std::span(content.data(), content.size())));
    file.commit();
  } catch (const std::system_error& error) {
    throw ConfigError(std::string("cannot write the file: ") + error.what(), path.string());
  }
}

}  // namespace autopar
