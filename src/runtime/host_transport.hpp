#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <autopar/runtime/any_transport.hpp>

#include "health.hpp"

namespace autopar::detail {

/// One send, receive or collective in host memory.
class HostOperation final : public Operation {
 public:
  enum class Kind : std::uint8_t { kSend, kReceive, kAllReduce, kReduceScatter, kAllGather, kAllToAll, kSetUp };

  Kind kind = Kind::kSetUp;
  Buffer buffer;
  Rank peer;
  Tag tag;
  GroupId group;
  DType dtype = DType::kU8;

  /// Who has not yet done its part; for messages and errors.
  std::atomic<std::int32_t> awaited{-1};
  std::atomic<bool> done{false};
  std::string error;  ///< written before `done`
  int code = 0;
};

[[nodiscard]] std::string describe(const HostOperation& operation);
/// Whether a collective adds up what its members bring.
[[nodiscard]] constexpr bool adds(HostOperation::Kind collective) {
  return collective == HostOperation::Kind::kAllReduce || collective == HostOperation::Kind::kReduceScatter;
}

/// How a wait treats ranks that have left and limits on time.
enum class Patience : std::uint8_t {
  kStep,       ///< they are errors
  kFinishing,  ///< everybody leaves, as late as they like; only failures are errors
};

/// What transports in host memory share: checks of arguments, and waiting that sees failures, leavers and stalls.
class HostTransport : public TransportBackend {
 public:
  explicit HostTransport(std::shared_ptr<Health> health) : health_(std::move(health)) {}

  [[nodiscard]] Rank rank() const final { return health_->self(); }
  [[nodiscard]] int size() const final { return health_->size(); }
  void connect(const std::vector<DirectedPair>& pairs) final;
  GroupId make_group(const std::vector<Rank>& ranks) final;
  Ticket send(Buffer buffer, Rank peer, Tag tag) final;
  Ticket receive(Buffer buffer, Rank peer, Tag tag) final;
  Ticket all_reduce(Buffer buffer, DType dtype, GroupId group) final;
  Ticket reduce_scatter(Buffer buffer, DType dtype, GroupId group) final;
  Ticket all_gather(Buffer buffer, GroupId group) final;
  Ticket all_to_all(Buffer buffer, GroupId group) final;
  [[nodiscard]] bool done(const Ticket& ticket) final;
  void wait(const Ticket& ticket) final;

  /// The same as part of `action`, which an error names instead of the single message: whether a rank hears of a
  /// failure when it starts a message or when it waits for one must not change what it is told.
  Ticket send(Buffer buffer, Rank peer, Tag tag, std::string_view action);
  Ticket receive(Buffer buffer, Rank peer, Tag tag, std::string_view action);
  Ticket all_reduce(Buffer buffer, DType dtype, GroupId group, std::string_view action);

  /// `wait` under another name for the action.
  void await(const Ticket& ticket, std::string_view action, Patience patience = Patience::kStep);

  /// Marks the operation as done, with an error unless `error` is empty, and wakes who waits. Any thread.
  void complete(HostOperation& operation, std::string error = {}, int code = 0);

  [[nodiscard]] const std::shared_ptr<Health>& health() const { return health_; }
  [[nodiscard]] const std::vector<Rank>& members(GroupId group) const {
    return groups_[static_cast<std::size_t>(group.value)];
  }

 protected:
  virtual void post(std::shared_ptr<HostOperation> operation) = 0;
  virtual void group_made(GroupId group, const std::vector<Rank>& ranks) = 0;
  /// Called again and again by a thread that waits: does what is to be done for messages under way, if this transport
  /// leaves that to those who wait. @return whether it does
  virtual bool help();

 private:
  using Clock = std::chrono::steady_clock;

  Ticket start(std::shared_ptr<HostOperation> operation, std::string_view action);
  Ticket start_collective(HostOperation::Kind kind, Buffer buffer, DType dtype, GroupId group, std::string_view action);
  void check_peer(Rank peer, const char* what) const;
  void throw_if_broken(const HostOperation& operation, std::string_view action);
  /// Until the operation is done or it is time to look for failures. @return whether it is done
  [[nodiscard]] bool wait_a_while(HostOperation& operation);
  [[noreturn]] void throw_left(Rank peer, std::string_view action);
  [[noreturn]] void throw_stalled(Rank peer, std::string_view action, Seconds waited, std::string_view setting);

  const std::shared_ptr<Health> health_;
  std::vector<std::vector<Rank>> groups_;
  std::mutex mutex_;
  std::condition_variable completed_;
};

}  // namespace autopar::detail
