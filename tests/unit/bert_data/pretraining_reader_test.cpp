#include "bert_data/pretraining_reader.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "bert_data/hdf5_file.hpp"
#include "catch_shim.hpp"
#include "temp_folder.hpp"

namespace pretraining_reader_test {

using bert_data::Hdf5File;
using bert_data::Instance;
using bert_data::PretrainingReader;
using bert_data::Token;
using Catch::Matchers::ContainsSubstring;
using Type = Hdf5File::Type;

constexpr bert_data::ShardShape kShape{0, 6, 2};

/// An instance that its number tells: token 10 + number at 1, which is hidden.
Instance instance(Token number) { return {{2, 4, 3, 7, 3}, 3, {1}, {10 + number}, number % 2 == 1}; }

/// Shards of 3, 5 and 4 instances, numbered through; one more for a validation.
void write_shards(const TempFolder& folder) {
  Token number = 0;
  int file = 0;
  for (const int rows : {3, 5, 4}) {
    std::vector<Instance> instances;
    for (int i = 0; i < rows; ++i) instances.push_back(instance(number++));
    bert_data::write_shard(folder / ("t_training_" + std::to_string(file++) + ".hdf5"), kShape, instances);
  }
  bert_data::write_shard(folder / "t_validation_0.hdf5", kShape, {instance(50), instance(51)});
}

PretrainingReader reader_of(const TempFolder& folder, std::uint64_t seed = 1) {
  return PretrainingReader({.folder = folder / "", .limits = {.vocabulary = 100}, .seed = seed});
}

std::vector<std::int64_t> numbers(const bert_data::PretrainingBatch& batch) {
  std::vector<std::int64_t> out;
  for (std::size_t row = 0; row < static_cast<std::size_t>(batch.rows); ++row)
    out.push_back(batch.labels[2 * row] - 10);
  return out;
}

TEST_CASE("PretrainingReader: rows follow NVIDIA's layout") {
  const TempFolder folder;
  write_shards(folder);
  PretrainingReader reader(
      {.folder = folder / "", .part = "validation", .limits = {.vocabulary = 100}, .in_order = true});
  CHECK(reader.rows() == 2);
  const auto batch = reader.next(2, 0, 2);
  using Row = std::vector<std::int64_t>;
  CHECK(batch.input_ids == Row{2, 4, 3, 7, 3, 0, 2, 4, 3, 7, 3, 0});
  CHECK(batch.input_mask == Row{1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0});
  CHECK(batch.segment_ids == Row{0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0});
  CHECK(batch.positions == Row{1, 0, 1, 0});
  CHECK(batch.labels == Row{60, -1, 61, -1});
  CHECK(batch.next_sentence == Row{0, 1});
  CHECK(numbers(reader.next(2, 0, 2)) == Row{50, 51});  // in order again
}

TEST_CASE("PretrainingReader: an epoch is a seeded permutation of rows") {
  const TempFolder folder;
  write_shards(folder);
  auto reader = reader_of(folder), same = reader_of(folder), other = reader_of(folder, 2);
  const auto first = numbers(reader.next(12, 0, 12)), second = numbers(reader.next(12, 0, 12));
  CHECK(std::set<std::int64_t>(first.begin(), first.end()).size() == 12);
  CHECK(std::set<std::int64_t>(second.begin(), second.end()).size() == 12);
  CHECK(first != second);
  CHECK(numbers(same.next(12, 0, 12)) == first);
  CHECK(numbers(other.next(12, 0, 12)) != first);
}

TEST_CASE("PretrainingReader: batches independent of ranks and start") {
  const TempFolder folder;
  write_shards(folder);
  auto whole = reader_of(folder), left = reader_of(folder), right = reader_of(folder);
  std::vector<std::vector<std::int64_t>> batches;
  for (int step = 0; step < 6; ++step) {  // 30 rows of epochs of 12
    batches.push_back(numbers(whole.next(5, 0, 5)));
    auto both = numbers(left.next(5, 0, 2));
    const auto rest = numbers(right.next(5, 2, 5));
    both.insert(both.end(), rest.begin(), rest.end());
    CHECK(both == batches.back());
  }
  auto resumed = reader_of(folder);
  resumed.seek(3 * 5);
  CHECK(numbers(resumed.next(5, 0, 5)) == batches[3]);
  CHECK(numbers(resumed.next(5, 0, 5)) == batches[4]);
  resumed.seek(0);
  CHECK(numbers(resumed.next(5, 0, 5)) == batches[0]);
}

/// A shard whose datasets are as given; an empty shape leaves one out.
void write_foreign(const std::filesystem::path& path, const std::vector<std::int64_t>& mask_shape,
                   std::int32_t label = 11) {
  auto file = Hdf5File::create(path);
  const auto zeros = [](std::int64_t n) { return std::vector<std::int32_t>(static_cast<std::size_t>(n)); };
  file.write("input_ids", Type::kInt32, {2, 6}, zeros(12));
  if (!mask_shape.empty()) file.write("input_mask", Type::kInt8, mask_shape, zeros(mask_shape[0] * mask_shape[1]));
  file.write("segment_ids", Type::kInt8, {2, 6}, zeros(12));
  file.write("masked_lm_positions", Type::kInt32, {2, 2}, zeros(4));
  file.write("masked_lm_ids", Type::kInt32, {2, 2}, {0, 0, 0, label});
  file.write("next_sentence_labels", Type::kInt8, {2}, zeros(2));
  file.commit();
}

TEST_CASE("PretrainingReader: bad shards are refused by file, dataset") {
  const TempFolder folder;
  const auto path = folder / "x_training_0.hdf5";
  const auto refused = [&](const auto& matcher) { CHECK_THROWS_WITH(reader_of(folder).next(2, 0, 2), matcher); };
  refused(ContainsSubstring("no file there is named *training*.hdf5"));
  CHECK_THROWS_WITH(PretrainingReader({.folder = folder / "nowhere"}),
                    ContainsSubstring("nowhere: there is no such folder"));

  write_foreign(path, {});
  refused(ContainsSubstring("x_training_0.hdf5: dataset 'input_mask' is not there"));
  write_foreign(path, {2, 5});
  refused(ContainsSubstring("x_training_0.hdf5: dataset 'input_mask' has the shape [2, 5] where input_ids has [2, 6]"));
  write_foreign(path, {2, 6}, 100);
  refused(ContainsSubstring("x_training_0.hdf5: dataset 'masked_lm_ids' has the value 100 in row 1") &&
          ContainsSubstring("0 to 99"));
  write_foreign(path, {2, 6});
  CHECK(reader_of(folder).next(2, 0, 2).rows == 2);

  const auto size = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, size - 100);
  refused(ContainsSubstring("x_training_0.hdf5: not a whole HDF5 file"));
  std::ofstream(path) << "no HDF5 at all";
  refused(ContainsSubstring("x_training_0.hdf5: not a whole HDF5 file"));

  write_foreign(path, {2, 6});
  bert_data::write_shard(folder / "y_training_1.hdf5", {0, 8, 2}, {instance(0)});
  refused(ContainsSubstring("y_training_1.hdf5: rows of 8 tokens and 2 predictions, but") &&
          ContainsSubstring("x_training_0.hdf5 has 6 and 2"));
}

TEST_CASE("PretrainingReader: a damaged compressed block is an error") {
  const TempFolder folder;
  const auto path = folder / "training.hdf5";
  std::vector<Instance> instances;
  for (Token i = 0; i < 60; ++i) instances.push_back(instance(i));
  bert_data::write_shard(path, kShape, instances);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  for (auto at = bytes.find("\x78\x5E"); at != std::string::npos;
       at = bytes.find("\x78\x5E", at + 1)) {  // zlib, level 4
    file.seekp(static_cast<std::streamoff>(at + 3));
    file.write("\xFF\xFF\xFF", 3);
  }
  file.close();
  CHECK_THROWS_WITH(reader_of(folder).next(2, 0, 2),
                    ContainsSubstring("training.hdf5: dataset 'input_ids' cannot be read, the file is damaged"));
}

}  // namespace pretraining_reader_test
