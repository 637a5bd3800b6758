#include "torch/device/kept_files.hpp"

#include <fstream>
#include <ios>
#include <sstream>
#include <system_error>

#include <unistd.h>

namespace autopar {

std::string content_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return stream ? text.str() : std::string();
}

void keep_file(const std::filesystem::path& file, const std::string& content) {
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  auto part = file;
  part += "." + std::to_string(getpid()) + "." + std::to_string(gettid());  // other threads may write it as well
  if (std::ofstream stream(part, std::ios::binary);
      !stream.write(content.data(), static_cast<std::streamsize>(content.size())))
    return;
  std::filesystem::rename(part, file, error);
  if (error) std::filesystem::remove(part, error);
}

}  // namespace autopar
