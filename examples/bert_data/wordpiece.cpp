#include "wordpiece.hpp"

#include <fstream>
#include <stdexcept>

#include "unicode.hpp"

namespace bert_data {
namespace {

constexpr std::size_t kLongestWord = 100;

bool starts_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

}  // namespace

Vocabulary::Vocabulary(std::vector<std::string> pieces, const std::string& source) : pieces_(std::move(pieces)) {
  ids_.reserve(pieces_.size());
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const auto [known, is_new] = ids_.emplace(pieces_[i], static_cast<Token>(i));
    if (!is_new) {
      throw std::runtime_error(source + ": '" + pieces_[i] + "' stands in lines " + std::to_string(known->second + 1) +
                               " and " + std::to_string(i + 1) + "; each piece must stand once");
    }
  }
  for (std::size_t i = 0; i < std::size(kSpecial); ++i) {
    special_[i] = find(kSpecial[i]);
    if (special_[i] < 0) {
      throw std::runtime_error(source + ": '" + kSpecial[i] +
                               "' is missing; BERT's vocabularies have a piece a line, with [PAD], [UNK], [CLS], [SEP] "
                               "and [MASK] among them");
    }
  }
}

Vocabulary Vocabulary::read(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error(file.string() + ": cannot open the vocabulary");
  std::vector<std::string> pieces;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    pieces.push_back(line);
  }
  return Vocabulary(std::move(pieces), file.string());
}

void Vocabulary::write(const std::filesystem::path& file) const {
  std::ofstream out(file);
  for (const auto& piece : pieces_) out << piece << '\n';
  if (!out.flush()) throw std::runtime_error(file.string() + ": cannot write the vocabulary");
}

Token Vocabulary::find(std::string_view piece) const {
  const auto found = ids_.find(piece);
  return found == ids_.end() ? -1 : found->second;
}

std::vector<std::string> words_of(std::string_view utf8, bool lower_case) {
  std::vector<std::string> words;
  std::string word;
  const auto end_word = [&] {
    if (!word.empty()) words.push_back(std::move(word));
    word.clear();
  };
  std::vector<CodePoint> written;
  for (const auto character : decode(utf8)) {
    if (character == 0 || character == kReplacement || is_control(character)) continue;
    if (is_space(character)) {
      end_word();
      continue;
    }
    written.clear();
    if (lower_case)
      append_folded(written, character);
    else
      written.push_back(character);
    for (const auto one : written) {
      const bool is_word = is_ideograph(one) || is_punctuation(one);
      if (is_word) end_word();
      append_utf8(word, one);
      if (is_word) end_word();
    }
  }
  end_word();
  return words;
}

std::vector<Token> WordPiece::tokens_of(std::string_view utf8) const {
  std::vector<Token> tokens;
  for (const auto& word : words_of(utf8, lower_case_)) append_pieces(tokens, word);
  return tokens;
}

void WordPiece::append_pieces(std::vector<Token>& to, const std::string& word) const {
  const auto before = to.size();
  std::size_t characters = 0;
  for (const char byte : word) characters += starts_character(byte) ? 1 : 0;
  bool is_known = characters <= kLongestWord;
  std::string piece;
  for (std::size_t begin = 0; is_known && begin < word.size();) {
    std::size_t end = word.size();
    Token found = -1;
    for (; end > begin; --end) {
      if (end < word.size() && !starts_character(word[end])) continue;
      piece.assign(begin > 0 ? "##" : "").append(word, begin, end - begin);
      found = vocabulary_.find(piece);
      if (found >= 0) break;
    }
    is_known = found >= 0;
    if (is_known) to.push_back(found);
    begin = end;
  }
  if (!is_known) {
    to.resize(before);
    to.push_back(vocabulary_.unknown());
  }
}

}  // namespace bert_data
