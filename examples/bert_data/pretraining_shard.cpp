#include "pretraining_shard.hpp"

#include <stdexcept>

#include "hdf5_file.hpp"

namespace bert_data {
namespace {

using Type = Hdf5File::Type;

/// A dataset of the layout: which of a row's sizes it has, and the member of Shard that holds it.
struct Column {
  const char* name;
  Type type;
  std::int64_t ShardShape::*per_row;  ///< null: one value a row
  std::vector<std::int32_t> Shard::*values;
};
constexpr Column kColumns[] = {
    {"input_ids", Type::kInt32, &ShardShape::length, &Shard::input_ids},
    {"input_mask", Type::kInt8, &ShardShape::length, &Shard::input_mask},
    {"segment_ids", Type::kInt8, &ShardShape::length, &Shard::segment_ids},
    {"masked_lm_positions", Type::kInt32, &ShardShape::predictions, &Shard::masked_lm_positions},
    {"masked_lm_ids", Type::kInt32, &ShardShape::predictions, &Shard::masked_lm_ids},
    {"next_sentence_labels", Type::kInt8, nullptr, &Shard::next_sentence_labels},
};

std::string shown(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const auto size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& dataset, const std::string& what) {
  throw std::runtime_error(file.string() + ": dataset '" + dataset + "' " + what);
}

ShardShape shape_in(const Hdf5File& in, const std::filesystem::path& file) {
  const auto ids = in.shape("input_ids"), positions = in.shape("masked_lm_positions");
  if (ids.size() != 2 || ids[0] < 1 || ids[1] < 1)
    fail(file, "input_ids", "has the shape " + shown(ids) + ", not [rows, tokens]");
  if (positions.size() != 2) {
    fail(file, "masked_lm_positions", "has the shape " + shown(positions) + ", not [rows, predictions]");
  }
  const ShardShape shape{ids[0], ids[1], positions[1]};
  for (const auto& column : kColumns) {
    std::vector<std::int64_t> wanted{shape.rows};
    if (column.per_row != nullptr) wanted.push_back(shape.*column.per_row);
    const auto found = in.shape(column.name);
    if (found != wanted) {
      fail(file, column.name,
           "has the shape " + shown(found) + " where input_ids has " + shown(ids) + "; " + shown(wanted) +
               " is expected");
    }
  }
  return shape;
}

void check_range(const std::filesystem::path& file, const Column& column, const Shard& shard, std::int64_t limit) {
  const auto& values = shard.*column.values;
  const auto per_row = column.per_row != nullptr ? shard.shape.*column.per_row : 1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 0 || values[i] >= limit) {
      fail(file, column.name,
           "has the value " + std::to_string(values[i]) + " in row " +
               std::to_string(static_cast<std::int64_t>(i) / per_row) + ", where there is room for 0 to " +
               std::to_string(limit - 1) + "; was it made with another vocabulary?");
    }
  }
}

}  // namespace

ShardShape shard_shape(const std::filesystem::path& file) { return shape_in(Hdf5File::open(file), file); }

Shard read_shard(const std::filesystem::path& file, const ShardLimits& limits) {
  const auto in = Hdf5File::open(file);
  Shard shard;
  shard.shape = shape_in(in, file);
  const std::int64_t limit_of[] = {limits.vocabulary, 2, limits.token_types, shard.shape.length, limits.vocabulary, 2};
  for (std::size_t i = 0; i < std::size(kColumns); ++i) {
    shard.*kColumns[i].values = in.read(kColumns[i].name);
    check_range(file, kColumns[i], shard, limit_of[i]);
  }
  return shard;
}

void write_shard(const std::filesystem::path& file, const ShardShape& shape, const std::vector<Instance>& instances) {
  Shard shard;
  for (const auto& column : kColumns) {
    const auto per_row = column.per_row != nullptr ? shape.*column.per_row : 1;
    (shard.*column.values).resize(instances.size() * static_cast<std::size_t>(per_row));
  }
  for (std::size_t row = 0; row < instances.size(); ++row) {
    const auto& instance = instances[row];
    const auto token = row * static_cast<std::size_t>(shape.length),
               hidden = row * static_cast<std::size_t>(shape.predictions);
    for (std::size_t i = 0; i < instance.tokens.size(); ++i) {
      shard.input_ids[token + i] = instance.tokens[i];
      shard.input_mask[token + i] = 1;
      shard.segment_ids[token + i] = i >= instance.second ? 1 : 0;
    }
    for (std::size_t i = 0; i < instance.positions.size(); ++i) {
      shard.masked_lm_positions[hidden + i] = instance.positions[i];
      shard.masked_lm_ids[hidden + i] = instance.labels[i];
    }
    shard.next_sentence_labels[row] = instance.is_random_next ? 1 : 0;
  }
  auto out = Hdf5File::create(file);
  for (const auto& column : kColumns) {
    std::vector<std::int64_t> sizes{static_cast<std::int64_t>(instances.size())};
    if (column.per_row != nullptr) sizes.push_back(shape.*column.per_row);
    out.write(column.name, column.type, sizes, shard.*column.values);
  }
  out.commit();
}

}  // namespace bert_data
