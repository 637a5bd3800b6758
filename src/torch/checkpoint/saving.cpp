#include "torch/checkpoint/saving.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <map>
#include <span>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/free_space.hpp>

#include "torch/checkpoint/agreement.hpp"
#include "torch/checkpoint/metadata.hpp"

namespace autopar::checkpoint {

namespace {

/// Whether a file has this content, now or soon: on network file systems new files appear late.
bool comes_to_have(const std::filesystem::path& file, const std::string& content) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  do {
    try {
      if (read_text_file(file) == content) return true;
    } catch (const ConfigError&) {  // NOLINT(bugprone-empty-catch): not there yet
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

Saving::Saving(World& world, CheckpointFormat format, std::filesystem::path folder,
               const std::vector<ShardedTensorMetadata>& tensors,
               const std::vector<torch::optim::Optimizer*>& optimizers, const CheckpointInfo& info,
               const std::map<std::string, KeptValue>& kept)
    : world_(world),
      folder_(std::move(folder)),
      subject_("cannot save " + folder_.string()),
      format_(format),
      items_(in_file_order(model_items(tensors), state_items(tensors, optimizers))),
      optimizers_(optimizers),
      info_(info),
      kept_(kept) {}

SavedInfo Saving::described() const {
  SavedInfo saved{info_, {}, kept_};
  for (const auto* optimizer : optimizers_) saved.optimizers.push_back(describe(*optimizer));
  return saved;
}

void Saving::divide(const SavedInfo& saved, std::int64_t generation) {
  require_same_items(world_, items_, subject_);
  const auto there = existing(world_, items_);
  std::size_t i = 0;
  std::erase_if(items_, [&](const CheckpointItem&) { return there[i++] == 0; });
  pieces_ = pieces_of(items_, format_);
  plan_ = save_plan(folder_, format_, generation, items_, pieces_, to_metadata(saved));
}

void Saving::agree_on_parts() {
  SavedInfo saved;
  all_or_none(world_, kSaveAction, subject_, [&] { saved = described(); });
  divide(saved, 1);
}

void Saving::agree(const std::function<void()>& lock) {
  SavedInfo saved;
  std::string generation;
  std::optional<CheckpointIndex> present;  // on rank 0
  all_or_none(world_, kSaveAction, subject_, [&] {
    saved = described();
    if (world_.rank() != 0) return;
    if (folder_.empty()) throw CheckpointError("the folder has no name");
    lock();  // makes the folder
    try {
      present = remove_orphans(folder_);
    } catch (const CheckpointError& error) {
      throw CheckpointError(std::string(error.what()) +
                            "; a save does not replace what it cannot read: remove this file, or name another folder");
    }
    generation = std::to_string(next_generation(folder_, present));
  });
  divide(saved, std::stoll(told_by_rank_0(world_, generation, kSaveAction)));
  if (format_ == CheckpointFormat::kSharded && world_.size() > 1) require_common_folder();
  all_or_none(world_, kSaveAction, subject_, [&] {
    if (world_.rank() != 0) return;
    if (format_ == CheckpointFormat::kSingleFile) require_replaceable(folder_, present, plan_.index);
    require_space(folder_, plan_.bytes());
  });
}

void Saving::require_common_folder() {
  const auto file = folder_ / kSeenFile;
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const auto content = told_by_rank_0(
      world_, std::to_string(now) + " generation " + std::to_string(plan_.index.generation), kSaveAction);
  all_or_none(world_, kSaveAction, subject_, [&] {
    if (world_.rank() == 0) std::ofstream(file) << content;
  });
  const auto remove = [&] {
    std::error_code error;
    if (world_.rank() == 0) std::filesystem::remove(file, error);
  };
  try {
    all_or_none(world_, kSaveAction, subject_, [&] {
      if (world_.rank() == 0 || comes_to_have(file, content)) return;
      throw CheckpointError(
          "it does not see this folder of rank 0; save to a folder that all hosts share, or pass "
          "{.format = ap::single_file()}, of which rank 0 writes all");
    });
  } catch (const CheckpointError&) {
    remove();
    throw;
  }
  remove();
}

void Saving::for_each_piece(const std::function<void(const at::Tensor&)>& take) {
  if (format_ == CheckpointFormat::kSingleFile) {
    for (const auto& item : items_) {
      const bool is_here = item.shards().empty() && item.holders().front() == Rank(0);  // nothing is sent
      const auto whole = is_here ? (world_.rank() == 0 ? item.value() : at::Tensor()) : to_root(world_, item);
      if (world_.rank() == 0) take(whole);
    }
    return;
  }
  // Ranks meet now and then, so that none counts as stalled while another writes much.
  constexpr std::int64_t kPortion = std::int64_t{4} << 30;  // bytes
  std::map<Rank, std::int64_t> taken;
  for (const auto& [i, writer, slices] : pieces_) {
    if (writer == world_.rank_id()) take(items_[i].value());
    auto& bytes = taken[writer];
    bytes += slices.size() * size_of(items_[i].entry.dtype).value();
    if (bytes < kPortion) continue;
    world_.barrier(kSaveAction);
    taken.clear();
  }
}

std::vector<CheckpointFile> Saving::write() {
  std::vector<CheckpointFile> written;
  FirstError error;
  std::optional<RankFiles> files;
  error.attempt([&] { files.emplace(plan_, world_.rank_id()); });
  for_each_piece([&](const at::Tensor& piece) { error.attempt([&] { files->write(to_cpu(piece)); }); });
  error.attempt([&] { written = files->finish(); });
  all_or_none(world_, kSaveAction, subject_, [&] { error.require_none(); });
  return written;
}

SavedParts Saving::write_parts() {
  std::string mine;
  for (const auto& file : write()) {
    mine += file.name + ' ' + std::to_string(file.bytes.value()) + ' ' + std::to_string(file.header_checksum) + '\n';
  }
  SavedParts parts;
  for (const auto& told : world_.all_gather(std::as_bytes(std::span(mine)), kSaveAction)) {
    auto& names = parts.files.emplace_back();
    std::istringstream lines(std::string(reinterpret_cast<const char*>(told.data()), told.size()));
    std::int64_t bytes = 0;
    std::uint64_t checksum = 0;
    for (std::string name; lines >> name >> bytes >> checksum;) {
      *std::ranges::find(plan_.index.files, name, &CheckpointFile::name) = {name, Bytes(bytes), checksum};
      names.push_back(name);
    }
  }
  parts.index = to_json(plan_.index);
  return parts;
}

void Saving::publish() {
  all_or_none(world_, kSaveAction, subject_, [&] {
    if (world_.rank() == 0) checkpoint::publish(plan_);
  });
}

}  // namespace autopar::checkpoint
