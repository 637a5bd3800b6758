#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// What BERT's tokenizer asks of Unicode 14, from tables (unicode_tables.hpp): no ICU, no locale.
namespace bert_data {

using CodePoint = std::uint32_t;

inline constexpr CodePoint kReplacement = 0xFFFD;

/// The characters of UTF-8. A byte that belongs to none (malformed, overlong, a surrogate) becomes `kReplacement`,
/// which the tokenizer leaves out.
[[nodiscard]] std::vector<CodePoint> decode(std::string_view utf8);

void append_utf8(std::string& to, CodePoint character);

/// Spaces of Unicode (Zs), tab, line feed and carriage return.
[[nodiscard]] bool is_space(CodePoint character);
/// Cc and Cf, but for the spaces above.
[[nodiscard]] bool is_control(CodePoint character);
/// P*, and of ASCII all that is neither letter, digit, space nor control: `$`, `+`, `^` as well.
[[nodiscard]] bool is_punctuation(CodePoint character);
/// Ideographs: each is a word. Not Hangul, Hiragana or Katakana, whose texts have spaces or words of several.
[[nodiscard]] bool is_ideograph(CodePoint character);

/// Appends the character in lower case, decomposed (NFD), without its marks (Mn): É becomes e, ß stays, a mark becomes
/// nothing, a syllable of Hangul its letters. Compatibility ideographs of CJK stay as they are.
void append_folded(std::vector<CodePoint>& to, CodePoint character);

}  // namespace bert_data
