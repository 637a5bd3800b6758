#include "vocabulary_builder.hpp"

#include <algorithm>
#include <queue>
#include <set>
#include <stdexcept>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "unicode.hpp"

namespace bert_data {
namespace {

using Pair = std::pair<int, int>;
struct PairHash {
  std::size_t operator()(const Pair& pair) const {
    return std::hash<std::uint64_t>()(static_cast<std::uint64_t>(pair.first) << 32 |
                                      static_cast<std::uint32_t>(pair.second));
  }
};

std::string without_prefix(const std::string& piece) { return piece.starts_with("##") ? piece.substr(2) : piece; }

/// Words as pieces, and how often which pieces are side by side.
class Merger {
 public:
  struct Word {
    std::vector<int> pieces;
    std::int64_t count;
  };

  int id_of(const std::string& piece) {
    const auto [known, is_new] = ids_.emplace(piece, static_cast<int>(pieces_.size()));
    if (is_new) pieces_.push_back(piece);
    return known->second;
  }
  [[nodiscard]] const std::string& piece(int id) const { return pieces_[static_cast<std::size_t>(id)]; }

  void add(Word word) {
    words_.push_back(std::move(word));
    const auto index = words_.size() - 1;
    for_pairs(index, [&](const Pair& pair) { change(pair, words_[index].count, index); });
  }

  /// Merges the most frequent pair that occurs twice. @return its piece, -1 where there is none
  int merge_next() {
    while (!best_.empty()) {
      const Candidate top = best_.top();
      best_.pop();
      const auto now = counts_.find(top.pair);
      if (now == counts_.end() || now->second.count != top.count) continue;  // it has changed since
      if (top.count < 2) return -1;
      return merge(top.pair);
    }
    return -1;
  }
  /// Before the first merge.
  void collect_candidates() {
    for (const auto& [pair, entry] : counts_) push(pair, entry.count);
  }

 private:
  struct Entry {
    std::int64_t count = 0;
    std::set<std::size_t> words{};
  };
  struct Candidate {
    std::int64_t count;
    std::string first, second;
    Pair pair;
    bool operator<(const Candidate& other) const {
      if (count != other.count) return count < other.count;
      return std::tie(first, second) > std::tie(other.first, other.second);
    }
  };

  template <class F>
  void for_pairs(std::size_t word, const F& f) {
    const auto& pieces = words_[word].pieces;
    for (std::size_t i = 0; i + 1 < pieces.size(); ++i) f(Pair{pieces[i], pieces[i + 1]});
  }
  void change(const Pair& pair, std::int64_t by, std::size_t word) {
    auto& entry = counts_[pair];
    entry.count += by;
    if (by > 0) entry.words.insert(word);
  }
  void push(const Pair& pair, std::int64_t count) {
    if (count > 0) best_.push({count, piece(pair.first), piece(pair.second), pair});
  }

  int merge(const Pair& pair) {
    const int merged = id_of(piece(pair.first) + without_prefix(piece(pair.second)));
    std::set<Pair> changed;
    const auto words = std::move(counts_[pair].words);
    for (const auto word : words) {
      auto& [pieces, count] = words_[word];
      for_pairs(word, [&](const Pair& one) {
        change(one, -count, word);
        changed.insert(one);
      });
      std::vector<int> shorter;
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        const bool is_pair = i + 1 < pieces.size() && Pair{pieces[i], pieces[i + 1]} == pair;
        shorter.push_back(is_pair ? merged : pieces[i]);
        if (is_pair) ++i;
      }
      pieces = std::move(shorter);
      for_pairs(word, [&](const Pair& one) {
        change(one, count, word);
        changed.insert(one);
      });
    }
    counts_.erase(pair);
    changed.erase(pair);
    for (const auto& one : changed) push(one, counts_[one].count);
    return merged;
  }

  std::vector<std::string> pieces_;
  std::unordered_map<std::string, int> ids_;
  std::vector<Word> words_;
  std::unordered_map<Pair, Entry, PairHash> counts_;
  std::priority_queue<Candidate> best_;
};

std::vector<std::string> characters_of(const std::string& word) {
  std::vector<std::string> out;
  for (const auto character : decode(word)) append_utf8(out.emplace_back(out.empty() ? "" : "##"), character);
  return out;
}

/// The most frequent characters, as UTF-8.
std::set<std::string> kept_characters(const std::map<std::string, std::int64_t>& words, std::size_t most) {
  std::map<std::string, std::int64_t> counts;
  for (const auto& [word, count] : words) {
    for (const auto& one : characters_of(word)) counts[without_prefix(one)] += count;
  }
  std::vector<std::pair<std::string, std::int64_t>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  if (sorted.size() > most) sorted.resize(most);
  std::set<std::string> kept;
  for (const auto& [character, count] : sorted) kept.insert(character);
  return kept;
}

}  // namespace

void VocabularyBuilder::add(std::string_view utf8) {
  for (const auto& word : words_of(utf8, lower_case_)) ++counts_[word];
}

Vocabulary VocabularyBuilder::build(std::size_t size, std::size_t most_characters) const {
  const auto kept = kept_characters(counts_, most_characters);
  std::vector<std::string> pieces(std::begin(Vocabulary::kSpecial), std::end(Vocabulary::kSpecial));
  Merger merger;
  std::set<std::string> alphabet;
  for (const auto& [word, count] : counts_) {
    Merger::Word as_pieces{{}, count};
    for (const auto& one : characters_of(word)) {
      if (!kept.contains(without_prefix(one))) {
        as_pieces.pieces.clear();
        break;
      }
      alphabet.insert(one);
      as_pieces.pieces.push_back(merger.id_of(one));
    }
    if (as_pieces.pieces.size() > 1) merger.add(std::move(as_pieces));
  }
  pieces.insert(pieces.end(), alphabet.begin(), alphabet.end());
  if (size < pieces.size()) {
    throw std::runtime_error("a vocabulary of " + std::to_string(size) + " pieces has no room for the " +
                             std::to_string(pieces.size()) +
                             " special pieces and characters of this text; ask for more pieces or fewer characters");
  }
  merger.collect_candidates();
  std::set<std::string> known(pieces.begin(), pieces.end());
  while (pieces.size() < size) {
    const int merged = merger.merge_next();
    if (merged < 0) break;
    if (known.insert(merger.piece(merged)).second) pieces.push_back(merger.piece(merged));
  }
  return Vocabulary(std::move(pieces));
}

}  // namespace bert_data
