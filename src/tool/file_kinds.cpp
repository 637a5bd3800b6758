#include "file_kinds.hpp"

#include <filesystem>
#include <fstream>
#include <string_view>

#include <autopar/core/error.hpp>

namespace autopar::tool {

namespace {

std::string head_of(const std::string& path) {
  constexpr std::size_t kMost = 4096;
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(path, unknown)) return {};
  std::string text(kMost, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

std::string article(const std::string& kind) {
  const bool has_none = kind == "costs" || kind == "options";
  return has_none ? kind : (kind.find_first_of("aeiou") == 0 ? "an " : "a ") + kind;
}

}  // namespace

std::string kind_of_file(const std::string& path) {
  const std::string head = head_of(path);
  const auto first = head.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return {};
  if (head[first] == '{') {
    constexpr std::string_view kMark = "\"autopar ";
    const auto mark = head.find(kMark);
    if (head.find("\"format\"") == std::string::npos || mark == std::string::npos) return {};
    const auto start = mark + kMark.size();
    return head.substr(start, head.find_first_of(" \"", start) - start);
  }
  const bool is_cluster = head.find("[device]") != std::string::npos && head.find("devices") != std::string::npos;
  return is_cluster ? "cluster" : "";
}

void require_kinds(const std::vector<FileArgument>& arguments, const std::string& usage) {
  for (const auto& argument : arguments) {
    const auto kind = argument.path.empty() ? std::string() : kind_of_file(argument.path);
    if (kind.empty() || kind == argument.kind) continue;
    throw InvalidArgument("'" + argument.path + "' is " + article(kind) + ", and " + argument.name + " is to be " +
                          article(argument.kind) + "; the order is '" + usage + "'");
  }
}

}  // namespace autopar::tool
