#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <span>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>

#include "torch/checkpoint/format.hpp"
#include "torch/parameters/gradient_buckets.hpp"

namespace autopar::checkpoint {

namespace {

/// The first error of a rank; nothing is attempted after it.
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

  void write(const CheckpointItem& item) override {
    const auto data = to_root(world_, item);
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

  void verify(const CheckpointItem& item, const std::string& name) override {
    if (!file_->has_checksums()) return;
    whole_.resize(std::max(whole_.size(), static_cast<std::size_t>(item.entry.bytes().value())));
    file_->read(name, std::span(whole_).first(static_cast<std::size_t>(item.entry.bytes().value())));
  }

  void reserve(std::size_t bytes) override {
    if (world_.rank() == 0) whole_ = std::vector<std::byte>(bytes);
  }
  void read(const CheckpointItem& item, const std::string& name, const at::Tensor& mine) override {
    const auto bytes = static_cast<std::size_t>(item.entry.bytes().value());
    if (world_.rank() == 0) error_.attempt([&] { file_->read(name, std::span(whole_).first(bytes)); });
    const auto whole = world_.rank() == 0 ? at::from_blob(whole_.data(), item.entry.shape,
                                                          parameters::scalar_type_of(item.entry.dtype))
                                          : at::Tensor();
    for (std::size_t h = 0; h < item.holders().size(); ++h) {
      const auto part = item.shards().empty() ? parameters::ShardSlices() : item.shards()[h];
      if (item.entry.bytes() == Bytes(0) || (!item.shards().empty() && part.empty())) continue;
      const auto own = world_.rank() != 0 || item.shards().empty() ? whole : part.of(whole);
      hand_out(item, own, item.holders()[h], mine);
    }
  }
  void finish() override { error_.require_none(); }

 private:
  /// Sends data from rank 0 to a holder.
  /// @param part  on rank 0
  void hand_out(const CheckpointItem& item, const at::Tensor& part, Rank holder, const at::Tensor& mine) {
    const at::NoGradGuard no_grad;
    const bool is_mine = holder == world_.rank_id();
    if (world_.rank() == 0 && is_mine)
      mine.view(part.sizes()).copy_(part);
    else if (world_.rank() == 0)
      world_.send(memory_of(part.contiguous()), holder, item.entry.name);
    else if (is_mine)
      world_.receive(memory_of(mine), Rank(0), item.entry.name);
  }

  World& world_;
  std::optional<SafetensorsReader> file_;  // on rank 0
  std::vector<std::byte> whole_;           // on rank 0: one item at a time
  FirstError error_;
};

class SingleFile : public Format {
 public:
  std::string_view name() const override { return "single_file"; }
  /// A file in the folder, or the named file itself, as for files of other programs.
  std::filesystem::path file(const std::filesystem::path& folder) const override {
    return folder.extension() == std::filesystem::path(kCheckpointFile).extension() ? folder : folder / kCheckpointFile;
  }
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

}  // namespace autopar::checkpoint

namespace autopar {

std::string_view CheckpointFormat::name() const { return format_->name(); }

CheckpointFormat single_file() { return CheckpointFormat(std::make_shared<checkpoint::SingleFile>()); }

}  // namespace autopar
