#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "random.hpp"
#include "wordpiece.hpp"

namespace bert_data {

using Sentence = std::vector<Token>;
using Document = std::vector<Sentence>;

/// Two pieces of text behind [CLS], with some tokens hidden: what BERT learns from.
struct Instance {
  std::vector<Token> tokens;            ///< [CLS] a… [SEP] b… [SEP]
  std::size_t second = 0;               ///< where b begins
  std::vector<std::int32_t> positions;  ///< of hidden tokens, ascending
  std::vector<Token> labels;            ///< what they were
  bool is_random_next = false;          ///< b is from another document
};

struct InstanceOptions {
  std::size_t length = 128;        ///< tokens of an instance at most, the special ones included
  std::size_t most_hidden = 20;    ///< hidden tokens of an instance at most
  double hidden_share = 0.15;      ///< of the tokens
  double short_share = 0.1;        ///< instances that aim at a random shorter length
  double random_next_share = 0.5;  ///< instances whose second text is from another document
};

/// Calls `made` for each instance of one document, as BERT's create_pretraining_data.py cuts them: sentences are
/// collected up to the length aimed at; the first few are a, and the rest, or as many of a random place of another
/// document, are b; what did not go into b comes again. Of the hidden tokens 80 % become [MASK], 10 % a random token,
/// 10 % stay.
/// @pre at least two documents
void make_instances(const std::vector<Document>& documents, std::size_t document, const InstanceOptions& options,
                    const Vocabulary& vocabulary, Random& random, const std::function<void(Instance)>& made);

/// Hides tokens of `instance.tokens`, no special ones.
void hide_tokens(Instance& instance, const InstanceOptions& options, const Vocabulary& vocabulary, Random& random);

}  // namespace bert_data
