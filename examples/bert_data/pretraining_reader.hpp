#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "pretraining_shard.hpp"

namespace bert_data {

/// Rows of a batch as a model takes them, row after row.
struct PretrainingBatch {
  std::int64_t rows = 0;
  std::vector<std::int64_t> input_ids, segment_ids, input_mask;  ///< [rows, length]
  std::vector<std::int64_t> positions;      ///< [rows, predictions] of hidden tokens, 0 behind them
  std::vector<std::int64_t> labels;         ///< [rows, predictions], -1 behind the hidden tokens
  std::vector<std::int64_t> next_sentence;  ///< [rows]
};

/// The shards of a folder (*.hdf5, *.h5) whose names contain `part`, sorted. @throws std::runtime_error without the
/// folder
[[nodiscard]] std::vector<std::filesystem::path> shards_in(const std::filesystem::path& folder,
                                                           const std::string& part);

/// Reads the shards of a folder in an order that a seed and the epoch give, the next shard in the background.
///
/// The rows of all epochs are one endless sequence: of each epoch the shards in random order, of each shard the rows in
/// random order. A batch is the next `batch` rows of it, the same for every number of ranks; a rank takes its share of
/// each. Whoever knows how many rows went before goes on there. Memory: two shards.
class PretrainingReader {
 public:
  struct Options {
    std::filesystem::path folder{};
    std::string part = "training";  ///< files whose names contain it
    ShardLimits limits{};
    std::uint64_t seed = 1;
    bool in_order = false;  ///< of names and rows, as a validation wants it
  };

  /// Looks at all shards. @throws std::runtime_error naming a shard that is foreign, damaged or of other sizes than the
  /// first
  explicit PretrainingReader(Options options);

  [[nodiscard]] std::int64_t rows() const { return starts_.back(); }  ///< of an epoch
  [[nodiscard]] std::int64_t length() const { return shape_.length; }
  [[nodiscard]] std::int64_t predictions() const { return shape_.predictions; }

  /// Goes to a place of the sequence, in rows.
  void seek(std::int64_t row) { position_ = row; }
  [[nodiscard]] std::int64_t position() const { return position_; }

  /// Rows [begin, end) of the next `batch`, of which the others are skipped.
  [[nodiscard]] PretrainingBatch next(std::int64_t batch, std::int64_t begin, std::int64_t end);

 private:
  struct Epoch {
    std::int64_t number = -1;
    std::vector<std::size_t> shards;     ///< in the order of reading
    std::vector<std::int64_t> starts{};  ///< row at which each begins, and the end
  };
  struct Loaded {
    std::int64_t epoch = -1;
    std::size_t at = 0;  ///< in the epoch's order
    Shard shard{};
    std::vector<std::size_t> order{};
  };

  [[nodiscard]] Epoch epoch(std::int64_t number) const;
  [[nodiscard]] std::future<Loaded> start_loading(const Epoch& epoch, std::size_t at) const;
  /// Makes the shard of a row the loaded one. @return the row's place in its order
  std::size_t load(std::int64_t row);
  void append(PretrainingBatch& to, std::size_t row) const;

  Options options_;
  std::vector<std::filesystem::path> files_;
  std::vector<std::int64_t> sizes_, starts_;  ///< rows of each file, in the order of names
  ShardShape shape_;
  std::int64_t position_ = 0;
  Epoch epoch_;
  Loaded loaded_;
  std::pair<std::int64_t, std::size_t> awaited_{-1, 0};  ///< epoch and place of what is being loaded
  std::future<Loaded> next_;                             ///< last: its thread ends before what it reads
};

}  // namespace bert_data
