#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "pretraining_instances.hpp"

namespace bert_data {

/// How long the rows of a shard are.
struct ShardShape {
  std::int64_t rows = 0;
  std::int64_t length = 0;       ///< tokens
  std::int64_t predictions = 0;  ///< places for hidden ones
};

/// Rows of pretraining data as NVIDIA's BERT scripts lay them out in HDF5, row after row. Behind an instance's end
/// everything is 0; hidden tokens end at the first position 0, which is [CLS].
struct Shard {
  ShardShape shape;
  std::vector<std::int32_t> input_ids, input_mask, segment_ids;  ///< [rows, length]
  std::vector<std::int32_t> masked_lm_positions, masked_lm_ids;  ///< [rows, predictions]
  std::vector<std::int32_t> next_sentence_labels;                ///< [rows]; 1: another document's
};

/// Greatest values that a model has room for.
struct ShardLimits {
  std::int64_t vocabulary = 0, token_types = 2;
};

/// Looks at names, types and sizes alone. @throws std::runtime_error naming file and dataset
[[nodiscard]] ShardShape shard_shape(const std::filesystem::path& file);

/// @throws std::runtime_error naming file and dataset, and row and value where one is out of range
[[nodiscard]] Shard read_shard(const std::filesystem::path& file, const ShardLimits& limits);

/// Replaces the file when it is whole. @pre no instance is longer than `shape`
void write_shard(const std::filesystem::path& file, const ShardShape& shape, const std::vector<Instance>& instances);

}  // namespace bert_data
