#pragma once

#include <map>
#include <stdexcept>
#include <string>

#include "models/transformer.hpp"

/// A size that has a name, and the highest learning rate that suits it.
struct NamedSize {
  models::TransformerSize size;  ///< words = 0: as many as the vocabulary
  double learning_rate;
};

/// @source Brown et al., "Language Models are Few-Shot Learners", 2020, table 2.1, but for tiny
inline const std::map<std::string, NamedSize> kSizes{
    {"tiny", {{.words = 0, .width = 128, .layers = 4, .heads = 4, .length = 128}, 3e-3}},
    {"small", {{.words = 0, .width = 768, .layers = 12, .heads = 12, .length = 1024}, 6e-4}},
    {"medium", {{.words = 0, .width = 1024, .layers = 24, .heads = 16, .length = 1024}, 3e-4}},
    {"1.3b", {{.words = 50'304, .width = 2048, .layers = 24, .heads = 16, .length = 1024}, 2e-4}},
    {"6.7b", {{.words = 50'304, .width = 4096, .layers = 32, .heads = 32, .length = 2048}, 1.2e-4}},
};

/// The named size, with what is given (not 0) in place of it, and words for the whole vocabulary.
/// @throws std::runtime_error if it cannot be built
inline models::TransformerSize size_of(const std::string& name, const models::TransformerSize& given,
                                       std::int64_t vocabulary) {
  auto size = given;
  const auto& named = kSizes.at(name).size;
  for (const auto member :
       {&models::TransformerSize::words, &models::TransformerSize::width, &models::TransformerSize::layers,
        &models::TransformerSize::heads, &models::TransformerSize::length})
    if (size.*member == 0) size.*member = named.*member;
  if (size.words == 0) size.words = vocabulary;
  if (size.words < vocabulary) {
    throw std::runtime_error("--words " + std::to_string(size.words) + " is less than the vocabulary's " +
                             std::to_string(vocabulary));
  }
  const auto of_head = size.width / size.heads;
  if (size.width % size.heads != 0 || (size.rotary && of_head % 2 != 0)) {
    throw std::runtime_error("--width " + std::to_string(size.width) + " cannot be cut into --heads " +
                             std::to_string(size.heads) + " of one " + (size.rotary ? "even " : "") + "size");
  }
  return size;
}

/// Operations of a sample's matrix products, forward and backward.
/// @source Narayanan et al., SC 2021, appendix; attention counted whole, as is usual, though half of it is masked
inline double flops_of_sample(const models::TransformerSize& size) {
  const auto width = static_cast<double>(size.width), layers = static_cast<double>(size.layers);
  const auto length = static_cast<double>(size.length), words = static_cast<double>(size.words);
  return (6 * (12 * layers * width * width + words * width) + 12 * layers * width * length) * length;
}
