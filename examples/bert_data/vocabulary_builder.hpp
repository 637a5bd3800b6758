#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "wordpiece.hpp"

namespace bert_data {

/// Builds a vocabulary from a text: special pieces, the characters that occur, then again and again the pair of
/// adjacent pieces that is most frequent becomes one (byte-pair encoding, Sennrich et al. 2016; Hugging Face's trainer
/// of WordPiece vocabularies does the same, Google's own is not published). Ties go to the pair that sorts first, so
/// the same text gives the same vocabulary everywhere.
class VocabularyBuilder {
 public:
  explicit VocabularyBuilder(bool lower_case = true) : lower_case_(lower_case) {}

  void add(std::string_view utf8);

  /// Less than `size` pieces where the text has no more that occur twice. Of the characters the most frequent
  /// `most_characters`, others will be [UNK].
  /// @throws std::runtime_error where `size` is no more than what is always in it, naming how much that is
  [[nodiscard]] Vocabulary build(std::size_t size, std::size_t most_characters = 1000) const;

 private:
  bool lower_case_;
  std::map<std::string, std::int64_t> counts_;  ///< of words
};

}  // namespace bert_data
