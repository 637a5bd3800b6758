#include "loopback.hpp"

#include <algorithm>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/runtime/loopback.hpp>

#include "names.hpp"
#include "reduce.hpp"

namespace autopar::detail {
namespace {

class LoopbackTransport;

/// An operation and the transport that must be told of its end, unless it has ended before: what was under way when a
/// rank failed must not keep the transports, and through them itself, alive.
struct Posted {
  std::shared_ptr<HostOperation> operation;
  std::weak_ptr<LoopbackTransport> transport;

  void complete(const std::string& error) const;
};

/// The memory that the transports of one context share.
class LoopbackContext {
 public:
  explicit LoopbackContext(int ranks)
      : ranks_(static_cast<std::size_t>(ranks)), pairs_(ranks_ * ranks_), sums_started_(ranks_) {}

  void group_made(GroupId group, const std::vector<Rank>& members);
  void exchange(Posted posted, Rank self);
  void sum(Posted posted, Rank self);

 private:
  /// Messages from one rank to another that wait for their other half; at most one of the two is not empty.
  struct Pair {
    std::deque<Posted> sends;
    std::deque<Posted> receives;
  };
  struct Sum {
    std::vector<Posted> parts;  ///< by position in the group
    std::size_t arrived = 0;
  };
  struct Group {
    std::vector<Rank> members;
    std::deque<Sum> open;
    std::size_t finished = 0;  ///< sums that are no longer in `open`
  };

  static void hand_over(const Posted& send, const Posted& receive);
  static void finish(const Sum& sum);
  static void hand_out(const Sum& sum, const std::vector<const std::byte*>& addends);
  static void copy_parts(const Sum& sum, std::size_t owner);

  const std::size_t ranks_;
  std::mutex mutex_;
  std::vector<Pair> pairs_;
  std::vector<Group> groups_;
  std::vector<std::vector<std::size_t>> sums_started_;  ///< [rank][group]
};

class LoopbackTransport final : public HostTransport, public std::enable_shared_from_this<LoopbackTransport> {
 public:
  LoopbackTransport(std::shared_ptr<LoopbackContext> context, std::shared_ptr<Health> health)
      : HostTransport(std::move(health)), context_(std::move(context)) {}

 private:
  void group_made(GroupId group, const std::vector<Rank>& ranks) override { context_->group_made(group, ranks); }
  void post(std::shared_ptr<HostOperation> operation) override {
    Posted posted{std::move(operation), weak_from_this()};
    const auto kind = posted.operation->kind;
    if (kind == HostOperation::Kind::kSend || kind == HostOperation::Kind::kReceive) {
      context_->exchange(std::move(posted), rank());
    } else {
      context_->sum(std::move(posted), rank());
    }
  }

  std::shared_ptr<LoopbackContext> context_;
};

void Posted::complete(const std::string& error) const {
  operation->buffer.owner.reset();  // who waits may go on before this thread does, and want the memory back
  if (const auto alive = transport.lock()) alive->complete(*operation, error);
}

void LoopbackContext::group_made(GroupId group, const std::vector<Rank>& members) {
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<std::size_t>(group.value);
  if (index == groups_.size()) groups_.push_back({members, {}, 0});
  if (groups_[index].members != members) {
    throw InvalidArgument("group " + std::to_string(group.value) +
                          " has other members on another rank; every rank must make the same groups in the same order");
  }
}

void LoopbackContext::exchange(Posted posted, Rank self) {
  const bool sends = posted.operation->kind == HostOperation::Kind::kSend;
  const std::size_t peer = posted.operation->peer.index();
  const std::size_t from = sends ? self.index() : peer;
  const std::size_t to = sends ? peer : self.index();
  const std::lock_guard lock(mutex_);
  Pair& pair = pairs_[from * ranks_ + to];
  auto& others = sends ? pair.receives : pair.sends;
  if (others.empty()) {
    (sends ? pair.sends : pair.receives).push_back(std::move(posted));
    return;
  }
  const Posted other = std::move(others.front());
  others.pop_front();
  hand_over(sends ? posted : other, sends ? other : posted);
}

void LoopbackContext::hand_over(const Posted& send, const Posted& receive) {
  const Buffer& source = send.operation->buffer;
  const Buffer& target = receive.operation->buffer;
  std::string error;
  if (!(send.operation->tag == receive.operation->tag)) {
    error = "the message sent (" + text(send.operation->tag) + ") is not the one expected (" +
            text(receive.operation->tag) + "): the ranks do not run the same program";
  } else if (source.bytes != target.bytes) {
    error = "the message has " + std::to_string(source.bytes) + " bytes, " + std::to_string(target.bytes) +
            " are expected: the ranks do not run the same program";
  } else if (source.bytes > 0) {
    std::copy_n(source.data, source.bytes, target.data);
  }
  send.complete(error);
  receive.complete(error);
}

void LoopbackContext::sum(Posted posted, Rank self) {
  const auto index = static_cast<std::size_t>(posted.operation->group.value);
  const std::lock_guard lock(mutex_);
  Group& group = groups_[index];
  auto& started = sums_started_[self.index()];
  if (started.size() <= index) started.resize(index + 1, 0);
  const std::size_t position = started[index]++ - group.finished;
  if (position == group.open.size()) group.open.push_back({std::vector<Posted>(group.members.size()), 0});
  Sum& sum = group.open[position];
  const auto member = std::find(group.members.begin(), group.members.end(), self) - group.members.begin();
  sum.parts[static_cast<std::size_t>(member)] = std::move(posted);
  ++sum.arrived;

  std::int32_t missing = -1;
  for (std::size_t i = 0; i < sum.parts.size() && missing < 0; ++i) {
    if (!sum.parts[i].operation) missing = group.members[i].value();
  }
  for (const Posted& part : sum.parts) {
    if (part.operation) part.operation->awaited = missing;
  }
  if (sum.arrived < group.members.size()) return;
  finish(sum);
  // Every member starts its sums in the same order, so the oldest is always the first to be complete.
  group.open.pop_front();
  ++group.finished;
}

void LoopbackContext::finish(const Sum& sum) {
  const HostOperation& first = *sum.parts.front().operation;
  std::string error;
  std::vector<const std::byte*> addends;
  for (const Posted& part : sum.parts) {
    addends.push_back(part.operation->buffer.data);
    const bool same = part.operation->kind == first.kind && part.operation->dtype == first.dtype;
    if (part.operation->buffer.bytes != first.buffer.bytes || !same) {
      error = "the members of group " + std::to_string(first.group.value) +
              " sum buffers of different sizes or types (" + std::to_string(first.buffer.bytes) + " bytes of " +
              std::string(name_of(first.dtype)) + ", " + std::to_string(part.operation->buffer.bytes) + " of " +
              std::string(name_of(part.operation->dtype)) + "): the ranks do not run the same program";
    }
  }
  if (error.empty() && first.buffer.bytes > 0) hand_out(sum, addends);
  for (const Posted& part : sum.parts) part.complete(error);
}

/// Each member's own part of what came together, or all parts.
void LoopbackContext::hand_out(const Sum& sum, const std::vector<const std::byte*>& addends) {
  const HostOperation& first = *sum.parts.front().operation;
  const auto element = static_cast<std::size_t>(size_of(first.dtype).value());
  const auto data_of = [&](std::size_t member) { return sum.parts[member].operation->buffer.data; };
  if (first.kind == HostOperation::Kind::kAllReduce) {
    add_in_order(data_of(0), addends, first.buffer.bytes / element, first.dtype);
    for (std::size_t i = 1; i < sum.parts.size(); ++i) std::copy_n(data_of(0), first.buffer.bytes, data_of(i));
    return;
  }
  const auto part = first.buffer.bytes / sum.parts.size();
  for (std::size_t owner = 0; owner < sum.parts.size(); ++owner) {
    if (!adds(first.kind)) {
      copy_parts(sum, owner);
      continue;
    }
    auto own = addends;
    for (auto& addend : own) addend += owner * part;
    add_in_order(data_of(owner) + owner * part, own, part / element, first.dtype);
  }
}

/// What a member gives to the others: its part, or one part to each.
void LoopbackContext::copy_parts(const Sum& sum, std::size_t owner) {
  const HostOperation& own = *sum.parts[owner].operation;
  const bool one_each = own.kind == HostOperation::Kind::kAllToAll;
  const std::size_t half = one_each ? own.buffer.bytes / 2 : 0;
  const std::size_t part = (own.buffer.bytes - half) / sum.parts.size();
  for (std::size_t i = 0; i < sum.parts.size(); ++i) {
    if (!one_each && i == owner) continue;
    const std::byte* const from = own.buffer.data + (one_each ? i : owner) * part;
    std::copy_n(from, part, sum.parts[i].operation->buffer.data + half + owner * part);
  }
}

/// What the threads of one loopback world share.
class LoopbackHub {
 public:
  LoopbackHub(int ranks, const WorldOptions& options) {
    for (int rank = 0; rank < ranks; ++rank) {
      logs.emplace_back(Rank(rank), ranks);
      healths.push_back(
          std::make_shared<Health>(Rank(rank), ranks, options.stall, logs.back().logger(LogModule::kTransport)));
    }
    for (const auto& reporter : healths) {
      reporter->set_announcer([this](const Failure& failure) {
        for (const auto& health : healths) health->note(failure);
      });
    }
  }

  /// The `index`-th context, made by whoever asks first.
  std::shared_ptr<LoopbackContext> context(std::size_t index) {
    const std::lock_guard lock(mutex_);
    if (index == contexts_.size())
      contexts_.push_back(std::make_shared<LoopbackContext>(static_cast<int>(logs.size())));
    return contexts_[index];
  }

  std::vector<Log> logs;
  std::vector<std::shared_ptr<Health>> healths;

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<LoopbackContext>> contexts_;
};

class LoopbackBackend final : public WorldBackend {
 public:
  LoopbackBackend(std::shared_ptr<LoopbackHub> hub, Rank rank)
      : WorldBackend(hub->healths[rank.index()], hub->logs[rank.index()]), hub_(std::move(hub)) {
    set_locality({this->rank().value(), size()});
    set_control(make_transport());
  }

  std::shared_ptr<HostTransport> make_transport() override {
    return std::make_shared<LoopbackTransport>(hub_->context(contexts_++), shared_health());
  }
  void announce_leaving() noexcept override {
    for (const auto& health : hub_->healths) health->note_left(rank());
  }
  void close() noexcept override {}

 private:
  std::shared_ptr<LoopbackHub> hub_;
  std::size_t contexts_ = 0;
};

/// Runs one rank's body; the exception that leaves it, after the other ranks were told.
std::exception_ptr run_rank(const std::shared_ptr<LoopbackHub>& hub, Rank rank, const std::function<void(World&)>& body,
                            const WorldOptions& options) {
  Health& health = *hub->healths[rank.index()];
  try {
    auto backend = std::make_unique<LoopbackBackend>(hub, rank);
    backend->set_transports(options.transports);
    World world(std::move(backend));
    try {
      body(world);
    } catch (const std::exception& error) {
      health.report({rank, "its program", error.what()});
      throw;
    } catch (...) {
      health.report({rank, "its program", "an exception that is no std::exception"});
      throw;
    }
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<WorldBackend> make_world_of_one(const WorldOptions& options) {
  return std::make_unique<LoopbackBackend>(std::make_shared<LoopbackHub>(1, options), Rank(0));
}

}  // namespace autopar::detail

namespace autopar::loopback {

void run(int ranks, const std::function<void(World&)>& body, const WorldOptions& options) {
  if (ranks < 1) throw InvalidArgument("a loopback world needs at least one rank, not " + std::to_string(ranks));
  if (options.expected_size != 0 && options.expected_size != ranks) {
    throw InvalidArgument("a world of " + std::to_string(options.expected_size) +
                          " ranks was asked for, but the loopback world has " + std::to_string(ranks));
  }
  const auto hub = std::make_shared<detail::LoopbackHub>(ranks, options);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < errors.size(); ++rank) {
      threads.emplace_back([&, rank] { errors[rank] = detail::run_rank(hub, Rank::of(rank), body, options); });
    }
  }
  if (hub->healths.front()->failed()) {
    // Others only report that this rank failed: its own exception is the cause.
    const Rank cause = hub->healths.front()->failure().rank;
    if (errors[cause.index()]) std::rethrow_exception(errors[cause.index()]);
  }
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace autopar::loopback
