#include "pretraining_reader.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "random.hpp"

namespace bert_data {
namespace {

/// Different for each seed, epoch and file.
std::uint64_t mixed(std::uint64_t seed, std::uint64_t epoch, std::uint64_t file) {
  std::uint64_t x = seed * 0x9E3779B97F4A7C15u + epoch * 0xBF58476D1CE4E5B9u + file;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

std::vector<std::size_t> ascending(std::size_t count) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  return order;
}

}  // namespace

std::vector<std::filesystem::path> shards_in(const std::filesystem::path& folder, const std::string& part) {
  if (!std::filesystem::is_directory(folder)) {
    throw std::runtime_error(folder.string() + ": there is no such folder; make_pretraining_data makes it from a text");
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    const auto extension = entry.path().extension();
    if ((extension == ".hdf5" || extension == ".h5") && name.find(part) != std::string::npos)
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

PretrainingReader::PretrainingReader(Options options)
    : options_(std::move(options)), files_(shards_in(options_.folder, options_.part)), starts_{0} {
  if (files_.empty()) {
    throw std::runtime_error(options_.folder.string() + ": no file there is named *" + options_.part +
                             "*.hdf5; make_pretraining_data makes them from a text");
  }
  for (const auto& file : files_) {
    const auto shape = shard_shape(file);
    if (sizes_.empty()) shape_ = shape;
    if (shape.length != shape_.length || shape.predictions != shape_.predictions) {
      throw std::runtime_error(file.string() + ": rows of " + std::to_string(shape.length) + " tokens and " +
                               std::to_string(shape.predictions) + " predictions, but " + files_.front().string() +
                               " has " + std::to_string(shape_.length) + " and " + std::to_string(shape_.predictions) +
                               "; the shards of a folder must be of one kind");
    }
    sizes_.push_back(shape.rows);
    starts_.push_back(starts_.back() + shape.rows);
  }
}

PretrainingReader::Epoch PretrainingReader::epoch(std::int64_t number) const {
  Epoch epoch{number, ascending(files_.size())};
  if (!options_.in_order) Random(mixed(options_.seed, static_cast<std::uint64_t>(number), 0)).shuffle(epoch.shards);
  epoch.starts.push_back(0);
  for (const auto shard : epoch.shards) epoch.starts.push_back(epoch.starts.back() + sizes_[shard]);
  return epoch;
}

std::future<PretrainingReader::Loaded> PretrainingReader::start_loading(const Epoch& epoch, std::size_t at) const {
  const auto file = epoch.shards[at];
  const auto seed = mixed(options_.seed, static_cast<std::uint64_t>(epoch.number), file + 1);
  const auto read = [path = files_[file], limits = options_.limits, in_order = options_.in_order, seed,
                     number = epoch.number, at] {
    Loaded loaded{number, at, read_shard(path, limits)};
    loaded.order = ascending(static_cast<std::size_t>(loaded.shard.shape.rows));
    if (!in_order) Random(seed).shuffle(loaded.order);
    return loaded;
  };
  return std::async(std::launch::async, read);
}

std::size_t PretrainingReader::load(std::int64_t row) {
  const auto number = options_.in_order ? 0 : row / rows();
  if (epoch_.number != number) epoch_ = epoch(number);
  const auto in_epoch = row % rows();
  const auto after = std::upper_bound(epoch_.starts.begin(), epoch_.starts.end(), in_epoch);
  const auto at = static_cast<std::size_t>(after - epoch_.starts.begin() - 1);
  if (loaded_.epoch != number || loaded_.at != at) {
    if (!next_.valid() || awaited_ != std::pair(number, at)) {
      next_ = start_loading(epoch_, at);
    }
    loaded_ = next_.get();
    const bool is_last = at + 1 == epoch_.shards.size();
    awaited_ = {number + (is_last && !options_.in_order ? 1 : 0), is_last ? 0 : at + 1};
    if (awaited_ != std::pair(number, at)) next_ = start_loading(epoch(awaited_.first), awaited_.second);
  }
  return static_cast<std::size_t>(in_epoch - epoch_.starts[at]);
}

PretrainingBatch PretrainingReader::next(std::int64_t batch, std::int64_t begin, std::int64_t end) {
  PretrainingBatch out;
  for (auto row = position_ + begin; row < position_ + end; ++row) {
    const auto place = load(row);
    append(out, loaded_.order[place]);
  }
  out.rows = end - begin;
  position_ += batch;
  return out;
}

void PretrainingReader::append(PretrainingBatch& to, std::size_t row) const {
  const auto& shard = loaded_.shard;
  const auto length = static_cast<std::size_t>(shape_.length),
             predictions = static_cast<std::size_t>(shape_.predictions);
  const auto copy = [&](std::vector<std::int64_t>& out, const std::vector<std::int32_t>& from, std::size_t width) {
    const auto* first = from.data() + row * width;
    out.insert(out.end(), first, first + width);
  };
  copy(to.input_ids, shard.input_ids, length);
  copy(to.segment_ids, shard.segment_ids, length);
  copy(to.input_mask, shard.input_mask, length);
  bool has_ended = false;
  for (std::size_t i = row * predictions; i < (row + 1) * predictions; ++i) {
    has_ended = has_ended || shard.masked_lm_positions[i] == 0;
    to.positions.push_back(has_ended ? 0 : shard.masked_lm_positions[i]);
    to.labels.push_back(has_ended ? -1 : shard.masked_lm_ids[i]);
  }
  to.next_sentence.push_back(shard.next_sentence_labels[row]);
}

}  // namespace bert_data
