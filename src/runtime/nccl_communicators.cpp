#include <autopar/runtime/config.hpp>

#if AUTOPAR_HAS_CUDA

#include "nccl_communicators.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "names.hpp"

namespace autopar::detail {
namespace {

// A message waits within its kernel, beside the receiver's computation. Matrix products that find more than two
// multiprocessors occupied take up to twice as long (benchmarks/NOTES.md).
constexpr int kBlocksOfMessages = 2;

}  // namespace

void NcclCommunicators::connect(const std::vector<DirectedPair>& pairs) {
  const auto ids = exchange_ids(pairs.size(), [&](std::size_t i) { return pairs[i].from; });
  const DeviceGuard guard(device_);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const DirectedPair pair = pairs[i];
    if (pair.from != rank() && pair.to != rank()) continue;
    const auto key = std::pair(pair.from, pair.to);
    if (pairs_.contains(key)) continue;
    auto communicator = std::make_unique<NcclCommunicator>(
        std::to_string(pair.from.value()) + " -> " + std::to_string(pair.to.value()), ids[i], 2,
        pair.from == rank() ? 0 : 1, kBlocksOfMessages, world_.shared_health());
    first_message(*communicator, pair.from == rank());
    const std::lock_guard lock(mutex_);
    pairs_.emplace(key, std::move(communicator));
  }
}

GroupId NcclCommunicators::make_group(const std::vector<Rank>& ranks) {
  const bool ascending = std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>{}) == ranks.end();
  if (ranks.empty() || !ascending || !ranks.front().valid() || ranks.back().value() >= world_.size()) {
    throw InvalidArgument("a group's ranks must be ascending, distinct and in [0, " + std::to_string(world_.size()) +
                          ")");
  }
  const GroupId group{static_cast<std::int32_t>(groups_.size())};
  const auto ids = exchange_ids(1, [&](std::size_t) { return ranks.front(); });
  const auto self = std::find(ranks.begin(), ranks.end(), rank());
  std::unique_ptr<NcclCommunicator> communicator;
  if (self != ranks.end()) {
    const DeviceGuard guard(device_);
    communicator = std::make_unique<NcclCommunicator>(
        "group " + std::to_string(group.value), ids.front(), static_cast<int>(ranks.size()),
        static_cast<int>(self - ranks.begin()), NcclCommunicator::kAnyBlocks, world_.shared_health());
    first_sum(*communicator);
  }
  const std::lock_guard lock(mutex_);
  groups_.push_back(std::move(communicator));
  return group;
}

NcclCommunicator& NcclCommunicators::between(Rank from, Rank to) const {
  const auto found = pairs_.find({from, to});
  if (found != pairs_.end()) return *found->second;
  throw InvalidArgument("no NCCL communicator from " + name(from) + " to " + name(to) +
                        "; connect() must name every directed pair that exchanges messages");
}

NcclCommunicator& NcclCommunicators::of_group(GroupId group) const {
  const auto index = static_cast<std::size_t>(group.value);
  if (group.value >= 0 && index < groups_.size() && groups_[index]) return *groups_[index];
  throw InvalidArgument(name(rank()) + " is no member of group " + std::to_string(group.value) +
                        " and cannot take part in its collectives");
}

// ---------------------------------------------------------------- making them

/// One id for each of `count` communicators, made by `maker(i)`; collective over the world, one round.
std::vector<ncclUniqueId> NcclCommunicators::exchange_ids(std::size_t count,
                                                          const std::function<Rank(std::size_t)>& maker) {
  Blob own(count * sizeof(ncclUniqueId));
  for (std::size_t i = 0; i < count; ++i) {
    if (maker(i) != rank()) continue;
    ncclUniqueId id;
    if (const ncclResult_t code = ncclGetUniqueId(&id); code != ncclSuccess) {
      throw TransportError(std::string("ncclGetUniqueId: ") + ncclGetErrorString(code), rank(), Rank::none(),
                           "ncclGetUniqueId", static_cast<int>(code));
    }
    std::memcpy(own.data() + i * sizeof id, &id, sizeof id);
  }
  const auto all = world_.control().all_gather(own, "making NCCL communicators");
  std::vector<ncclUniqueId> ids(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Blob& from = all[maker(i).index()];
    if (from.size() != own.size()) {
      throw InvalidArgument(name(maker(i)) + " makes other NCCL communicators than " + name(rank()) +
                            "; connect and make_group take the same arguments on every rank");
    }
    std::memcpy(&ids[i], from.data() + i * sizeof(ncclUniqueId), sizeof(ncclUniqueId));
  }
  return ids;
}

/// NCCL connects at the first operation, which waits for the other side: better here than within a step.
void NcclCommunicators::first_message(NcclCommunicator& communicator, bool sends) const {
  void* scratch = nullptr;
  check_cuda("cudaMallocAsync", cudaMallocAsync(&scratch, 1, communicator.stream()), rank());
  const ncclResult_t code = sends ? ncclSend(scratch, 1, ncclInt8, 1, communicator.get(), communicator.stream())
                                  : ncclRecv(scratch, 1, ncclInt8, 0, communicator.get(), communicator.stream());
  communicator.settle("first message", code);
  check_cuda("cudaFreeAsync", cudaFreeAsync(scratch, communicator.stream()), rank());
}

void NcclCommunicators::first_sum(NcclCommunicator& communicator) const {
  void* scratch = nullptr;
  check_cuda("cudaMallocAsync", cudaMallocAsync(&scratch, sizeof(float), communicator.stream()), rank());
  check_cuda("cudaMemsetAsync", cudaMemsetAsync(scratch, 0, sizeof(float), communicator.stream()), rank());
  communicator.settle(
      "first sum", ncclAllReduce(scratch, scratch, 1, ncclFloat32, ncclSum, communicator.get(), communicator.stream()));
  check_cuda("cudaFreeAsync", cudaFreeAsync(scratch, communicator.stream()), rank());
}

// ---------------------------------------------------------------- on another thread

std::vector<NcclCommunicator*> NcclCommunicators::all() {
  const std::lock_guard lock(mutex_);
  std::vector<NcclCommunicator*> all;
  for (const auto& [pair, communicator] : pairs_) all.push_back(communicator.get());
  for (const auto& communicator : groups_) {
    if (communicator) all.push_back(communicator.get());
  }
  return all;
}

void NcclCommunicators::report_errors() {
  for (const auto* communicator : all()) {
    const std::string error = communicator->background_error();
    if (!error.empty()) world_.health().report({rank(), "NCCL communicator " + communicator->name(), error, 0});
  }
}

// In one group, which tells all kernels to end before anything is freed: freeing waits for every kernel of the device.
void NcclCommunicators::abort() noexcept {
  const auto communicators = all();
  ncclGroupStart();
  for (auto* communicator : communicators) communicator->abort();
  ncclGroupEnd();
}

void NcclCommunicators::clear() {
  const std::lock_guard lock(mutex_);
  pairs_.clear();
  groups_.clear();
}

}  // namespace autopar::detail

#endif
