#pragma once

#include <filesystem>

#include <torch/types.h>

#include "settings.hpp"
#include "text/vocabulary.hpp"

/// A text as numbers.
struct Corpus {
  Vocabulary vocabulary;
  torch::Tensor tokens;  ///< [n], int32, on the CPU
};

/// What the settings name: texts, by the vocabulary of the run that goes on, by that of another, or by one that is made
/// of them; or tokens that are ready, which stay on disk: the ranks of a host share what they have read of them.
/// @throws std::exception naming the file that is missing or not as it should be
Corpus read_corpus(const Settings& settings);

/// Writes `tokens.int32` and then `vocabulary.txt`, which --tokens reads. @throws autopar::ConfigError if it cannot
void write_corpus(const Corpus& corpus, const std::filesystem::path& folder);

/// Of a run's folder, or of tokens. @throws std::runtime_error naming the file and the line
std::filesystem::path vocabulary_file(const std::filesystem::path& folder);
Vocabulary read_vocabulary(const std::filesystem::path& file);
