#include "bert_data/wordpiece.hpp"

#include <fstream>
#include <string>
#include <vector>

#include "bert_data/unicode.hpp"
#include "bert_data/vocabulary_builder.hpp"
#include "catch_shim.hpp"
#include "temp_folder.hpp"

namespace wordpiece_test {

using Catch::Matchers::ContainsSubstring;
using Words = std::vector<std::string>;
using bert_data::Vocabulary;
using bert_data::WordPiece;
using bert_data::words_of;

Vocabulary with_special(Words pieces) {
  Words all(std::begin(Vocabulary::kSpecial), std::end(Vocabulary::kSpecial));
  all.insert(all.end(), pieces.begin(), pieces.end());
  return Vocabulary(all);
}

Words pieces_of(const WordPiece& tokenizer, std::string_view utf8) {
  Words pieces;
  for (const auto token : tokenizer.tokens_of(utf8)) pieces.push_back(tokenizer.vocabulary().piece(token));
  return pieces;
}

TEST_CASE("WordPiece: words equal those of BERT's own tests") {
  // google-research/bert, tokenization_test.py
  CHECK(words_of(" \tHeLLo!how  \n Are yoU?  ") == Words{"hello", "!", "how", "are", "you", "?"});
  CHECK(words_of("H\u00E9llo") == Words{"hello"});
  CHECK(words_of(" \tHeLLo!how  \n Are yoU?  ", false) == Words{"HeLLo", "!", "how", "Are", "yoU", "?"});
  CHECK(words_of("H\u00E9llo", false) == Words{"H\u00E9llo"});
  CHECK(words_of("ah\u535A\u63A8zz") == Words{"ah", "\u535A", "\u63A8", "zz"});
}

TEST_CASE("WordPiece: case and accents are removed in every script") {
  // Python: unicodedata.normalize("NFD", s.lower()) without category Mn, words split at punctuation
  CHECK(words_of("\u00C5ngstr\u00F6m na\u00EFve Stra\u00DFe") == Words{"angstrom", "naive", "stra\u00DFe"});
  CHECK(words_of("\u1F08\u03B8\u1FC6\u03BD\u03B1\u03B9") == Words{"\u03B1\u03B8\u03B7\u03BD\u03B1\u03B9"});  // Greek
  CHECK(words_of("\u0419\u043E\u0448\u043A\u0430") == Words{"\u0438\u043E\u0448\u043A\u0430"});              // Cyrillic
  CHECK(words_of("Vi\u1EC7t \u0130stanbul") == Words{"viet", "istanbul"});
  CHECK(words_of("\uD55C") == Words{"\u1112\u1161\u11AB"});  // Hangul, as NFD has it
  CHECK(words_of("e\u0301te\u0301") == Words{"ete"});        // marks of their own
  CHECK(words_of("\u2018a\u2019 1\u00A02\u3000\u2014b\u3002") ==
        Words{"\u2018", "a", "\u2019", "1", "2", "\u2014", "b", "\u3002"});
}

TEST_CASE("WordPiece: control characters and bad UTF-8 are dropped") {
  CHECK(words_of(std::string("a\0b\u200Bc\u00ADd", 10)) == Words{"abcd"});  // control and format characters
  CHECK(words_of("a\xFF"
                 "b \xC0\xAF \xED\xA0\x80 \xE2\x82") == Words{"ab"});  // malformed, overlong, surrogate, cut
  CHECK(words_of("").empty());
  CHECK(bert_data::decode("\xF0\x9F\x98\x80") == std::vector<bert_data::CodePoint>{0x1F600});
}

TEST_CASE("WordPiece: longest match first") {
  const WordPiece tokenizer(with_special({"want", "##want", "##ed", "wa", "un", "runn", "##ing", ","}));
  CHECK(pieces_of(tokenizer, "UNwant\u00E9d,running") == Words{"un", "##want", "##ed", ",", "runn", "##ing"});
  CHECK(pieces_of(tokenizer, "unwantedX running") == Words{"[UNK]", "runn", "##ing"});
  CHECK(pieces_of(tokenizer, std::string(101, 'w')) == Words{"[UNK]"});
  CHECK(pieces_of(tokenizer, "[MASK]") == Words{"[UNK]", "[UNK]", "[UNK]"});  // in a text it is no special token
}

TEST_CASE("Vocabulary: reads BERT's file, refuses others with a reason") {
  const TempFolder folder;
  const auto written = with_special({"a", "##b"});
  written.write(folder / "vocab.txt");
  const auto read = Vocabulary::read(folder / "vocab.txt");
  CHECK(read.size() == 7);
  CHECK(read.find("##b") == 6);
  CHECK(read.mask() == 4);
  std::ofstream(folder / "twice.txt") << "[PAD]\na\na\n";
  CHECK_THROWS_WITH(Vocabulary::read(folder / "twice.txt"), ContainsSubstring("'a' stands in lines 2 and 3"));
  std::ofstream(folder / "bare.txt") << "[PAD]\r\na\r\n";
  CHECK_THROWS_WITH(Vocabulary::read(folder / "bare.txt"),
                    ContainsSubstring("bare.txt") && ContainsSubstring("'[UNK]' is missing"));
  CHECK_THROWS_WITH(Vocabulary::read(folder / "none.txt"), ContainsSubstring("none.txt: cannot open"));
}

TEST_CASE("VocabularyBuilder: merges the most frequent pairs") {
  bert_data::VocabularyBuilder builder;
  builder.add("low low low low low lower lower newest newest newest newest newest newest widest widest widest");
  constexpr bert_data::Token kAlways = 5 + 11;  // special pieces and characters
  const auto vocabulary = builder.build(kAlways + 6);
  Words merged;
  for (bert_data::Token id = kAlways; id < vocabulary.size(); ++id) merged.push_back(vocabulary.piece(id));
  // The example of Sennrich et al. 2016: 9, 9, 7, 7, 6 and 6 times; of pairs that tie the one that sorts first.
  CHECK(merged == Words{"##es", "##est", "##ow", "low", "##ew", "##ewest"});
  CHECK(pieces_of(WordPiece(vocabulary), "lowest") == Words{"low", "##est"});
  CHECK_THROWS_WITH(builder.build(10), ContainsSubstring("no room for the 16"));
  CHECK(builder.build(1000).size() < 60);  // no more pairs occur twice
}

}  // namespace wordpiece_test
