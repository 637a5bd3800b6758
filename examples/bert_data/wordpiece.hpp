#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

/// BERT's tokens: words of a text, and their pieces in a vocabulary (Devlin et al. 2018, bert/tokenization.py).
namespace bert_data {

using Token = std::int32_t;

/// Pieces of words in the order of their ids. A piece that continues a word begins with "##".
class Vocabulary {
 public:
  static constexpr const char* kSpecial[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

  /// @throws std::runtime_error where a piece stands twice or a special one is missing; `source` begins the message
  explicit Vocabulary(std::vector<std::string> pieces, const std::string& source = "vocabulary");

  /// BERT's vocab.txt: a piece a line. @throws std::runtime_error naming the file
  static Vocabulary read(const std::filesystem::path& file);
  void write(const std::filesystem::path& file) const;

  [[nodiscard]] Token size() const { return static_cast<Token>(pieces_.size()); }
  [[nodiscard]] const std::string& piece(Token id) const { return pieces_.at(static_cast<std::size_t>(id)); }
  /// -1 where there is none.
  [[nodiscard]] Token find(std::string_view piece) const;
  [[nodiscard]] Token pad() const { return special_[0]; }
  [[nodiscard]] Token unknown() const { return special_[1]; }
  [[nodiscard]] Token cls() const { return special_[2]; }
  [[nodiscard]] Token sep() const { return special_[3]; }
  [[nodiscard]] Token mask() const { return special_[4]; }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::vector<std::string> pieces_;
  std::unordered_map<std::string, Token, Hash, std::equal_to<>> ids_;
  Token special_[5];
};

/// Words of a text as BERT's BasicTokenizer: control characters go, ideographs and punctuation are words of their own;
/// with `lower_case` letters lose their case and their accents.
[[nodiscard]] std::vector<std::string> words_of(std::string_view utf8, bool lower_case = true);

class WordPiece {
 public:
  WordPiece(Vocabulary vocabulary, bool lower_case = true)
      : vocabulary_(std::move(vocabulary)), lower_case_(lower_case) {}

  [[nodiscard]] const Vocabulary& vocabulary() const { return vocabulary_; }
  /// Of each word the longest piece that it begins with, then of the rest. A word that has none, or more than 100
  /// characters, is [UNK].
  [[nodiscard]] std::vector<Token> tokens_of(std::string_view utf8) const;

 private:
  void append_pieces(std::vector<Token>& to, const std::string& word) const;

  Vocabulary vocabulary_;
  bool lower_case_;
};

}  // namespace bert_data
