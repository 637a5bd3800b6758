#include "documents.hpp"

#include <algorithm>
#include <cctype>
#include <stdexcept>

namespace bert_data {
namespace {

bool is_blank(std::string_view line) {
  return std::all_of(line.begin(), line.end(), [](unsigned char c) { return std::isspace(c) != 0; });
}

bool is_one_of(char c, std::string_view of) { return of.find(c) != std::string_view::npos; }

/// Whether the full stop at `at` belongs to a single letter.
bool ends_initial(std::string_view prose, std::size_t at) {
  if (at == 0 || std::isalpha(static_cast<unsigned char>(prose[at - 1])) == 0) return false;
  return at == 1 || is_one_of(prose[at - 2], " .(");
}

/// Cuts a paragraph into sentences.
void cut(std::string_view prose, const std::function<void(std::string_view)>& sentence) {
  std::size_t begin = 0;
  const auto emit = [&](std::size_t end) {
    if (!is_blank(prose.substr(begin, end - begin))) sentence(prose.substr(begin, end - begin));
    begin = end;
  };
  for (std::size_t i = 0; i < prose.size(); ++i) {
    if (!is_one_of(prose[i], ".!?")) continue;
    if (prose[i] == '.' && ends_initial(prose, i)) continue;
    std::size_t end = i + 1;
    while (end < prose.size() && is_one_of(prose[end], ".!?\"')]")) ++end;
    if (end + 1 >= prose.size() || prose[end] != ' ') continue;
    if (std::islower(static_cast<unsigned char>(prose[end + 1])) != 0) continue;
    emit(end);
    begin = end + 1;
    i = end;
  }
  emit(prose.size());
}

}  // namespace

void read_documents(std::istream& in, Format format, const std::function<void(std::string_view)>& sentence,
                    const std::function<void()>& end) {
  bool has_sentence = false;
  const auto found = [&](std::string_view one) {
    has_sentence = true;
    sentence(one);
  };
  std::string paragraph;
  for (std::string line; std::getline(in, line);) {
    if (format == Format::kSentences) {
      if (!is_blank(line)) {
        found(line);
      } else if (has_sentence) {
        end();
        has_sentence = false;
      }
    } else if (is_blank(line)) {
      cut(paragraph, found);
      paragraph.clear();
    } else {
      std::replace_if(
          line.begin(), line.end(), [](unsigned char c) { return std::isspace(c) != 0; }, ' ');
      const auto first = line.find_first_not_of(' '), last = line.find_last_not_of(' ');
      if (!paragraph.empty()) paragraph += ' ';
      paragraph.append(line, first, last - first + 1);
    }
  }
  cut(paragraph, found);
  if (has_sentence) end();
}

std::vector<std::filesystem::path> text_files(const std::vector<std::string>& names) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  for (const auto& name : names) {
    if (fs::is_directory(name)) {
      for (const auto& entry : fs::recursive_directory_iterator(name)) {
        if (entry.is_regular_file()) files.push_back(entry.path());
      }
    } else if (fs::exists(name)) {
      files.emplace_back(name);
    } else {
      throw std::runtime_error(name + ": there is no such file or folder");
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace bert_data
