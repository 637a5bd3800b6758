#include "nccl_transport.hpp"

#include <autopar/runtime/config.hpp>

#if AUTOPAR_HAS_CUDA

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "names.hpp"
#include "nccl_communicator.hpp"

namespace autopar::detail {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kWatchPeriod = 20ms;

struct NcclOperation final : Operation {
  NcclOperation(Rank self, std::string what, Buffer memory, Rank other)
      : event(self), action(std::move(what)), buffer(std::move(memory)), peer(other), begin(Clock::now()) {}

  Event event;  ///< passed when the operation has ended on the device
  std::string action;
  Buffer buffer;  ///< kept until then, or until the compute stream waits for it: what takes the memory comes later
  Rank peer;
  Clock::time_point begin;
  bool warned = false;
};

std::optional<ncclDataType_t> nccl_type(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return ncclFloat16;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    case DType::kI32:
      return ncclInt32;
    case DType::kI64:
      return ncclInt64;
    default:
      return std::nullopt;
  }
}

std::string text(const Tag& tag, const Buffer& buffer) {
  return detail::text(tag) + " (" + std::to_string(buffer.bytes) + " bytes)";
}

/// Device memory over NCCL: one communicator and stream for each directed pair and each group, so that a message that
/// waits holds up nothing else. Events order them with the compute stream; the host never waits for the device. A watch
/// thread looks for background errors, stalls and failures of other ranks and aborts what waits for them.
class NcclTransport final : public TransportBackend {
 public:
  NcclTransport(WorldBackend& world, const TransportOptions& options)
      : world_(world),
        health_(world.shared_health()),
        device_(options.device),
        compute_stream_(options.compute_stream),
        logger_(world.log().logger(LogModule::kTransport)) {
    check_device();
    watch_ = std::thread([this] { watch(); });
  }

  ~NcclTransport() override {
    stopping_.store(true);
    watch_.join();
    const DeviceGuard guard(device_);
    const std::lock_guard lock(mutex_);
    if (!all_arrive()) abort_all();
    pairs_.clear();
    groups_.clear();
    in_flight_.clear();
  }

  [[nodiscard]] Rank rank() const override { return health_->self(); }
  [[nodiscard]] int size() const override { return health_->size(); }
  [[nodiscard]] bool in_order() const override { return true; }

  void connect(const std::vector<DirectedPair>& pairs) override {
    const auto ids = exchange_ids(pairs.size(), [&](std::size_t i) { return pairs[i].from; });
    const DeviceGuard guard(device_);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const DirectedPair pair = pairs[i];
      if (pair.from != rank() && pair.to != rank()) continue;
      const auto key = std::pair(pair.from, pair.to);
      if (pairs_.contains(key)) continue;
      auto communicator = std::make_unique<NcclCommunicator>(
          std::to_string(pair.from.value()) + " -> " + std::to_string(pair.to.value()), ids[i], 2,
          pair.from == rank() ? 0 : 1, health_);
      first_message(*communicator, pair.from == rank());
      const std::lock_guard lock(mutex_);
      pairs_.emplace(key, std::move(communicator));
    }
  }

  GroupId make_group(const std::vector<Rank>& ranks) override {
    const bool ascending = std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>{}) == ranks.end();
    if (ranks.empty() || !ascending || !ranks.front().valid() || ranks.back().value() >= size()) {
      throw InvalidArgument("a group's ranks must be ascending, distinct and in [0, " + std::to_string(size()) + ")");
    }
    const GroupId group{static_cast<std::int32_t>(groups_.size())};
    const auto ids = exchange_ids(1, [&](std::size_t) { return ranks.front(); });
    const auto self = std::find(ranks.begin(), ranks.end(), rank());
    std::unique_ptr<NcclCommunicator> communicator;
    if (self != ranks.end()) {
      const DeviceGuard guard(device_);
      communicator = std::make_unique<NcclCommunicator>("group " + std::to_string(group.value), ids.front(),
                                                        static_cast<int>(ranks.size()),
                                                        static_cast<int>(self - ranks.begin()), health_);
      first_sum(*communicator);
    }
    const std::lock_guard lock(mutex_);
    groups_.push_back(std::move(communicator));
    return group;
  }

  Ticket send(Buffer buffer, Rank peer, Tag tag) override {
    if (buffer.bytes == 0) return {};
    NcclCommunicator& communicator = between(rank(), peer);
    const std::byte* const data = buffer.data;
    const std::size_t bytes = buffer.bytes;
    const std::string action = "send to " + name(peer) + ": " + text(tag, buffer);
    return run(communicator, std::move(buffer), peer, action,
               [&] { return ncclSend(data, bytes, ncclInt8, 1, communicator.get(), communicator.stream()); });
  }

  Ticket receive(Buffer buffer, Rank peer, Tag tag) override {
    if (buffer.bytes == 0) return {};
    NcclCommunicator& communicator = between(peer, rank());
    std::byte* const data = buffer.data;
    const std::size_t bytes = buffer.bytes;
    const std::string action = "receive from " + name(peer) + ": " + text(tag, buffer);
    return run(communicator, std::move(buffer), peer, action,
               [&] { return ncclRecv(data, bytes, ncclInt8, 0, communicator.get(), communicator.stream()); });
  }

  Ticket all_reduce(Buffer buffer, DType dtype, GroupId group) override {
    NcclCommunicator& communicator = of_group(group);
    const auto type = summed_type(buffer, dtype);
    if (buffer.bytes == 0) return {};
    std::byte* const data = buffer.data;
    const std::size_t elements = buffer.bytes / static_cast<std::size_t>(size_of(dtype).value());
    const std::string action =
        "sum over group " + std::to_string(group.value) + " (" + std::to_string(buffer.bytes) + " bytes)";
    return run(communicator, std::move(buffer), Rank::none(), action, [&] {
      return ncclAllReduce(data, data, elements, type, ncclSum, communicator.get(), communicator.stream());
    });
  }

  Ticket reduce_scatter(Buffer buffer, DType dtype, GroupId group) override {
    NcclCommunicator& communicator = of_group(group);
    const auto type = summed_type(buffer, dtype);
    const auto element = static_cast<std::size_t>(size_of(dtype).value());
    const std::size_t part = part_of(buffer, element, communicator);
    if (buffer.bytes == 0) return {};
    std::byte* const data = buffer.data;
    std::byte* const own = data + part * static_cast<std::size_t>(communicator.position());
    const std::string action =
        "sum into shards over group " + std::to_string(group.value) + " (" + std::to_string(buffer.bytes) + " bytes)";
    return run(communicator, std::move(buffer), Rank::none(), action, [&] {
      return ncclReduceScatter(data, own, part / element, type, ncclSum, communicator.get(), communicator.stream());
    });
  }

  Ticket all_gather(Buffer buffer, GroupId group) override {
    NcclCommunicator& communicator = of_group(group);
    const std::size_t part = part_of(buffer, 1, communicator);
    if (buffer.bytes == 0) return {};
    std::byte* const data = buffer.data;
    const std::byte* const own = data + part * static_cast<std::size_t>(communicator.position());
    const std::string action = "gathering of shards over group " + std::to_string(group.value) + " (" +
                               std::to_string(buffer.bytes) + " bytes)";
    return run(communicator, std::move(buffer), Rank::none(), action,
               [&] { return ncclAllGather(own, data, part, ncclInt8, communicator.get(), communicator.stream()); });
  }

  [[nodiscard]] bool done(const Ticket& ticket) override {
    const auto& operation = static_cast<const NcclOperation&>(*ticket);
    health_->check(operation.action);
    return operation.event.passed();
  }

  void wait(const Ticket& ticket) override {
    auto& operation = static_cast<NcclOperation&>(*ticket);
    health_->check(operation.action);
    const DeviceGuard guard(device_);
    check_cuda("cudaStreamWaitEvent", cudaStreamWaitEvent(compute_stream(), operation.event.get(), 0), rank());
    operation.buffer = {};
    release_finished();
  }

 private:
  /// That on which this thread makes and reads buffers now: calls of a model may come under different ones.
  [[nodiscard]] cudaStream_t compute_stream() const {
    return compute_stream_ ? static_cast<cudaStream_t>(compute_stream_()) : nullptr;
  }

  void check_device() {
    int devices = 0;
    const cudaError_t code = cudaGetDeviceCount(&devices);
    if (code != cudaSuccess || device_ < 0 || device_ >= devices) {
      throw InvalidArgument(name(rank()) + " cannot use CUDA device " + std::to_string(device_) + ": this host has " +
                            std::to_string(devices) +
                            (code == cudaSuccess ? "" : std::string(" (") + cudaGetErrorString(code) + ")") +
                            "; start no more ranks than devices, or use the CPU");
    }
    cudaDeviceProp properties{};
    check_cuda("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, device_), rank());
    logger_.info("NCCL over cuda:" + std::to_string(device_) + " (" + properties.name + ")");
  }

  /// One id for each of `count` communicators, made by `maker(i)`; collective over the world, one round.
  template <class Maker>
  std::vector<ncclUniqueId> exchange_ids(std::size_t count, Maker maker) {
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
  void first_message(NcclCommunicator& communicator, bool sends) {
    void* scratch = nullptr;
    check_cuda("cudaMallocAsync", cudaMallocAsync(&scratch, 1, communicator.stream()), rank());
    const ncclResult_t code = sends ? ncclSend(scratch, 1, ncclInt8, 1, communicator.get(), communicator.stream())
                                    : ncclRecv(scratch, 1, ncclInt8, 0, communicator.get(), communicator.stream());
    communicator.settle("first message", code);
    check_cuda("cudaFreeAsync", cudaFreeAsync(scratch, communicator.stream()), rank());
  }

  void first_sum(NcclCommunicator& communicator) {
    void* scratch = nullptr;
    check_cuda("cudaMallocAsync", cudaMallocAsync(&scratch, sizeof(float), communicator.stream()), rank());
    check_cuda("cudaMemsetAsync", cudaMemsetAsync(scratch, 0, sizeof(float), communicator.stream()), rank());
    communicator.settle("first sum", ncclAllReduce(scratch, scratch, 1, ncclFloat32, ncclSum, communicator.get(),
                                                   communicator.stream()));
    check_cuda("cudaFreeAsync", cudaFreeAsync(scratch, communicator.stream()), rank());
  }

  NcclCommunicator& of_group(GroupId group) {
    const auto index = static_cast<std::size_t>(group.value);
    if (group.value >= 0 && index < groups_.size() && groups_[index]) return *groups_[index];
    throw InvalidArgument(name(rank()) + " is no member of group " + std::to_string(group.value) +
                          " and cannot take part in its collectives");
  }

  static ncclDataType_t summed_type(const Buffer& buffer, DType dtype) {
    const auto type = nccl_type(dtype);
    if (type && buffer.bytes % static_cast<std::size_t>(size_of(dtype).value()) == 0) return *type;
    throw InvalidArgument("cannot sum " + std::to_string(buffer.bytes) + " bytes of " + std::string(name_of(dtype)) +
                          "; sums take whole elements of f16, bf16, f32, f64, i32 or i64");
  }

  /// Bytes of a member's part.
  static std::size_t part_of(const Buffer& buffer, std::size_t element, const NcclCommunicator& communicator) {
    const auto members = static_cast<std::size_t>(communicator.members());
    if (buffer.bytes % (element * members) == 0) return buffer.bytes / members;
    throw InvalidArgument("cannot divide " + std::to_string(buffer.bytes) + " bytes into " + std::to_string(members) +
                          " equal parts of whole elements, one for each member of communicator " + communicator.name());
  }

  NcclCommunicator& between(Rank from, Rank to) {
    const auto found = pairs_.find({from, to});
    if (found != pairs_.end()) return *found->second;
    throw InvalidArgument("no NCCL communicator from " + name(from) + " to " + name(to) +
                          "; connect() must name every directed pair that exchanges messages");
  }

  /// Runs `call` on the communicator's stream after what is on the compute stream now.
  template <class Call>
  Ticket run(NcclCommunicator& communicator, Buffer buffer, Rank peer, const std::string& action, Call call) {
    health_->check(action);
    release_finished();
    const DeviceGuard guard(device_);
    auto operation = std::make_shared<NcclOperation>(rank(), action, std::move(buffer), peer);
    const std::lock_guard lock(mutex_);
    health_->check(action);  // the watch aborts communicators under the same lock
    check_cuda("cudaEventRecord", cudaEventRecord(operation->event.get(), compute_stream()), rank());
    check_cuda("cudaStreamWaitEvent", cudaStreamWaitEvent(communicator.stream(), operation->event.get(), 0), rank());
    communicator.settle(action.c_str(), call());
    check_cuda("cudaEventRecord", cudaEventRecord(operation->event.get(), communicator.stream()), rank());
    in_flight_[communicator.stream()].push_back(operation);
    return operation;
  }

  /// Gives back the buffers of operations that have ended. On the caller's thread: memory is freed where it was made.
  /// A stream's end in order, so this asks of each stream for one that has not ended: a host that runs ahead has
  /// hundreds under way, and a step may ask thousands of times.
  void release_finished() {
    std::vector<std::shared_ptr<NcclOperation>> ended;
    {
      const std::lock_guard lock(mutex_);
      for (auto& [stream, operations] : in_flight_) {
        for (; !operations.empty() && operations.front()->event.passed(); operations.pop_front()) {
          ended.push_back(std::move(operations.front()));
        }
      }
    }
    for (const auto& operation : ended) operation->buffer = {};
  }

  void watch() {
    cudaSetDevice(device_);
    bool aborted = false;
    while (!stopping_.load()) {
      std::this_thread::sleep_for(kWatchPeriod);
      if (aborted) continue;
      const std::lock_guard lock(mutex_);
      if (!health_->failed()) {
        look_for_errors();
        look_for_stalls();
      }
      if (health_->failed()) {
        abort_all();
        aborted = true;
      }
    }
  }

  /// Whether everything under way ends in time. The transport is ending: who has not waited for it does not need it.
  [[nodiscard]] bool all_arrive() {
    const auto deadline = Clock::now() + kFlushLimit;
    while (!health_->failed() && Clock::now() < deadline) {
      const auto is_over = [](const auto& of_stream) {
        return of_stream.second.empty() || of_stream.second.back()->event.passed();
      };
      if (std::all_of(in_flight_.begin(), in_flight_.end(), is_over)) return true;
      std::this_thread::sleep_for(100us);
    }
    return false;
  }

  /// In one group, which tells all kernels to end before anything is freed: freeing waits for every kernel of the
  /// device.
  void abort_all() noexcept {
    ncclGroupStart();
    for (auto& [key, communicator] : pairs_) communicator->abort();
    for (auto& communicator : groups_) {
      if (communicator) communicator->abort();
    }
    ncclGroupEnd();
  }

  void look_for_errors() {
    const auto look = [&](const NcclCommunicator& communicator) {
      const std::string error = communicator.background_error();
      if (!error.empty()) health_->report({rank(), "NCCL communicator " + communicator.name(), error, 0});
    };
    for (const auto& [key, communicator] : pairs_) look(*communicator);
    for (const auto& communicator : groups_) {
      if (communicator) look(*communicator);
    }
  }

  void look_for_stalls() {
    const auto now = Clock::now();
    const StallLimits limits = health_->limits();
    for (const auto& [stream, operations] : in_flight_) {
      if (operations.empty()) continue;
      const auto& operation = operations.front();  // those behind it wait for it
      const Seconds age{std::chrono::duration<double>(now - operation->begin).count()};
      if (age < limits.warning || operation->event.passed()) continue;
      const std::string whom = operation->peer.valid() ? name(operation->peer) : "another member";
      if (!operation->warned) {
        logger_.warn("has waited for " + whom + " in '" + operation->action + "'");
        operation->warned = true;
      }
      if (age < limits.timeout) continue;
      health_->report(
          {rank(), operation->action, name(rank()) + " gave up waiting for " + whom + " (stall_timeout)", 0});
    }
  }

  WorldBackend& world_;
  const std::shared_ptr<Health> health_;
  const int device_;
  const std::function<void*()> compute_stream_;
  const Logger logger_;

  /// Guards what follows against the watch; calls of NCCL are made under it, too.
  std::mutex mutex_;
  std::map<std::pair<Rank, Rank>, std::unique_ptr<NcclCommunicator>> pairs_;
  std::vector<std::unique_ptr<NcclCommunicator>> groups_;  ///< [group]; null where this rank is no member
  std::map<cudaStream_t, std::deque<std::shared_ptr<NcclOperation>>> in_flight_;  ///< in their order
  std::atomic<bool> stopping_{false};
  std::thread watch_;
};

}  // namespace

std::shared_ptr<TransportBackend> make_nccl_transport(WorldBackend& world, const TransportOptions& options) {
  return std::make_shared<NcclTransport>(world, options);
}

}  // namespace autopar::detail

#else

namespace autopar::detail {

std::shared_ptr<TransportBackend> make_nccl_transport(WorldBackend&, const TransportOptions&) {
  throw InvalidArgument(
      "this autopar was built without CUDA and NCCL: configure it with -DAUTOPAR_CUDA=ON where both "
      "are installed, or use the CPU");
}

}  // namespace autopar::detail

#endif
