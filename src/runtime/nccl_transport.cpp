#include "nccl_transport.hpp"

#include <autopar/runtime/config.hpp>

#if AUTOPAR_HAS_CUDA

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "names.hpp"
#include "nccl_communicator.hpp"
#include "nccl_communicators.hpp"
#include "nccl_operations.hpp"
#include "nccl_recording.hpp"

namespace autopar::detail {
namespace {

using namespace std::chrono_literals;

constexpr auto kWatchPeriod = 20ms;

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
///
/// Captured operations are chained in the order of their calls. The branches of a graph start in any order, and kernels
/// of two communicators that start in different orders on two ranks may wait for each other for ever. Programs complete
/// in this order, whatever waits (schedule/validate.hpp).
class NcclTransport final : public TransportBackend {
 public:
  NcclTransport(WorldBackend& world, const TransportOptions& options)
      : health_(world.shared_health()),
        device_(options.device),
        compute_stream_(options.compute_stream),
        communicators_(world, options.device),
        under_way_(health_, world.log().logger(LogModule::kTransport)) {
    check_device(world.log().logger(LogModule::kTransport));
    watch_ = std::thread([this] { watch(); });
  }

  ~NcclTransport() override {
    stopping_.store(true);
    watch_.join();
    const DeviceGuard guard(device_);
    if (!under_way_.all_arrive()) communicators_.abort();
    communicators_.clear();
    under_way_.clear();
  }

  [[nodiscard]] Rank rank() const override { return health_->self(); }
  [[nodiscard]] int size() const override { return health_->size(); }
  [[nodiscard]] bool in_order() const override { return true; }

  void connect(const std::vector<DirectedPair>& pairs) override { communicators_.connect(pairs); }
  GroupId make_group(const std::vector<Rank>& ranks) override { return communicators_.make_group(ranks); }

  Ticket send(Buffer buffer, Rank peer, Tag tag) override {
    if (buffer.bytes == 0) return {};
    NcclCommunicator& communicator = communicators_.between(rank(), peer);
    const std::byte* const data = buffer.data;
    const std::size_t bytes = buffer.bytes;
    const std::string action = "send to " + name(peer) + ": " + text(tag, buffer);
    return run(communicator, std::move(buffer), peer, action,
               [&] { return ncclSend(data, bytes, ncclInt8, 1, communicator.get(), communicator.stream()); });
  }

  Ticket receive(Buffer buffer, Rank peer, Tag tag) override {
    if (buffer.bytes == 0) return {};
    NcclCommunicator& communicator = communicators_.between(peer, rank());
    std::byte* const data = buffer.data;
    const std::size_t bytes = buffer.bytes;
    const std::string action = "receive from " + name(peer) + ": " + text(tag, buffer);
    return run(communicator, std::move(buffer), peer, action,
               [&] { return ncclRecv(data, bytes, ncclInt8, 0, communicator.get(), communicator.stream()); });
  }

  Ticket all_reduce(Buffer buffer, DType dtype, GroupId group) override {
    NcclCommunicator& communicator = communicators_.of_group(group);
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
    NcclCommunicator& communicator = communicators_.of_group(group);
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
    NcclCommunicator& communicator = communicators_.of_group(group);
    const std::size_t part = part_of(buffer, 1, communicator);
    if (buffer.bytes == 0) return {};
    std::byte* const data = buffer.data;
    const std::byte* const own = data + part * static_cast<std::size_t>(communicator.position());
    const std::string action = "gathering of shards over group " + std::to_string(group.value) + " (" +
                               std::to_string(buffer.bytes) + " bytes)";
    return run(communicator, std::move(buffer), Rank::none(), action,
               [&] { return ncclAllGather(own, data, part, ncclInt8, communicator.get(), communicator.stream()); });
  }

  Ticket all_to_all(Buffer buffer, GroupId group) override {
    NcclCommunicator& communicator = communicators_.of_group(group);
    const std::size_t part = part_of(buffer, 2, communicator) / 2;
    if (buffer.bytes == 0) return {};
    const std::byte* const sent = buffer.data;
    std::byte* const received = buffer.data + buffer.bytes / 2;
    const std::string action =
        "exchange of parts over group " + std::to_string(group.value) + " (" + std::to_string(buffer.bytes) + " bytes)";
    return run(communicator, std::move(buffer), Rank::none(), action,
               [&] { return swap_parts(communicator, sent, received, part); });
  }

  [[nodiscard]] bool done(const Ticket& ticket) override {
    const auto& operation = static_cast<const NcclOperation&>(*ticket);
    health_->check(operation.action);
    return !operation.is_captured && operation.event.passed();
  }

  void wait(const Ticket& ticket) override {
    auto& operation = static_cast<NcclOperation&>(*ticket);
    health_->check(operation.action);
    const DeviceGuard guard(device_);
    check_cuda("cudaStreamWaitEvent", cudaStreamWaitEvent(compute_stream(), operation.event.get(), 0), rank());
    operation.buffer = {};
    if (!operation.is_captured) under_way_.release_ended();
  }

  [[nodiscard]] bool can_record() const override { return true; }

  void begin_recording() override {
    const DeviceGuard guard(device_);
    recording_ = std::make_shared<NcclRecording>(rank());
    last_captured_.reset();
  }

  [[nodiscard]] std::shared_ptr<RecordedOperations> end_recording() override {
    last_captured_.reset();
    const DeviceGuard guard(device_);
    if (recording_ != nullptr && is_capturing(compute_stream(), rank())) recording_->join(compute_stream());
    return std::exchange(recording_, nullptr);
  }

  void replay(const std::shared_ptr<RecordedOperations>& operations, const std::function<void()>& launch) override {
    constexpr auto kAction = "replay of a recorded step";
    health_->check(kAction);
    under_way_.release_ended();
    const DeviceGuard guard(device_);
    auto replay = std::make_unique<NcclReplay>(rank(), std::static_pointer_cast<NcclRecording>(operations));
    launch();
    check_cuda("cudaEventRecord", cudaEventRecord(replay->end.get(), compute_stream()), rank());
    under_way_.add(std::move(replay));
  }

 private:
  /// That on which this thread makes and reads buffers now: calls of a model may come under different ones.
  [[nodiscard]] cudaStream_t compute_stream() const {
    return compute_stream_ ? static_cast<cudaStream_t>(compute_stream_()) : nullptr;
  }

  void check_device(const Logger& logger) const {
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
    logger.info("NCCL over cuda:" + std::to_string(device_) + " (" + properties.name + ")");
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

  /// One group of messages, so that none waits for another. The group must end, whatever a call in it returns.
  static ncclResult_t swap_parts(const NcclCommunicator& communicator, const std::byte* sent, std::byte* received,
                                 std::size_t part) {
    ncclResult_t first_error = ncclGroupStart();
    for (int member = 0; member < communicator.members() && is_under_way(first_error); ++member) {
      const std::size_t at = static_cast<std::size_t>(member) * part;
      first_error = ncclSend(sent + at, part, ncclInt8, member, communicator.get(), communicator.stream());
      if (!is_under_way(first_error)) break;
      first_error = ncclRecv(received + at, part, ncclInt8, member, communicator.get(), communicator.stream());
    }
    const ncclResult_t end = ncclGroupEnd();
    return is_under_way(first_error) ? end : first_error;
  }
  static bool is_under_way(ncclResult_t code) { return code == ncclSuccess || code == ncclInProgress; }

  /// Runs `call` on the communicator's stream after what is on the compute stream now.
  template <class Call>
  Ticket run(NcclCommunicator& communicator, Buffer buffer, Rank peer, const std::string& action, Call call) {
    health_->check(action);
    const DeviceGuard guard(device_);
    auto operation = std::make_shared<NcclOperation>(rank(), action, std::move(buffer), peer);
    operation->is_captured = recording_ != nullptr && is_capturing(compute_stream(), rank());
    if (operation->is_captured) return capture(communicator, std::move(operation), call);
    under_way_.release_ended();
    const std::lock_guard lock(calls_);
    health_->check(action);  // the watch sees a failure under this lock before it aborts communicators
    check_cuda("cudaEventRecord", cudaEventRecord(operation->event.get(), compute_stream()), rank());
    check_cuda("cudaStreamWaitEvent", cudaStreamWaitEvent(communicator.stream(), operation->event.get(), 0), rank());
    communicator.settle(action.c_str(), call());
    check_cuda("cudaEventRecord", cudaEventRecord(operation->event.get(), communicator.stream()), rank());
    under_way_.add(communicator.stream(), operation);
    return operation;
  }

  template <class Call>
  Ticket capture(NcclCommunicator& communicator, std::shared_ptr<NcclOperation> operation, Call call) {
    const std::lock_guard lock(calls_);
    health_->check(operation->action);
    const cudaStream_t stream = communicator.stream();
    check_cuda("cudaEventRecord", cudaEventRecord(operation->event.get(), compute_stream()), rank());
    check_cuda("cudaStreamWaitEvent", cudaStreamWaitEvent(stream, operation->event.get(), 0), rank());
    if (last_captured_ != nullptr)
      check_cuda("cudaStreamWaitEvent", cudaStreamWaitEvent(stream, last_captured_->event.get(), 0), rank());
    recording_->begin(operation->event, operation->action, operation->peer);
    communicator.settle(operation->action.c_str(), call());
    check_cuda("cudaEventRecord", cudaEventRecord(operation->event.get(), stream), rank());
    recording_->end(operation->event);
    last_captured_ = operation;
    return operation;
  }

  void watch() {
    cudaSetDevice(device_);
    bool has_failed = false;
    while (!stopping_.load()) {
      std::this_thread::sleep_for(kWatchPeriod);
      if (has_failed) continue;
      {
        const std::lock_guard lock(calls_);
        if (!health_->failed()) {
          communicators_.report_errors();
          under_way_.report_stalls();
        }
        has_failed = health_->failed();  // later operations see it, too
      }
      // Without the lock: this returns when the graphs of the communicators' operations are destroyed, and whoever
      // destroys them may call this transport before.
      if (has_failed) communicators_.abort();
    }
  }

  const std::shared_ptr<Health> health_;
  const int device_;
  const std::function<void*()> compute_stream_;
  NcclCommunicators communicators_;
  NcclOperations under_way_;

  std::mutex calls_;  ///< of NCCL: the watch looks at communicators, and sees failures, between them
  std::shared_ptr<NcclRecording> recording_;      ///< that operations are captured for, if any
  std::shared_ptr<NcclOperation> last_captured_;  ///< by it
  std::atomic<bool> stopping_{false};
  std::thread watch_;
};

}  // namespace

std::shared_ptr<TransportBackend> make_nccl_transport(WorldBackend& world, const TransportOptions& options) {
  // NCCL's support for graphs that run beside other calls of a communicator is not needed: here they follow each other,
  // by events of the compute stream. With it, a replay of gpt on two ranks took the host 151 ms, without it 6. There is
  // no other way to tell NCCL; what the user has set stays.
  setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", /*overwrite=*/0);
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
