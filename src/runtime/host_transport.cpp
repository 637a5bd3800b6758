#include "host_transport.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <optional>
#include <utility>

#include <autopar/core/assert.hpp>

#include "names.hpp"
#include "reduce.hpp"

namespace autopar::detail {
namespace {

using namespace std::chrono_literals;

/// How often a waiting thread looks for failures; completion wakes it at once.
constexpr auto kLook = 5ms;
/// Tests in a row before the first nap of a thread that helps, and the naps: a core that all ranks share is needed.
constexpr int kEagerRounds = 20;
constexpr auto kHelpersNap = 20us;
/// A message that a rank sent before it left arrives within this.
constexpr auto kLeaverGrace = 2s;

/// A nap of microseconds would last 50 µs longer under the default slack of a thread's timers.
class ShortNaps {
 public:
  ShortNaps() : slack_(prctl(PR_GET_TIMERSLACK)) { prctl(PR_SET_TIMERSLACK, 1000UL); }
  ShortNaps(const ShortNaps&) = delete;
  ShortNaps& operator=(const ShortNaps&) = delete;
  ~ShortNaps() {
    if (slack_ > 0) prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack_));
  }

 private:
  int slack_;
};

std::string in_seconds(Seconds seconds) {
  const auto tenths = static_cast<long long>(seconds.value() * 10);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace

std::string describe(const HostOperation& operation) {
  const std::string bytes = " (" + std::to_string(operation.buffer.bytes) + " bytes)";
  switch (operation.kind) {
    case HostOperation::Kind::kSend:
      return "send to " + name(operation.peer) + ": " + text(operation.tag) + bytes;
    case HostOperation::Kind::kReceive:
      return "receive from " + name(operation.peer) + ": " + text(operation.tag) + bytes;
    case HostOperation::Kind::kAllReduce:
      return "sum over group " + std::to_string(operation.group.value) + bytes;
    case HostOperation::Kind::kReduceScatter:
      return "sum into shards over group " + std::to_string(operation.group.value) + bytes;
    case HostOperation::Kind::kAllGather:
      return "gathering of shards over group " + std::to_string(operation.group.value) + bytes;
    case HostOperation::Kind::kAllToAll:
      return "exchange of parts over group " + std::to_string(operation.group.value) + bytes;
    case HostOperation::Kind::kSetUp:
      break;
  }
  return "set-up of a transport";
}

void HostTransport::check_peer(Rank peer, const char* what) const {
  if (peer.valid() && peer.value() < size() && peer != rank()) return;
  throw InvalidArgument(std::string(what) + " " + name(peer) + ": " + name(rank()) +
                        " exchanges messages with the other " + "ranks of its world of " + std::to_string(size()) +
                        " only");
}

void HostTransport::connect(const std::vector<DirectedPair>& pairs) {
  for (const auto& pair : pairs) {
    const bool known = pair.from.valid() && pair.to.valid() && pair.from.value() < size() && pair.to.value() < size();
    if (known && pair.from != pair.to) continue;
    throw InvalidArgument("cannot connect " + name(pair.from) + " to " + name(pair.to) + " in a world of " +
                          std::to_string(size()) + " ranks");
  }
}

GroupId HostTransport::make_group(const std::vector<Rank>& ranks) {
  const bool ascending = std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>{}) == ranks.end();
  const bool inside = !ranks.empty() && ranks.front().valid() && ranks.back().value() < size();
  if (!ascending || !inside) {
    std::string list;
    for (const Rank member : ranks) list += (list.empty() ? "" : ", ") + std::to_string(member.value());
    throw InvalidArgument("a group's ranks must be ascending, distinct and in [0, " + std::to_string(size()) +
                          "); got {" + list + "}");
  }
  const GroupId group{static_cast<std::int32_t>(groups_.size())};
  groups_.push_back(ranks);
  group_made(group, ranks);
  return group;
}

HostTransport::Ticket HostTransport::start(std::shared_ptr<HostOperation> operation, std::string_view action) {
  if (health_->failed()) health_->check(action.empty() ? describe(*operation) : std::string(action));
  post(operation);
  return operation;
}

HostTransport::Ticket HostTransport::send(Buffer buffer, Rank peer, Tag tag) {
  return send(std::move(buffer), peer, tag, {});
}

HostTransport::Ticket HostTransport::send(Buffer buffer, Rank peer, Tag tag, std::string_view action) {
  check_peer(peer, "cannot send to");
  auto operation = std::make_shared<HostOperation>();
  operation->kind = HostOperation::Kind::kSend;
  operation->buffer = std::move(buffer);
  operation->peer = peer;
  operation->tag = tag;
  operation->awaited = peer.value();
  return start(std::move(operation), action);
}

HostTransport::Ticket HostTransport::receive(Buffer buffer, Rank peer, Tag tag) {
  return receive(std::move(buffer), peer, tag, {});
}

HostTransport::Ticket HostTransport::receive(Buffer buffer, Rank peer, Tag tag, std::string_view action) {
  check_peer(peer, "cannot receive from");
  auto operation = std::make_shared<HostOperation>();
  operation->kind = HostOperation::Kind::kReceive;
  operation->buffer = std::move(buffer);
  operation->peer = peer;
  operation->tag = tag;
  operation->awaited = peer.value();
  return start(std::move(operation), action);
}

HostTransport::Ticket HostTransport::all_reduce(Buffer buffer, DType dtype, GroupId group) {
  return all_reduce(std::move(buffer), dtype, group, {});
}

HostTransport::Ticket HostTransport::all_reduce(Buffer buffer, DType dtype, GroupId group, std::string_view action) {
  return start_collective(HostOperation::Kind::kAllReduce, std::move(buffer), dtype, group, action);
}

HostTransport::Ticket HostTransport::reduce_scatter(Buffer buffer, DType dtype, GroupId group) {
  return start_collective(HostOperation::Kind::kReduceScatter, std::move(buffer), dtype, group, {});
}

HostTransport::Ticket HostTransport::all_gather(Buffer buffer, GroupId group) {
  return start_collective(HostOperation::Kind::kAllGather, std::move(buffer), DType::kU8, group, {});
}

HostTransport::Ticket HostTransport::all_to_all(Buffer buffer, GroupId group) {
  return start_collective(HostOperation::Kind::kAllToAll, std::move(buffer), DType::kU8, group, {});
}

HostTransport::Ticket HostTransport::start_collective(HostOperation::Kind kind, Buffer buffer, DType dtype,
                                                      GroupId group, std::string_view action) {
  if (group.value < 0 || static_cast<std::size_t>(group.value) >= groups_.size()) {
    throw InvalidArgument("a collective over group " + std::to_string(group.value) + ", but this transport has " +
                          std::to_string(groups_.size()) + " groups; make_group gives the ids");
  }
  const auto& ranks = members(group);
  if (!std::binary_search(ranks.begin(), ranks.end(), rank())) {
    throw InvalidArgument(name(rank()) + " is no member of group " + std::to_string(group.value) +
                          " and cannot take part in its collectives");
  }
  const auto element = static_cast<std::size_t>(size_of(dtype).value());
  if (adds(kind) && (!can_reduce(dtype) || buffer.bytes % element != 0)) {
    throw InvalidArgument("cannot sum " + std::to_string(buffer.bytes) + " bytes of " + std::string(name_of(dtype)) +
                          "; sums take whole elements of f16, bf16, f32, f64, i32 or i64");
  }
  const std::size_t halves = kind == HostOperation::Kind::kAllToAll ? 2 : 1;
  if (kind != HostOperation::Kind::kAllReduce && buffer.bytes % (element * halves * ranks.size()) != 0) {
    throw InvalidArgument("cannot divide " + std::to_string(buffer.bytes) + " bytes into " +
                          (halves == 2 ? "two halves of " : "") + std::to_string(ranks.size()) +
                          " equal parts of whole elements, one for each member of group " +
                          std::to_string(group.value));
  }
  auto operation = std::make_shared<HostOperation>();
  operation->kind = kind;
  operation->buffer = std::move(buffer);
  operation->dtype = dtype;
  operation->group = group;
  return start(std::move(operation), action);
}

bool HostTransport::help() { return false; }

void HostTransport::complete(HostOperation& operation, std::string error, int code) {
  {
    const std::lock_guard lock(mutex_);
    operation.error = std::move(error);
    operation.code = code;
    operation.done.store(true, std::memory_order_release);
  }
  completed_.notify_all();
}

void HostTransport::throw_if_broken(const HostOperation& operation, std::string_view action) {
  if (operation.error.empty()) return;
  const Rank peer{operation.awaited.load()};
  health_->report({rank(), std::string(action), operation.error, operation.code});
  throw TransportError(name(rank()) + " in '" + std::string(action) + "': " + operation.error, rank(), peer,
                       std::string(action), operation.code);
}

void HostTransport::throw_left(Rank peer, std::string_view action) {
  const std::string message = name(peer) + " has left its training loop, but " + name(rank()) +
                              " still needs it for '" + std::string(action) +
                              "'; every rank must make the same calls (a rank without data passes " + "empty batches)";
  health_->report({rank(), std::string(action), message});
  throw TransportError(message, rank(), peer, std::string(action));
}

void HostTransport::throw_stalled(Rank peer, std::string_view action, Seconds waited, std::string_view setting) {
  const std::string message = name(rank()) + " has waited " + in_seconds(waited) + " for " + name(peer) + " in '" +
                              std::string(action) + "' and gives up (" + std::string(setting) + ")";
  health_->report({rank(), std::string(action), message});
  throw TransportError(message, rank(), peer, std::string(action));
}

bool HostTransport::done(const Ticket& ticket) {
  auto& operation = static_cast<HostOperation&>(*ticket);
  if (operation.done.load(std::memory_order_acquire)) {
    throw_if_broken(operation, describe(operation));
    return true;
  }
  if (health_->failed()) health_->check(describe(operation));
  return false;
}

void HostTransport::wait(const Ticket& ticket) {
  auto& operation = static_cast<HostOperation&>(*ticket);
  if (operation.done.load(std::memory_order_acquire) && operation.error.empty()) return;
  await(ticket, describe(operation));
}

bool HostTransport::wait_a_while(HostOperation& operation) {
  const auto done = [&] { return operation.done.load(std::memory_order_acquire); };
  const auto end = Clock::now() + kLook;
  std::optional<ShortNaps> short_naps;
  for (int round = 0; !done(); ++round) {
    const auto now = Clock::now();
    if (now >= end) return false;
    const bool helps = help();
    if (helps && round < kEagerRounds) continue;
    if (helps && !short_naps) short_naps.emplace();
    std::unique_lock lock(mutex_);
    completed_.wait_until(lock, helps ? now + kHelpersNap : end, done);
  }
  return true;
}

void HostTransport::await(const Ticket& ticket, std::string_view action, Patience patience) {
  auto& operation = static_cast<HostOperation&>(*ticket);
  const Limits limits = health_->limits();
  const auto begin = Clock::now();
  Clock::time_point seen_leaving{};
  bool warned = false;
  while (!wait_a_while(operation)) {
    health_->check(action);
    const Rank peer{operation.awaited.load()};
    const auto now = Clock::now();
    const Seconds waited{std::chrono::duration<double>(now - begin).count()};
    if (!warned && waited >= limits.warning) {
      health_->logger().warn("has waited " + in_seconds(waited) + " for " + name(peer) + " in '" + std::string(action) +
                             "'");
      warned = true;
    }
    if (patience == Patience::kFinishing) continue;
    if (peer.valid() && health_->has_left(peer)) {
      if (seen_leaving == Clock::time_point{}) seen_leaving = now;
      if (now - seen_leaving >= kLeaverGrace) throw_left(peer, action);
    } else {
      seen_leaving = {};
    }
    if (waited >= limits.timeout) throw_stalled(peer, action, waited, limits.setting);
  }
  if (patience == Patience::kStep) health_->add_wait(Clock::now() - begin);
  throw_if_broken(operation, action);
}

}  // namespace autopar::detail
