#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <span>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>

#include "torch/checkpoint/format.hpp"

namespace autopar {

namespace {

/// What the first failure of a rank said; nothing is attempted after it.
class FirstError {
 public:
  template <class Body>
  void attempt(const Body& body) {
    if (!text_.empty()) return;
    try {
      body();
    } catch (const std::exception& met) {
      text_ = met.what();
    }
  }
  void require_none() const {
    if (!text_.empty()) throw CheckpointError(text_);
  }

 private:
  std::string text_;
};

class SingleFileWriter : public CheckpointWriter {
 public:
  SingleFileWriter(World& world, const std::filesystem::path& file, const std::vector<TensorEntry>& entries,
                   const std::map<std::string, std::string>& metadata)
      : world_(world) {
    if (world_.rank() != 0) return;
    error_.attempt([&] {
      static_cast<void>(remove_partial_files(file));
      file_.emplace(file, entries, metadata);
    });
  }

  void write(const Row& row) override {
    const auto data = to_root(world_, row);
    if (world_.rank() == 0) error_.attempt([&] { file_->write(memory_of(data)); });
  }
  void commit() override {
    if (world_.rank() == 0) error_.attempt([&] { file_->commit(); });
    error_.require_none();
  }

 private:
  World& world_;
  std::optional<SafetensorsWriter> file_;
  FirstError error_;
};

class SingleFileReader : public CheckpointReader {
 public:
  SingleFileReader(World& world, const std::filesystem::path& file) : world_(world) {
    if (world_.rank() != 0) return;
    static_cast<void>(remove_partial_files(file));
    file_.emplace(file);
  }

  const std::map<std::string, std::string>& metadata() const override { return file_->metadata(); }
  bool has_checksums() const override { return file_->has_checksums(); }
  const std::vector<TensorEntry>& entries() const override { return file_->entries(); }
  const TensorEntry* find(const std::string& name) const override { return file_->find(name); }

  void reserve(std::size_t bytes) override {
    if (world_.rank() == 0) whole_.resize(bytes);
  }
  void read(const Row& row, const std::string& name, const at::Tensor& mine) override {
    const auto bytes = static_cast<std::size_t>(row.entry.bytes().value());
    if (world_.rank() == 0) error_.attempt([&] { file_->read(name, std::span(whole_).first(bytes)); });
    const auto element = static_cast<std::size_t>(size_of(row.entry.dtype).value());
    for (std::size_t h = 0; h < row.holders().size(); ++h) {
      const auto part =
          row.shards().empty() ? Interval{0, static_cast<std::int64_t>(bytes / element)} : row.shards()[h];
      const auto begin = static_cast<std::size_t>(part.begin) * element;
      if (!part.empty()) hand_out(row, begin, static_cast<std::size_t>(part.size()) * element, row.holders()[h], mine);
    }
  }
  void finish() override { error_.require_none(); }

 private:
  /// From rank 0's memory to a holder's.
  void hand_out(const Row& row, std::size_t begin, std::size_t bytes, Rank holder, const at::Tensor& mine) {
    const bool is_mine = holder == world_.rank_id();
    if (world_.rank() == 0 && is_mine)
      std::memcpy(mine.data_ptr(), whole_.data() + begin, bytes);
    else if (world_.rank() == 0)
      world_.send(std::span(whole_).subspan(begin, bytes), holder, row.entry.name);
    else if (is_mine)
      world_.receive(memory_of(mine), Rank(0), row.entry.name);
  }

  World& world_;
  std::optional<SafetensorsReader> file_;  // on rank 0
  std::vector<std::byte> whole_;           // on rank 0: one row at a time
  FirstError error_;
};

class SingleFile : public CheckpointFormat {
 public:
  std::filesystem::path file(const std::filesystem::path& folder) const override { return folder / kCheckpointFile; }
  std::unique_ptr<CheckpointWriter> writer(World& world, const std::filesystem::path& folder,
                                           const std::vector<TensorEntry>& entries,
                                           const std::map<std::string, std::string>& metadata) const override {
    return std::make_unique<SingleFileWriter>(world, file(folder), entries, metadata);
  }
  std::unique_ptr<CheckpointReader> reader(World& world, const std::filesystem::path& folder) const override {
    return std::make_unique<SingleFileReader>(world, file(folder));
  }
};

}  // namespace

const CheckpointFormat& single_file() {
  static const SingleFile format;
  return format;
}

}  // namespace autopar
