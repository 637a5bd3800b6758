#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Texts as numbers, and back: bytes, and pairs of such numbers that occur often, merged into one (byte-level BPE).
/// Every sequence of bytes can be encoded, and comes back as it was.
/// @source Sennrich et al., ACL 2016, §3.2; over bytes as in Radford et al. 2019, §2.2
class Vocabulary {
 public:
  using Token = std::int32_t;
  using Pair = std::pair<Token, Token>;

  /// Bytes alone.
  Vocabulary() = default;
  /// Of the text's commonest pairs, at most `size` numbers in all, bytes included. O(n) for the text, then
  /// O(p log p) for the p places where its different words have pairs.
  static Vocabulary learnt(std::string_view text, std::int64_t size);
  /// As `file_text` has it. @throws std::runtime_error naming the line that is not as it should be
  static Vocabulary parsed(const std::string& text);

  /// A line of a head, then a line a merge: the two numbers that become 256, 257, …, and for people what that spells.
  [[nodiscard]] std::string file_text() const;

  [[nodiscard]] std::int64_t size() const { return 256 + static_cast<std::int64_t>(merges_.size()); }
  [[nodiscard]] std::vector<Token> encoded(std::string_view text) const;
  [[nodiscard]] std::string decoded(const std::vector<Token>& tokens) const;

 private:
  [[nodiscard]] bool add(Pair pair);  ///< @return whether both are known and it is new
  [[nodiscard]] std::vector<Token> encoded_word(std::string_view word) const;
  [[nodiscard]] std::string spelling(Token token) const;

  std::vector<Pair> merges_;      ///< by token - 256, in the order in which they are made
  std::map<Pair, Token> merged_;  ///< the token of a merge
};

/// Merges do not cross these: letters, digits or others in a row, with the one space before them; spaces in a row.
/// None is longer than 64 bytes.
std::vector<std::string_view> words_of(std::string_view text);
