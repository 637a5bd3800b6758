#include "text/text_files.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace {

namespace fs = std::filesystem;

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) throw std::runtime_error(path.string() + ": cannot read the file");
  return text;
}

bool looks_binary(const std::string& text) { return text.substr(0, 8192).find('\0') != std::string::npos; }

std::vector<fs::path> files_within(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && !entry.is_symlink()) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

std::string read_texts(const std::vector<fs::path>& paths) {
  std::string all;
  for (const auto& path : paths) {
    if (!fs::exists(path)) {
      throw std::runtime_error(path.string() + ": there is no such file or folder; --data names texts to learn");
    }
    if (!fs::is_directory(path)) {
      all += content(path);
      continue;
    }
    for (const auto& file : files_within(path)) {
      const auto text = content(file);
      if (!looks_binary(text)) all += text;
    }
  }
  if (all.empty()) throw std::runtime_error(paths.front().string() + ": there is no text in it; --data names texts");
  return all;
}
