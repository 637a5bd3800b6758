#include "corpus.hpp"

#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>

#include "text/text_files.hpp"

namespace {

namespace fs = std::filesystem;

constexpr const char* kTokens = "tokens.int32";

Corpus mapped(const fs::path& folder) {
  auto vocabulary = read_vocabulary(vocabulary_file(folder));
  const auto file = folder / kTokens;
  const auto bytes = fs::file_size(file);
  constexpr auto kSize = sizeof(Vocabulary::Token);
  if (bytes == 0 || bytes % kSize != 0) {
    throw std::runtime_error(file.string() + ": " + std::to_string(bytes) + " bytes are no tokens of " +
                             std::to_string(kSize) + " bytes; write them again with --write-tokens");
  }
  const auto count = static_cast<std::int64_t>(bytes / kSize);
  return {std::move(vocabulary), torch::from_file(file.string(), false, count, torch::kInt)};
}

}  // namespace

fs::path vocabulary_file(const fs::path& folder) { return folder / "vocabulary.txt"; }

Vocabulary read_vocabulary(const fs::path& file) {
  try {
    return Vocabulary::parsed(autopar::read_text_file(file));
  } catch (const std::runtime_error& error) {
    const std::string what = error.what();
    throw std::runtime_error(what.starts_with("line") ? file.string() + ", " + what : what);
  }
}

Corpus read_corpus(const Settings& settings) {
  if (!settings.tokens.empty()) return mapped(settings.tokens);
  const auto text = read_texts({settings.data.begin(), settings.data.end()});
  const auto& wanted = settings.vocabulary;
  auto vocabulary = [&] {
    if (settings.resume) return read_vocabulary(vocabulary_file(settings.out));
    if (wanted == "bytes") return Vocabulary();
    const bool is_number = wanted.find_first_not_of("0123456789") == std::string::npos;
    return is_number ? Vocabulary::learnt(text, std::stoll(wanted)) : read_vocabulary(wanted);
  }();
  const auto tokens = vocabulary.encoded(text);
  return {std::move(vocabulary), torch::tensor(tokens, torch::kInt)};
}

void write_corpus(const Corpus& corpus, const fs::path& folder) {
  fs::create_directories(folder);
  const auto file = folder / kTokens;
  std::ofstream out(file, std::ios::binary);
  out.write(static_cast<const char*>(corpus.tokens.const_data_ptr()),
            static_cast<std::streamsize>(corpus.tokens.nbytes()));
  out.close();
  if (!out) throw autopar::ConfigError("cannot write the tokens; is the disk full?", file.string());
  autopar::write_text_file(vocabulary_file(folder), corpus.vocabulary.file_text());
}
