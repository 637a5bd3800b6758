#include "torch/checkpoint/stored_checkpoint.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <autopar/core/error.hpp>

#include "torch/checkpoint/checkpoint_items.hpp"
#include "torch/checkpoint/pieces.hpp"

namespace autopar::checkpoint {

namespace {

constexpr const char* kFileExtension = ".safetensors";

/// Whether ranges of elements [begin, end) that enclose both have some in common.
bool may_share(const parameters::ShardSlices& a, const parameters::ShardSlices& b, std::int64_t elements) {
  if (a.empty() || b.empty()) return false;
  const auto enclosing = [&](const parameters::ShardSlices& slices) {
    if (slices.is_one_range())
      return Interval{slices.ranges.front().begin + slices.part.begin, slices.ranges.front().begin + slices.part.end};
    const auto block = elements / slices.blocks, length = slices.block_size();
    return Interval{slices.part.begin / length * block, ((slices.part.end - 1) / length + 1) * block};
  };
  const auto of_a = enclosing(a), of_b = enclosing(b);
  return of_a.begin < of_b.end && of_b.begin < of_a.end;
}

}  // namespace

StoredCheckpoint::StoredCheckpoint(const std::filesystem::path& path) {
  std::error_code error;
  const bool is_file = std::filesystem::is_regular_file(path, error);
  const bool is_folder = !is_file && (path.extension() != kFileExtension || std::filesystem::is_directory(path, error));
  auto index = is_folder ? read_index(path) : std::nullopt;
  if (!index) open_file(is_folder ? path / kModelFile : path);
  // Between the index and its files, a save may replace both, or give the files their plain names.
  constexpr int kAttempts = 4;  // at one generation
  for (int attempt = 1; index; ++attempt) {
    const auto generation = index->generation;
    try {
      open_folder(path, *std::move(index));
      return;
    } catch (const CheckpointError&) {
      if (attempt == kAttempts) throw;
      files_.clear();
      identity_.clear();
      index = read_index(path);
      if (!index) throw;
      if (index->generation != generation) attempt = 0;
    }
  }
}

void StoredCheckpoint::open_folder(const std::filesystem::path& folder, CheckpointIndex index) {
  index_ = std::move(index);
  for (const auto& file : index_.files) {
    const auto path = path_of(folder, file.name, index_.generation);
    auto& opened = files_.emplace_back(path);
    if (opened.header_checksum() != file.header_checksum || opened.size() != file.bytes) {
      throw CheckpointError(path.string() +
                            " is not the file that index.json names: it was replaced or damaged; restore it, or load "
                            "an older checkpoint");
    }
    identity_ += std::to_string(file.header_checksum) + ' ';
  }
  for (const auto& tensor : index_.model) add("model." + tensor.entry.name, tensor.entry.name, tensor);
  for (const auto& tensor : index_.optimizer) add("optimizer." + tensor.entry.name, tensor.entry.name, tensor);
  is_sharded_ = std::ranges::none_of(index_.files, [](const auto& file) { return file.name == kModelFile; });
}

void StoredCheckpoint::open_file(const std::filesystem::path& file) {
  const auto& opened = files_.emplace_back(file);
  index_.metadata = opened.metadata();
  for (const auto& entry : opened.entries()) index_.model.push_back({entry, {}, {{0, whole_of(entry)}}});
  for (const auto& tensor : index_.model) add(tensor.entry.name, tensor.entry.name, tensor);
}

void StoredCheckpoint::add(const std::string& name, const std::string& name_in_files, const CheckpointTensor& tensor) {
  places_.emplace(name, Place{entries_.size(), name_in_files, &tensor.parts});
  entries_.push_back({name, tensor.entry.dtype, tensor.entry.shape});
}

bool StoredCheckpoint::has_checksums() const { return std::ranges::all_of(files_, &SafetensorsReader::has_checksums); }

const TensorEntry* StoredCheckpoint::find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &entries_[found->second.entry];
}

void StoredCheckpoint::read_part(const Place& place, const CheckpointPart& part, const at::Tensor& own) const {
  files_[static_cast<std::size_t>(part.file)].read(place.name, memory_of(own));
}

void StoredCheckpoint::read(const std::string& name, const at::Tensor& whole) const {
  read(name, whole_of(*find(name)), whole, whole);
}

void StoredCheckpoint::read(const std::string& name, const parameters::ShardSlices& slices, const at::Tensor& own,
                            const at::Tensor& whole) const {
  const at::NoGradGuard no_grad;
  const auto& place = places_.at(name);
  for (const auto& part : *place.parts) {
    if (part.elements == static_cast<const ElementSlices&>(slices)) return read_part(place, part, own);
  }
  for (const auto& part : *place.parts) {
    const parameters::ShardSlices stored(part.elements);
    if (!may_share(stored, slices, whole.numel())) continue;
    const auto arriving = at::empty({stored.size()}, whole.options());
    read_part(place, part, arriving);
    stored.put(arriving, whole);
  }
  if (!own.is_alias_of(whole)) own.view({-1}).copy_(slices.of(whole).reshape({-1}));
}

}  // namespace autopar::checkpoint
