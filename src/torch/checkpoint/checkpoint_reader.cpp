#include "torch/checkpoint/checkpoint_reader.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <autopar/io/folder_lock.hpp>

#include "torch/parameters/gradient_buckets.hpp"

namespace autopar::checkpoint {

namespace {

/// Unless a save is under way, or the folder cannot be written: then the next save does it. Without orphans the folder
/// is not locked, so that no save that begins meanwhile is refused.
void try_to_remove_orphans(const std::filesystem::path& folder) {
  try {
    if (!has_orphans(folder)) return;
    const FolderLock lock(folder);
    remove_orphans(folder);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): nothing is lost
  }
}

}  // namespace

CheckpointReader::CheckpointReader(World& world, const std::filesystem::path& path) : world_(world), path_(path) {
  if (world_.rank() != 0) return;
  try_to_remove_orphans(path);
  stored_.emplace(path);
}

void CheckpointReader::share() {
  const bool is_root = world_.rank() == 0;
  const auto wanted = told_by_rank_0(world_, is_root && stored_->is_sharded() ? stored_->identity() : "", kLoadAction);
  if (wanted.empty() || world_.size() == 1) return;
  std::int64_t sees = 1;
  if (!is_root) {
    try {
      stored_.emplace(path_);
      sees = stored_->identity() == wanted ? 1 : 0;
    } catch (const std::exception&) {
      sees = 0;
    }
  }
  std::vector<std::int64_t> count{sees};
  world_.all_reduce_sum(std::span(count), kLoadAction);
  is_shared_ = count.front() == world_.size();
  if (!is_shared_ && !is_root) stored_.reset();
}

at::Tensor CheckpointReader::whole_of_item(const CheckpointItem& item) {
  const auto bytes = item.entry.bytes().value();
  if (!memory_.defined() || memory_.numel() < bytes) memory_ = at::empty({bytes}, at::kByte);
  return memory_.narrow(0, 0, bytes).view(parameters::scalar_type_of(item.entry.dtype)).view(item.entry.shape);
}

void CheckpointReader::verify(std::size_t number, const CheckpointItem& item, const std::string& name) {
  const auto reader = is_shared_ ? number % static_cast<std::size_t>(world_.size()) : 0;
  if (reader == world_.rank_id().index() && stored_->has_checksums()) stored_->read(name, whole_of_item(item));
}

void CheckpointReader::reserve(const std::vector<CheckpointItem>& items) {
  memory_.reset();
  std::int64_t most = 0;
  for (const auto& item : items) most = std::max(most, item.entry.bytes().value());
  if (stored_ && most > 0) memory_ = at::empty({most}, at::kByte);
}

void CheckpointReader::read(const CheckpointItem& item, const std::string& name, const at::Tensor& mine) {
  if (is_shared_) return error_.attempt([&] { read_mine(item, name, mine); });
  at::Tensor whole;
  if (world_.rank() == 0) {
    error_.attempt([&] { stored_->read(name, whole_of_item(item)); });
    whole = whole_of_item(item);
  }
  for (std::size_t h = 0; h < item.holders().size(); ++h) {
    const auto part = item.shards().empty() ? parameters::ShardSlices() : item.shards()[h];
    if (item.entry.bytes() == Bytes(0) || (!item.shards().empty() && part.empty())) continue;
    const auto own = world_.rank() != 0 || item.shards().empty() ? whole : part.of(whole);
    hand_out(item, own, item.holders()[h], mine);
  }
}

void CheckpointReader::read_mine(const CheckpointItem& item, const std::string& name, const at::Tensor& mine) {
  if (!mine.defined() || mine.numel() == 0) return;
  if (item.shards().empty()) return stored_->read(name, mine.view(item.entry.shape));
  const auto self = std::ranges::find(item.holders(), world_.rank_id()) - item.holders().begin();
  stored_->read(name, item.shards()[static_cast<std::size_t>(self)], mine, whole_of_item(item));
}

/// Sends data from rank 0 to a holder.
/// @param part  on rank 0
void CheckpointReader::hand_out(const CheckpointItem& item, const at::Tensor& part, Rank holder,
                                const at::Tensor& mine) {
  const at::NoGradGuard no_grad;
  const bool is_mine = holder == world_.rank_id();
  if (world_.rank() == 0 && is_mine)
    mine.view(part.sizes()).copy_(part);
  else if (world_.rank() == 0)
    world_.send(memory_of(part.contiguous()), holder, item.entry.name);
  else if (is_mine)
    world_.receive(memory_of(mine), Rank(0), item.entry.name);
}

}  // namespace autopar::checkpoint
