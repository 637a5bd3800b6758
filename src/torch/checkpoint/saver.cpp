#include "torch/checkpoint/saver.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>

#include <autopar/core/error.hpp>
#include <autopar/io/free_space.hpp>
#include <autopar/io/host_name.hpp>
#include <autopar/plan/text.hpp>

#include "torch/checkpoint/agreement.hpp"
#include "torch/checkpoint/streamed_copy.hpp"
#include "torch/device/host_copies.hpp"
#include "torch/parameters/gradient_buckets.hpp"
#include "torch/ranks/collective_try.hpp"

namespace autopar::checkpoint {

namespace {

constexpr std::int64_t kAlignment = 64;
constexpr auto kLongestEnd = std::chrono::seconds(30);  ///< that the end of a model waits for a save

/// Where copies come from; the CPU if none is on another device.
c10::Device device_of(const std::vector<ShardedTensorMetadata>& tensors) {
  const auto elsewhere = std::ranges::find_if(tensors, [](const auto& tensor) { return !tensor.handle.is_cpu(); });
  return elsewhere == tensors.end() ? c10::Device(c10::kCPU) : elsewhere->handle.device();
}

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

/// One save at a time writes to a folder: other models of this process are refused meanwhile.
class Saver::Claim {
 public:
  explicit Claim(const std::filesystem::path& folder) : folder_(std::filesystem::canonical(folder).string()) {
    const std::lock_guard lock(mutex());
    if (folders().insert(folder_).second) return;
    throw CheckpointError(
        "another model of this job is saving to this folder; call that model's wait() before, or name another folder");
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() {
    const std::lock_guard lock(mutex());
    folders().erase(folder_);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::set<std::string>& folders() {
    static std::set<std::string> claimed;
    return claimed;
  }
  std::string folder_;
};

Saver::Saver(ranks::WorldRanks& ranks, calls::LateFailure& failure) : ranks_(ranks), failure_(failure) {}

Saver::~Saver() {
  if (!background_) return;
  if (failure_.is_thrown()) return;  // all ranks know that it failed, so nothing completes it
  const auto log = ranks_.logger(LogModule::kCheckpoint);
  const auto folder = background_->folder().string();
  const bool ended = background_->has_ended(kLongestEnd);
  if (!ended)
    log.warn("abandoned the save of " + folder + " when the model ended; call model->wait() before");
  else if (!background_->error().empty())
    log.error("the save of " + folder + " failed: " + background_->error());
  else if (ranks_.is_first())
    log.info("completed the save of " + folder + " when the model ended");
}

void Saver::lock(const std::filesystem::path& folder) {
  if (lock_ && locked_ == folder && FolderLock::is_held_here(folder)) return;  // else the folder was removed
  lock_.reset();
  locked_.clear();
  if (FolderLock::is_held_here(folder)) return;  // another model of this job saves there, too
  lock_.emplace(folder);
  locked_ = folder;
}

void Saver::save(const std::filesystem::path& folder, const SaveOptions& options,
                 const std::vector<ShardedTensorMetadata>& tensors,
                 const std::vector<torch::optim::Optimizer*>& optimizers, const CheckpointInfo& info,
                 const std::map<std::string, KeptValue>& kept) {
  wait();
  const auto format = options.format.value_or(ranks_.size() == 1 ? single_file() : sharded());
  Saving saving(ranks_.world(), format, folder, tensors, optimizers, info, kept);
  std::unique_ptr<Claim> claim;
  saving.agree([&] {
    lock(folder);
    claim = std::make_unique<Claim>(folder);
  });
  if (!options.wait) {
    continue_in_background(saving, device_of(tensors));
    claim_ = std::move(claim);
    return;
  }
  saving.write();
  saving.publish();
}

SavedParts Saver::save_parts(const std::filesystem::path& folder, const AcceptParts& accept,
                             const std::vector<ShardedTensorMetadata>& tensors,
                             const std::vector<torch::optim::Optimizer*>& optimizers, const CheckpointInfo& info,
                             const std::map<std::string, KeptValue>& kept) {
  Saving saving(ranks_.world(), sharded(), folder, tensors, optimizers, info, kept);
  saving.agree_on_parts();
  if (!accept(saving.plan().bytes_of(ranks_.rank()))) return {};
  return saving.write_parts();
}

void Saver::continue_in_background(Saving& saving, c10::Device device) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> copies;
  require_host_memory(saving.plan());
  all_or_none(ranks_.world(), kSaveAction, saving.subject(), [&] { copies = memory_for(saving.plan(), device); });
  std::size_t next = 0;
  saving.for_each_piece([&](const at::Tensor& piece) {
    const auto& copy = copies[next++];
    if (piece.is_cpu() && piece.is_contiguous() && piece.scalar_type() == copy.scalar_type())
      streamed_copy(memory_of(piece), memory_of(copy));
    else
      copy.view(piece.sizes()).copy_(piece.detach(), /*non_blocking=*/true);  // pieces may have any strides
  });
  failure_.begin();
  const auto copied = std::make_shared<devices::DeviceEvent>();
  copied->set(device);
  background_ = std::make_unique<BackgroundSave>(
      saving.plan(), ranks_.rank(), std::move(copies), [copied] { copied->wait(); }, failure_);
}

/// That the host has memory for the copies of all its ranks, beside what they have from earlier saves.
void Saver::require_host_memory(const SavePlan& plan) {
  const auto mine = host_name();
  const auto hosts = ranks_.all_gather(ranks::blob_of(mine), kSaveAction);
  const auto has = std::to_string(memory_.defined() ? memory_.numel() : 0);
  const auto sizes = ranks_.all_gather(ranks::blob_of(has), kSaveAction);
  std::int64_t needed = 0;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    if (ranks::text_of(hosts[r]) != mine) continue;
    needed += std::max<std::int64_t>(plan.bytes_of(Rank::of(r)).value() - std::stoll(ranks::text_of(sizes[r])), 0);
  }
  all_or_none(ranks_.world(), kSaveAction, "cannot save " + plan.folder.string() + " in the background", [&] {
    const auto available = available_memory();
    if (!available || needed <= available->value()) return;
    throw CheckpointError("copies of what the ranks of host '" + mine + "' hold need " + readable(Bytes(needed)) +
                          ", its memory has " + readable(*available) + " available; pass {.wait = true}");
  });
}

std::vector<at::Tensor> Saver::memory_for(const SavePlan& plan, c10::Device device) {
  std::int64_t bytes = 0;
  for (const auto& piece : plan.pieces) {
    if (piece.writer == ranks_.rank()) bytes += aligned(piece.entry.bytes().value());
  }
  if (!memory_.defined() || memory_.numel() < bytes) {
    memory_.reset();
    memory_ = devices::host_memory(bytes, at::kByte, device);
  }
  std::vector<at::Tensor> copies;
  std::int64_t begin = 0;
  for (const auto& piece : plan.pieces) {
    if (piece.writer != ranks_.rank()) continue;
    const auto size = piece.entry.bytes().value();
    const auto type = parameters::scalar_type_of(piece.entry.dtype);
    copies.push_back(memory_.narrow(0, begin, size).view(type).view(piece.entry.shape));
    begin += aligned(size);
  }
  return copies;
}

void Saver::wait_until(bool (BackgroundSave::*is_done)(std::chrono::milliseconds)) {
  constexpr std::chrono::milliseconds kTurn(1000);
  std::vector<std::int64_t> waiting{1};
  while (waiting.front() > 0) {
    waiting = {(*background_.*is_done)(kTurn) ? 0 : 1};
    ranks_.world().all_reduce_sum(std::span(waiting), kSaveAction);
  }
}

void Saver::wait() {
  if (background_) {
    wait_until(&BackgroundSave::has_written);
    std::vector<std::int64_t> failed{background_->error().empty() ? 0 : 1};
    ranks_.world().all_reduce_sum(std::span(failed), kSaveAction);
    if (failed.front() == 0) wait_until(&BackgroundSave::has_ended);
    background_.reset();
    claim_.reset();
  }
  calls::require_no_late_failure(ranks_, failure_);
}

}  // namespace autopar::checkpoint
