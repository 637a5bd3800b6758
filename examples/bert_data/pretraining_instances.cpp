#include "pretraining_instances.hpp"

#include <algorithm>
#include <cmath>

namespace bert_data {
namespace {

constexpr std::size_t kSpecialTokens = 3;  ///< [CLS] and two [SEP]

void append(Sentence& to, const Sentence& from) { to.insert(to.end(), from.begin(), from.end()); }

/// Takes tokens off the longer of the two, at either end.
void shorten(Sentence& a, Sentence& b, std::size_t to, Random& random) {
  while (a.size() + b.size() > to) {
    auto& longer = a.size() > b.size() ? a : b;
    if (random.with_probability(0.5))
      longer.erase(longer.begin());
    else
      longer.pop_back();
  }
}

/// Text of a random place in another document.
Sentence random_text(const std::vector<Document>& documents, std::size_t but, std::size_t length, Random& random) {
  auto other = random.below(documents.size() - 1);
  if (other >= but) ++other;
  const auto& sentences = documents[other];
  Sentence text;
  for (auto i = random.below(sentences.size()); i < sentences.size() && text.size() < length; ++i) {
    append(text, sentences[i]);
  }
  return text;
}

Instance joined(const Sentence& a, const Sentence& b, const Vocabulary& vocabulary) {
  Instance instance;
  instance.tokens.push_back(vocabulary.cls());
  append(instance.tokens, a);
  instance.tokens.push_back(vocabulary.sep());
  instance.second = instance.tokens.size();
  append(instance.tokens, b);
  instance.tokens.push_back(vocabulary.sep());
  return instance;
}

}  // namespace

void make_instances(const std::vector<Document>& documents, std::size_t document, const InstanceOptions& options,
                    const Vocabulary& vocabulary, Random& random, const std::function<void(Instance)>& made) {
  const auto most = options.length - kSpecialTokens;
  const auto aimed_at = [&] {
    return random.with_probability(options.short_share) ? 2 + random.below(most - 1) : most;
  };
  const auto& sentences = documents[document];
  std::size_t length = aimed_at(), begin = 0, collected = 0;
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    collected += sentences[i].size();
    if (i + 1 < sentences.size() && collected < length) continue;
    const std::size_t count = i + 1 - begin, of_first = count > 1 ? 1 + random.below(count - 1) : 1;
    Sentence a, b;
    for (std::size_t j = 0; j < of_first; ++j) append(a, sentences[begin + j]);
    const bool is_random = count == 1 || random.with_probability(options.random_next_share);
    std::size_t used = count;
    if (is_random) {
      b = random_text(documents, document, length > a.size() ? length - a.size() : 1, random);
      used = of_first;
    } else {
      for (std::size_t j = of_first; j < count; ++j) append(b, sentences[begin + j]);
    }
    shorten(a, b, most, random);
    auto instance = joined(a, b, vocabulary);
    instance.is_random_next = is_random;
    hide_tokens(instance, options, vocabulary, random);
    made(std::move(instance));
    begin += used;
    i = begin - 1;  // sentences that did not go into b come again
    collected = 0;
    length = aimed_at();
  }
}

void hide_tokens(Instance& instance, const InstanceOptions& options, const Vocabulary& vocabulary, Random& random) {
  auto& tokens = instance.tokens;
  std::vector<std::int32_t> candidates;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] != vocabulary.cls() && tokens[i] != vocabulary.sep()) {
      candidates.push_back(static_cast<std::int32_t>(i));
    }
  }
  random.shuffle(candidates);
  const auto wanted = static_cast<std::size_t>(std::lround(static_cast<double>(tokens.size()) * options.hidden_share));
  candidates.resize(std::min({candidates.size(), options.most_hidden, std::max<std::size_t>(1, wanted)}));
  std::sort(candidates.begin(), candidates.end());
  for (const auto position : candidates) {
    auto& token = tokens[static_cast<std::size_t>(position)];
    instance.positions.push_back(position);
    instance.labels.push_back(token);
    const double draw = random.uniform();
    if (draw < 0.8)
      token = vocabulary.mask();
    else if (draw < 0.9)
      token = static_cast<Token>(random.below(static_cast<std::size_t>(vocabulary.size())));
  }
}

}  // namespace bert_data
