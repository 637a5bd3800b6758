#include "unicode.hpp"

#include <algorithm>
#include <iterator>

#include "unicode_tables.hpp"

namespace bert_data {
namespace {

template <std::size_t N>
bool is_in(const tables::Range (&ranges)[N], CodePoint character) {
  const auto* after = std::upper_bound(std::begin(ranges), std::end(ranges), character,
                                       [](CodePoint c, const tables::Range& range) { return c < range.first; });
  return after != std::begin(ranges) && character <= std::prev(after)->last;
}

constexpr bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

/// Letters of a Hangul syllable (Unicode 14, section 3.12).
void append_letters_of_syllable(std::vector<CodePoint>& to, CodePoint syllable) {
  constexpr CodePoint kVowels = 21, kTails = 28;
  const auto index = syllable - 0xAC00;
  to.push_back(0x1100 + index / (kVowels * kTails));
  to.push_back(0x1161 + index / kTails % kVowels);
  if (index % kTails > 0) to.push_back(0x11A7 + index % kTails);
}

}  // namespace

std::vector<CodePoint> decode(std::string_view utf8) {
  constexpr CodePoint kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  std::vector<CodePoint> out;
  out.reserve(utf8.size());
  for (std::size_t i = 0; i < utf8.size();) {
    const auto first = static_cast<unsigned char>(utf8[i]);
    const std::size_t length = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : first >> 3 == 30 ? 4 : 0;
    CodePoint character = length == 1 ? first : first & (0x7Fu >> length);
    std::size_t read = 1;
    for (; read < length && i + read < utf8.size() && is_continuation(utf8[i + read]); ++read) {
      character = character << 6 | (static_cast<unsigned char>(utf8[i + read]) & 0x3Fu);
    }
    const bool is_surrogate = character >= 0xD800 && character < 0xE000;
    if (length == 0 || read < length || character < kLeast[length] || character > 0x10FFFF || is_surrogate) {
      out.push_back(kReplacement);
      ++i;
    } else {
      out.push_back(character);
      i += length;
    }
  }
  return out;
}

void append_utf8(std::string& to, CodePoint character) {
  const auto continuation = [&](int shift) { to += static_cast<char>(0x80 | (character >> shift & 0x3F)); };
  if (character < 0x80) {
    to += static_cast<char>(character);
  } else if (character < 0x800) {
    to += static_cast<char>(0xC0 | character >> 6);
    continuation(0);
  } else if (character < 0x10000) {
    to += static_cast<char>(0xE0 | character >> 12);
    continuation(6);
    continuation(0);
  } else {
    to += static_cast<char>(0xF0 | character >> 18);
    continuation(12);
    continuation(6);
    continuation(0);
  }
}

bool is_space(CodePoint character) {
  return character == '\t' || character == '\n' || character == '\r' || is_in(tables::kSpaces, character);
}

bool is_control(CodePoint character) { return !is_space(character) && is_in(tables::kControl, character); }

bool is_punctuation(CodePoint character) {
  if (character < 0x80) {
    return (character >= 33 && character <= 47) || (character >= 58 && character <= 64) ||
           (character >= 91 && character <= 96) || (character >= 123 && character <= 126);
  }
  return is_in(tables::kPunctuation, character);
}

bool is_ideograph(CodePoint character) {
  constexpr tables::Range kIdeographs[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},
                                           {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F},
                                           {0x2B820, 0x2CEAF}, {0x2F800, 0x2FA1F}};
  return is_in(kIdeographs, character);
}

void append_folded(std::vector<CodePoint>& to, CodePoint character) {
  if (character < 0x80) {
    to.push_back(character >= 'A' && character <= 'Z' ? character + 32 : character);
    return;
  }
  if (character >= 0xAC00 && character < 0xD7A4) return append_letters_of_syllable(to, character);
  if (is_in(tables::kMarks, character)) return;
  const auto* several =
      std::lower_bound(std::begin(tables::kFoldedToSeveral), std::end(tables::kFoldedToSeveral), character,
                       [](const tables::Several& entry, CodePoint c) { return entry.from < c; });
  if (several != std::end(tables::kFoldedToSeveral) && several->from == character) {
    for (const auto one : several->to) {
      if (one != 0) to.push_back(one);
    }
    return;
  }
  const auto* run = std::upper_bound(std::begin(tables::kFolded), std::end(tables::kFolded), character,
                                     [](CodePoint c, const tables::Run& entry) { return c < entry.first; });
  if (run != std::begin(tables::kFolded)) {
    --run;
    if (character <= run->last && (character - run->first) % run->step == 0) {
      character += static_cast<CodePoint>(run->moved);
    }
  }
  to.push_back(character);
}

}  // namespace bert_data
