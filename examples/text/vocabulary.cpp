#include "text/vocabulary.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <queue>
#include <set>
#include <sstream>
#include <stdexcept>
#include <unordered_map>

namespace {

using Token = Vocabulary::Token;
using Pair = Vocabulary::Pair;

constexpr Token kBytes = 256;
constexpr std::size_t kLongestWord = 64;
constexpr const char* kHead =
    "# autopar example vocabulary: the numbers that become 256, 257, ..., and what they spell";

enum class Kind : std::uint8_t { kLetter, kDigit, kSpace, kOther };

Kind kind_of(char letter) {
  const auto byte = static_cast<unsigned char>(letter);
  if (byte >= 0x80 || std::isalpha(byte) != 0) return Kind::kLetter;  // so are other scripts' letters, in UTF-8
  if (std::isdigit(byte) != 0) return Kind::kDigit;
  return std::isspace(byte) != 0 ? Kind::kSpace : Kind::kOther;
}

std::vector<Token> bytes_of(std::string_view word) {
  std::vector<Token> tokens;
  for (const char letter : word) tokens.push_back(static_cast<unsigned char>(letter));
  return tokens;
}

/// Replaces the pair, from the left, wherever it is.
void merge(std::vector<Token>& tokens, Pair pair, Token merged) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool is_pair = i + 1 < tokens.size() && tokens[i] == pair.first && tokens[i + 1] == pair.second;
    tokens[kept++] = is_pair ? merged : tokens[i];
    if (is_pair) ++i;
  }
  tokens.resize(kept);
}

/// Different words of a text, how often each is there, and how often pairs are.
class PairCounts {
 public:
  explicit PairCounts(std::string_view text) {
    std::unordered_map<std::string_view, std::int64_t> counts;
    for (const auto word : words_of(text)) ++counts[word];
    std::vector<std::pair<std::string_view, std::int64_t>> sorted(counts.begin(), counts.end());
    std::sort(sorted.begin(), sorted.end());  // on all ranks alike
    for (const auto& [word, often] : sorted) words_.push_back({bytes_of(word), often});
    for (std::size_t w = 0; w < words_.size(); ++w) count(w, +1);
    for (const auto& [pair, often] : counts_) candidates_.push({often, pair});
  }

  /// The commonest pair, of equal ones the last; nothing occurs twice: {-1, -1}.
  Pair commonest() {
    while (!candidates_.empty()) {
      const auto [often, pair] = candidates_.top();
      candidates_.pop();
      if (often < 2) break;
      if (counts_[pair] == often) return pair;  // else it was counted before a merge
    }
    return {-1, -1};
  }

  void merge_everywhere(Pair pair, Token merged) {
    const auto where = std::move(words_with_[pair]);
    words_with_.erase(pair);
    std::set<Pair> changed;
    for (const auto w : where) {
      count(w, -1, &changed);
      merge(words_[w].tokens, pair, merged);
      count(w, +1, &changed);
    }
    for (const auto& each : changed) {
      if (counts_[each] > 0) candidates_.push({counts_[each], each});
    }
  }

 private:
  struct Word {
    std::vector<Token> tokens;
    std::int64_t often;
  };

  void count(std::size_t w, int sign, std::set<Pair>* changed = nullptr) {
    const auto& [tokens, often] = words_[w];
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const Pair pair{tokens[i], tokens[i + 1]};
      counts_[pair] += sign * often;
      if (sign > 0) words_with_[pair].insert(w);
      if (changed != nullptr) changed->insert(pair);
    }
  }

  std::vector<Word> words_;
  std::map<Pair, std::int64_t> counts_;
  std::map<Pair, std::set<std::size_t>> words_with_;
  std::priority_queue<std::pair<std::int64_t, Pair>> candidates_;
};

std::string readable(std::string_view bytes) {
  std::string text;
  for (const char letter : bytes) {
    std::array<char, 8> code{};
    const auto byte = static_cast<unsigned char>(letter);
    const bool is_plain = byte > ' ' && byte < 0x7f && letter != '\\';
    std::snprintf(code.data(), code.size(), is_plain ? "%c" : "\\x%02x", byte);
    text += code.data();
  }
  return text;
}

}  // namespace

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = begin + 1;
    const bool leads = text[begin] == ' ' && end < text.size() && kind_of(text[end]) != Kind::kSpace;
    const auto kind = kind_of(text[begin + (leads ? 1 : 0)]);
    while (end < text.size() && kind_of(text[end]) == kind && end - begin < kLongestWord) ++end;
    // The last of several spaces leads the word behind them.
    if (kind == Kind::kSpace && end < text.size() && end - begin > 1 && text[end - 1] == ' ' &&
        kind_of(text[end]) != Kind::kSpace)
      --end;
    words.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

Vocabulary Vocabulary::learnt(std::string_view text, std::int64_t size) {
  Vocabulary vocabulary;
  PairCounts counts(text);
  while (vocabulary.size() < size) {
    const auto pair = counts.commonest();
    if (!vocabulary.add(pair)) break;
    counts.merge_everywhere(pair, static_cast<Token>(vocabulary.size() - 1));
  }
  return vocabulary;
}

Vocabulary Vocabulary::parsed(const std::string& text) {
  Vocabulary vocabulary;
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  if (line != kHead) throw std::runtime_error("line 1: a vocabulary begins with '" + std::string(kHead) + "'");
  for (int number = 2; std::getline(lines, line); ++number) {
    Pair pair{-1, -1};
    std::istringstream(line) >> pair.first >> pair.second;
    if (!vocabulary.add(pair)) {
      throw std::runtime_error("line " + std::to_string(number) + ": '" + line +
                               "' does not begin with two numbers from 0 to " + std::to_string(vocabulary.size() - 1) +
                               " that no line before has merged");
    }
  }
  return vocabulary;
}

std::string Vocabulary::file_text() const {
  std::string text = std::string(kHead) + '\n';
  for (const auto& [first, second] : merges_) {
    text += std::to_string(first) + ' ' + std::to_string(second) + "  " + readable(spelling(first) + spelling(second)) +
            '\n';
  }
  return text;
}

std::vector<Token> Vocabulary::encoded(std::string_view text) const {
  std::vector<Token> tokens;
  std::unordered_map<std::string_view, std::vector<Token>> known;
  for (const auto word : words_of(text)) {
    auto [at, is_new] = known.try_emplace(word);
    if (is_new) at->second = encoded_word(word);
    tokens.insert(tokens.end(), at->second.begin(), at->second.end());
  }
  return tokens;
}

std::string Vocabulary::decoded(const std::vector<Token>& tokens) const {
  std::string text;
  for (const Token token : tokens) text += spelling(token);
  return text;
}

bool Vocabulary::add(Pair pair) {
  const auto is_known = [&](Token token) { return token >= 0 && token < size(); };
  if (!is_known(pair.first) || !is_known(pair.second)) return false;
  if (!merged_.emplace(pair, static_cast<Token>(size())).second) return false;
  merges_.push_back(pair);
  return true;
}

// The merges in the order in which they were learnt.
std::vector<Token> Vocabulary::encoded_word(std::string_view word) const {
  auto tokens = bytes_of(word);
  for (;;) {
    auto first = merged_.end();
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto found = merged_.find({tokens[i], tokens[i + 1]});
      if (found != merged_.end() && (first == merged_.end() || found->second < first->second)) first = found;
    }
    if (first == merged_.end()) return tokens;
    merge(tokens, first->first, first->second);
  }
}

std::string Vocabulary::spelling(Token token) const {
  if (token < kBytes) return {static_cast<char>(token)};
  const auto& [first, second] = merges_.at(static_cast<std::size_t>(token - kBytes));
  return spelling(first) + spelling(second);
}
