#include "text/vocabulary.hpp"

#include <fstream>
#include <random>
#include <set>
#include <string>

#include "catch_shim.hpp"
#include "temp_folder.hpp"
#include "text/text_files.hpp"

namespace vocabulary_test {

std::string random_bytes(std::size_t count, unsigned kinds) {
  std::mt19937 random(7);
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) bytes += static_cast<char>(random() % kinds);
  return bytes;
}

/// As the definition has it, slowly: counts all pairs of all words anew for each merge.
std::vector<Vocabulary::Pair> slow_merges(const std::string& text, int count) {
  std::vector<std::vector<Vocabulary::Token>> words;
  for (const auto word : words_of(text)) {
    words.emplace_back();
    for (const char letter : word) words.back().push_back(static_cast<unsigned char>(letter));
  }
  std::vector<Vocabulary::Pair> merges;
  for (int m = 0; m < count; ++m) {
    std::map<Vocabulary::Pair, int> counts;
    for (const auto& word : words) {
      for (std::size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
    }
    std::pair<int, Vocabulary::Pair> most{1, {-1, -1}};
    for (const auto& [pair, often] : counts) most = std::max(most, {often, pair});
    if (most.first < 2) break;
    const auto pair = most.second;
    for (auto& word : words) {
      std::vector<Vocabulary::Token> merged;
      for (std::size_t i = 0; i < word.size(); ++i) {
        const bool is_pair = i + 1 < word.size() && Vocabulary::Pair{word[i], word[i + 1]} == pair;
        merged.push_back(is_pair ? 256 + m : word[i]);
        i += is_pair ? 1 : 0;
      }
      word = merged;
    }
    merges.push_back(pair);
  }
  return merges;
}

std::string file_of(const std::vector<Vocabulary::Pair>& merges) {
  auto text = Vocabulary().file_text();
  for (const auto& [first, second] : merges) text += std::to_string(first) + ' ' + std::to_string(second) + '\n';
  return text;
}

const std::string kText =
    "the cat sat on the mat, the   other cat 2024 on 2025's mats;\n\tthat is that  and aaaa aaaaa banana bananas ---- "
    "\xc3\xa9t\xc3\xa9 \xc3\xa9t\xc3\xa9s";

TEST_CASE("words_of: words cover the text, merges stay within them") {
  std::string joined;
  for (const auto word : words_of(kText)) joined += word;
  CHECK(joined == kText);
  const auto words = words_of("ab  cd 12x, !\n\n  e");
  CHECK(std::vector<std::string>(words.begin(), words.end()) ==
        std::vector<std::string>{"ab", " ", " cd", " 12", "x", ",", " !", "\n\n ", " e"});
  for (const auto word : words_of(std::string(1000, '='))) CHECK(word.size() <= 64);
}

TEST_CASE("Vocabulary: any bytes round trip") {
  const auto learnt = Vocabulary::learnt(kText, 300);
  CHECK(learnt.size() > 270);
  for (const auto& text :
       {kText, random_bytes(5000, 256), random_bytes(5000, 3), std::string(), std::string(1000, 'a')}) {
    CHECK(learnt.decoded(learnt.encoded(text)) == text);
    CHECK(Vocabulary().decoded(Vocabulary().encoded(text)) == text);
  }
  CHECK(learnt.encoded(kText).size() < kText.size() / 2);
}

TEST_CASE("Vocabulary: training equals the definition") {
  for (const auto& text : {kText, random_bytes(2000, 4) + "xyz", std::string("aaaaaaa aaa aa a")}) {
    CHECK(Vocabulary::learnt(text, 256 + 40).file_text() ==
          Vocabulary::parsed(file_of(slow_merges(text, 40))).file_text());
  }
}

TEST_CASE("Vocabulary: file round trip, errors name the line") {
  const auto learnt = Vocabulary::learnt(kText, 280);
  const auto text = learnt.file_text();
  CHECK(Vocabulary::parsed(text).encoded(kText) == learnt.encoded(kText));
  CHECK(text.find("\\x20") != std::string::npos);
  CHECK_THROWS_WITH(Vocabulary::parsed("hello"), Catch::Matchers::Contains("line 1"));
  for (const char* line : {"97 300 x", "97", "-1 4", "the t", ""})
    CHECK_THROWS_WITH(Vocabulary::parsed(Vocabulary().file_text() + "97 98 ab\n" + line + "\n"),
                      Catch::Matchers::Contains("line 3"));
  CHECK_THROWS_WITH(Vocabulary::parsed(Vocabulary().file_text() + "97 98\n97 98\n"),
                    Catch::Matchers::Contains("line 3"));
}

TEST_CASE("read_texts: files and folders, no links or binary files") {
  const TempFolder temp;
  std::filesystem::create_directories(temp / "texts/more");
  std::ofstream(temp / "texts/b") << "second ";
  std::ofstream(temp / "texts/a") << "first ";
  std::ofstream(temp / "texts/more/c") << "third";
  std::ofstream(temp / "texts/binary").write("\0\1", 2);
  std::filesystem::create_symlink(temp / "texts/a", temp / "texts/link");
  CHECK(read_texts({temp / "texts"}) == "first second third");
  CHECK(read_texts({temp / "texts/b", temp / "texts/a"}) == "second first ");
  CHECK_THROWS_WITH(read_texts({temp / "nowhere"}), Catch::Matchers::Contains("nowhere: there is no such file"));
  std::filesystem::create_directories(temp / "empty");
  CHECK_THROWS_WITH(read_texts({temp / "empty"}), Catch::Matchers::Contains("there is no text"));
}

}  // namespace vocabulary_test
