#include "torch/checkpoint/rank_files.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include <autopar/core/error.hpp>

namespace autopar::checkpoint {

namespace {

Section section_of(const CheckpointItem& item) {
  return item.optimizer == nullptr ? Section::kModel : Section::kOptimizer;
}

/// "model.layer.weight" is "layer.weight" in the files of the model.
std::string name_in_files(const CheckpointItem& item) {
  return item.entry.name.substr(std::string_view(item.optimizer == nullptr ? "model." : "optimizer.").size());
}

/// The position of a file in the index, where it is entered if it is new.
std::int32_t file_in(CheckpointIndex& index, const std::string& name) {
  const auto found = std::ranges::find(index.files, name, &CheckpointFile::name);
  if (found != index.files.end()) return static_cast<std::int32_t>(found - index.files.begin());
  index.files.push_back({name, Bytes(0), 0});
  return static_cast<std::int32_t>(index.files.size() - 1);
}

/// Other names of a file's tensors, as Python's `safetensors.torch.load_model` expects them.
std::map<std::string, std::string> aliases_in(const SavePlan& plan, Section section) {
  std::map<std::string, std::string> metadata;
  if (section != Section::kModel) return metadata;
  for (const auto& tensor : plan.index.model) {
    for (const auto& alias : tensor.aliases) metadata.emplace(alias, tensor.entry.name);
  }
  return metadata;
}

}  // namespace

Bytes SavePlan::bytes() const {
  Bytes sum(0);
  for (const auto& piece : pieces) sum += piece.entry.bytes();
  return sum;
}

Bytes SavePlan::bytes_of(Rank writer) const {
  Bytes sum(0);
  for (const auto& piece : pieces) {
    if (piece.writer == writer) sum += piece.entry.bytes();
  }
  return sum;
}

SavePlan save_plan(std::filesystem::path folder, CheckpointFormat format, std::int64_t generation,
                   const std::vector<CheckpointItem>& items, const std::vector<Piece>& pieces,
                   std::map<std::string, std::string> metadata) {
  SavePlan plan{std::move(folder), format, {}, {}};
  plan.index.generation = generation;
  plan.index.metadata = std::move(metadata);
  std::size_t last = items.size();
  for (const auto& [i, writer, slices] : pieces) {
    const auto& item = items[i];
    const auto section = section_of(item);
    auto& tensors = section == Section::kModel ? plan.index.model : plan.index.optimizer;
    auto entry = item.entry;
    entry.name = name_in_files(item);
    if (i != last) {
      tensors.push_back({entry, section == Section::kModel ? item.tensor->aliases : std::vector<std::string>(), {}});
    }
    last = i;
    const auto file = file_in(plan.index, data_file(format, section, writer, generation));
    tensors.back().parts.push_back({file, slices});
    if (slices != whole_of(item.entry)) entry.shape = {slices.size()};
    plan.pieces.push_back({writer, section, std::move(entry)});
  }
  return plan;
}

RankFiles::RankFiles(const SavePlan& plan, Rank self) {
  std::map<Section, std::vector<TensorEntry>> entries;
  for (const auto& piece : plan.pieces) {
    if (piece.writer != self) continue;
    order_.push_back(piece.section);
    entries[piece.section].push_back(piece.entry);
  }
  for (auto& [section, own] : entries) {
    const auto name = data_file(plan.format, section, self, plan.index.generation);
    const auto path = path_aside(plan.folder, name, plan.index.generation);
    files_.emplace(section, File{name, SafetensorsWriter(path, std::move(own), aliases_in(plan, section))});
  }
}

void RankFiles::write(const at::Tensor& data) { files_.at(order_.at(next_++)).writer.write(memory_of(data)); }

std::vector<CheckpointFile> RankFiles::finish() {
  std::vector<CheckpointFile> written;
  for (auto& [section, file] : files_) {
    file.writer.commit();
    written.push_back({file.name, file.writer.size(), file.writer.header_checksum()});
  }
  return written;
}

bool all_files_are_there(const SavePlan& plan) {
  return std::ranges::all_of(plan.index.files, [&](const auto& file) {
    std::error_code error;
    return std::filesystem::exists(path_aside(plan.folder, file.name, plan.index.generation), error);
  });
}

void publish(SavePlan plan) {
  for (auto& file : plan.index.files) {
    const SafetensorsReader written(path_aside(plan.folder, file.name, plan.index.generation));
    file.bytes = written.size();
    file.header_checksum = written.header_checksum();
  }
  publish(plan.folder, plan.index);
}

}  // namespace autopar::checkpoint
