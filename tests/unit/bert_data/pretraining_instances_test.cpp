#include "bert_data/pretraining_instances.hpp"

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "bert_data/documents.hpp"
#include "catch_shim.hpp"

namespace pretraining_instances_test {

using bert_data::Instance;
using bert_data::Token;

std::vector<std::vector<std::string>> documents_in(const std::string& written, bert_data::Format format) {
  std::vector<std::vector<std::string>> documents(1);
  std::istringstream in(written);
  bert_data::read_documents(
      in, format, [&](std::string_view sentence) { documents.back().emplace_back(sentence); },
      [&] { documents.emplace_back(); });
  documents.pop_back();
  return documents;
}

TEST_CASE("documents_in: text is split into documents and sentences") {
  using Documents = std::vector<std::vector<std::string>>;
  CHECK(documents_in("a\nb\n\n\nc\n", bert_data::Format::kSentences) == Documents{{"a", "b"}, {"c"}});
  CHECK(documents_in("One two. Three\n  four? \"Five!\" (Six.) 7.5 is one;\te.g. this. J. S. Bach.\n\nHead\n\n",
                     bert_data::Format::kProse) ==
        Documents{{"One two.", "Three four?", "\"Five!\"", "(Six.)", "7.5 is one; e.g. this.", "J. S. Bach.", "Head"}});
  CHECK(documents_in("\n\n", bert_data::Format::kProse).empty());
}

constexpr Token kWords = 1000;

bert_data::Vocabulary vocabulary() {
  std::vector<std::string> pieces(std::begin(bert_data::Vocabulary::kSpecial),
                                  std::end(bert_data::Vocabulary::kSpecial));
  for (Token i = 0; i < kWords; ++i) pieces.push_back("w" + std::to_string(i));
  return bert_data::Vocabulary(pieces);
}

/// 20 documents of 30 sentences; a token tells its document: 50 d + sentence.
std::vector<bert_data::Document> documents() {
  std::vector<bert_data::Document> all;
  for (Token d = 0; d < 20; ++d) {
    auto& document = all.emplace_back();
    for (Token s = 0; s < 30; ++s) document.emplace_back(static_cast<std::size_t>(3 + s % 5), 5 + 50 * d + s);
  }
  return all;
}

std::vector<Instance> instances_of(std::uint64_t seed, const bert_data::InstanceOptions& options) {
  std::vector<Instance> all;
  bert_data::Random random(seed);
  const auto texts = documents();
  for (std::size_t d = 0; d < texts.size(); ++d) {
    bert_data::make_instances(texts, d, options, vocabulary(), random,
                              [&](Instance one) { all.push_back(std::move(one)); });
  }
  return all;
}

/// The tokens before some were hidden.
std::vector<Token> original(const Instance& instance) {
  auto tokens = instance.tokens;
  for (std::size_t i = 0; i < instance.positions.size(); ++i) {
    tokens[static_cast<std::size_t>(instance.positions[i])] = instance.labels[i];
  }
  return tokens;
}

TEST_CASE("make_instances: pairs are consecutive or of two documents") {
  const bert_data::InstanceOptions options{.length = 24, .most_hidden = 3};
  const auto words = vocabulary();
  const auto all = instances_of(1, options);
  REQUIRE(all.size() > 150);
  std::size_t random = 0;
  for (const auto& instance : all) {
    const auto tokens = original(instance);
    REQUIRE(tokens.size() <= options.length);
    REQUIRE(tokens.size() >= 5);
    CHECK(tokens.front() == words.cls());
    CHECK(tokens[instance.second - 1] == words.sep());
    CHECK(tokens.back() == words.sep());
    CHECK(std::count(tokens.begin(), tokens.end(), words.sep()) == 2);
    const Token a = tokens[instance.second - 2] - 5, b = tokens[instance.second] - 5;
    CHECK((a / 50 != b / 50) == instance.is_random_next);
    if (!instance.is_random_next) CHECK(b >= a);
    random += instance.is_random_next ? 1 : 0;
    CHECK(std::is_sorted(instance.positions.begin(), instance.positions.end()));
    CHECK(instance.positions.size() <= options.most_hidden);
    CHECK_FALSE(instance.positions.empty());
    for (const auto label : instance.labels) CHECK(label >= 5);  // no special token is hidden
  }
  CHECK(static_cast<double>(random) / static_cast<double>(all.size()) == Approx(0.5).margin(0.15));
}

TEST_CASE("make_instances: first segments cover a document exactly once") {
  const auto texts = documents();
  bert_data::Random random(3);
  std::map<Token, int> seen;
  bert_data::make_instances(texts, 7, {.length = 512, .most_hidden = 80}, vocabulary(), random,
                            [&](const Instance& one) {
                              const auto tokens = original(one);
                              for (const auto token : tokens)
                                seen[token] += token >= 5 + 50 * 7 && token < 5 + 50 * 8 ? 1 : 0;
                            });
  for (Token s = 0; s < 30; ++s) CHECK(seen[5 + 50 * 7 + s] == 3 + s % 5);
}

TEST_CASE("make_instances: 15 % masked, of these 80/10/10 as in BERT") {
  const auto words = vocabulary();
  double tokens = 0, hidden = 0, masked = 0, same = 0;
  for (const auto& instance : instances_of(2, {.length = 64, .most_hidden = 100})) {
    tokens += static_cast<double>(instance.tokens.size());
    for (std::size_t i = 0; i < instance.positions.size(); ++i) {
      const auto now = instance.tokens[static_cast<std::size_t>(instance.positions[i])];
      hidden += 1;
      masked += now == words.mask() ? 1 : 0;
      same += now == instance.labels[i] ? 1 : 0;
    }
  }
  CHECK(hidden / tokens == Approx(0.15).margin(0.005));
  CHECK(masked / hidden == Approx(0.8).margin(0.04));
  CHECK(same / hidden == Approx(0.1).margin(0.03));
}

TEST_CASE("make_instances: equal seeds give equal instances") {
  const auto a = instances_of(5, {.length = 32}), b = instances_of(5, {.length = 32}),
             c = instances_of(6, {.length = 32});
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i].tokens == b[i].tokens);
  CHECK(std::any_of(a.begin(), a.end(), [&](const Instance& one) { return one.tokens != c.front().tokens; }));
}

}  // namespace pretraining_instances_test
