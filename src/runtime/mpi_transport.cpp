#include "mpi_transport.hpp"

#include <algorithm>
#include <utility>

#include <autopar/core/assert.hpp>

#include "reduce.hpp"

namespace autopar::detail {
namespace {

/// MPI counts are int.
constexpr std::size_t kPiece = std::size_t{1} << 30;
/// Below this, members exchange whole buffers in one step instead of parts in two.
constexpr std::size_t kSmallSum = 16 << 10;

/// One request under way.
struct Request {
  MPI_Request handle = MPI_REQUEST_NULL;
  Rank peer;
  std::size_t expected = 0;  ///< bytes, of a receive
  int tag = MPI_ANY_TAG;     ///< that a receive must see; MPI_ANY_TAG where MPI checks it
  bool receives = false;
};

/// The requests of one step of a task.
class Requests {
 public:
  Requests() = default;
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  /// What nobody waits for any more must not write into memory that is given back.
  ~Requests() {
    for (Request& request : list_) {
      if (request.handle == MPI_REQUEST_NULL) continue;
      if (request.receives) MPI_Cancel(&request.handle);
      MPI_Request_free(&request.handle);
    }
  }

  void send(const std::byte* data, std::size_t bytes, Rank peer, int tag, MPI_Comm communicator) {
    in_pieces(bytes, [&](std::size_t offset, int count) {
      Request& request = list_.emplace_back();
      request.peer = peer;
      check("MPI_Isend", MPI_Isend(data + offset, count, MPI_BYTE, peer.value(), tag, communicator, &request.handle));
    });
  }

  /// @param match     MPI_ANY_TAG, or the tag that MPI shall match
  /// @param expected  tag to compare with when the message has come
  void receive(std::byte* data, std::size_t bytes, Rank peer, int match, int expected, MPI_Comm communicator) {
    in_pieces(bytes, [&](std::size_t offset, int count) {
      Request& request = list_.emplace_back();
      request.peer = peer;
      request.expected = static_cast<std::size_t>(count);
      request.tag = expected;
      request.receives = true;
      check("MPI_Irecv", MPI_Irecv(data + offset, count, MPI_BYTE, peer.value(), match, communicator, &request.handle));
    });
  }

  /// Tests all; true when all have ended, or one has failed.
  [[nodiscard]] bool test(HostOperation& operation) {
    Rank missing = Rank::none();
    for (Request& request : list_) {
      if (request.handle == MPI_REQUEST_NULL) continue;
      if (!test_one(request) && (!missing.valid() || request.receives)) missing = request.peer;
      if (!error_.empty()) {
        operation.awaited = request.peer.value();
        return true;
      }
    }
    if (missing.valid()) {
      operation.awaited = missing.value();
      return false;
    }
    list_.clear();
    return true;
  }

  [[nodiscard]] const std::string& error() const { return error_; }
  [[nodiscard]] int code() const { return code_; }

 private:
  template <class Post>
  static void in_pieces(std::size_t bytes, Post post) {
    std::size_t offset = 0;
    do {
      const std::size_t count = std::min(kPiece, bytes - offset);
      post(offset, static_cast<int>(count));
      offset += count;
    } while (offset < bytes);
  }

  bool test_one(Request& request) {
    int flag = 0;
    MPI_Status status;
    if (!check("MPI_Test", MPI_Test(&request.handle, &flag, &status))) return false;
    if (flag == 0) return false;
    if (!request.receives) return true;
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    if (static_cast<std::size_t>(count) != request.expected) {
      error_ = "the message from rank " + std::to_string(request.peer.value()) + " has " + std::to_string(count) +
               " bytes, " + std::to_string(request.expected) + " are expected: the ranks do not run the same program";
    } else if (request.tag != MPI_ANY_TAG && status.MPI_TAG != request.tag) {
      error_ = "the message from rank " + std::to_string(request.peer.value()) +
               " is not the one expected: the ranks do not run the same program, or did not make the same call";
    }
    return true;
  }

  bool check(const char* function, int code) {
    if (code == MPI_SUCCESS) return true;
    if (error_.empty()) {
      MpiFailure failure = mpi_failure(function, code);
      int kind = MPI_SUCCESS;
      MPI_Error_class(code, &kind);
      if (kind == MPI_ERR_TRUNCATE) {
        failure.message += " (a larger message than expected came: the ranks do not run the same program)";
      }
      error_ = std::move(failure.message);
      code_ = failure.code;
    }
    return false;
  }

  std::vector<Request> list_;
  std::string error_;
  int code_ = 0;
};

/// A number for comparison; equal tags give equal numbers.
int number_of(const Tag& tag, int limit) {
  std::uint64_t hash = 0x9e3779b97f4a7c15ull;
  for (const std::int32_t part : {tag.channel, tag.microbatch, tag.flow}) {
    hash = (hash ^ static_cast<std::uint32_t>(part)) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
  }
  return static_cast<int>(hash % static_cast<std::uint64_t>(limit));
}

}  // namespace

class MpiTransport::MessageTask final : public MpiTask {
 public:
  MessageTask(std::shared_ptr<MpiTransport> transport, std::shared_ptr<HostOperation> operation)
      : transport_(std::move(transport)), operation_(std::move(operation)) {}

  void start() override {
    const Buffer& buffer = operation_->buffer;
    const int tag = number_of(operation_->tag, transport_->tag_limit_);
    if (operation_->kind == HostOperation::Kind::kSend) {
      requests_.send(buffer.data, buffer.bytes, operation_->peer, tag, transport_->messages());
    } else {
      requests_.receive(buffer.data, buffer.bytes, operation_->peer, MPI_ANY_TAG, tag, transport_->messages());
    }
  }

  bool advance() override {
    if (!requests_.test(*operation_)) return false;
    transport_->complete(*operation_, requests_.error(), requests_.code());
    return true;
  }

 private:
  std::shared_ptr<MpiTransport> transport_;
  std::shared_ptr<HostOperation> operation_;
  Requests requests_;
};

class MpiTransport::SumTask final : public MpiTask {
 public:
  SumTask(std::shared_ptr<MpiTransport> transport, std::shared_ptr<HostOperation> operation, std::vector<Rank> members)
      : transport_(std::move(transport)),
        operation_(std::move(operation)),
        members_(std::move(members)),
        self_(static_cast<std::size_t>(std::find(members_.begin(), members_.end(), transport_->rank()) -
                                       members_.begin())),
        element_(static_cast<std::size_t>(size_of(operation_->dtype).value())),
        kind_(operation_->kind),
        small_(kind_ == HostOperation::Kind::kAllReduce && operation_->buffer.bytes <= kSmallSum) {}

  void start() override { queue().push_back(this); }

  bool advance() override {
    if (queue().front() != this) return false;
    if (step_ == Step::kBegin) begin();
    if (!requests_.test(*operation_)) return false;
    if (requests_.error().empty() && step_ == Step::kExchange) {
      add();
      if (!small_ && kind_ == HostOperation::Kind::kAllReduce) {
        share();
        step_ = Step::kShare;
        if (!requests_.test(*operation_)) return false;
      }
    }
    queue().pop_front();
    transport_->complete(*operation_, requests_.error(), requests_.code());
    return true;
  }

 private:
  enum class Step { kBegin, kExchange, kShare };

  struct Part {
    std::size_t offset;
    std::size_t bytes;
  };

  std::deque<SumTask*>& queue() {
    const auto group = static_cast<std::size_t>(operation_->group.value);
    if (transport_->queues_.size() <= group) transport_->queues_.resize(group + 1);
    return transport_->queues_[group];
  }

  /// What the member at this position adds.
  [[nodiscard]] Part part(std::size_t member) const {
    if (small_) return {0, operation_->buffer.bytes};
    const std::size_t elements = operation_->buffer.bytes / element_;
    const std::size_t begin = elements * member / members_.size() * element_;
    const std::size_t end = elements * (member + 1) / members_.size() * element_;
    return {begin, end - begin};
  }

  [[nodiscard]] int tag(int step) const { return 2 * operation_->group.value + step; }

  void begin() {
    step_ = adds(kind_) ? Step::kExchange : Step::kShare;
    if (adds(kind_))
      exchange();
    else if (kind_ == HostOperation::Kind::kAllToAll)
      swap_parts();
    else
      share();
  }

  void exchange() {
    const Part own = part(self_);
    received_.resize(own.bytes * (members_.size() - 1));
    std::byte* landing = received_.data();
    for (std::size_t member = 0; member < members_.size(); ++member) {
      if (member == self_) continue;
      requests_.receive(landing, own.bytes, members_[member], tag(0), MPI_ANY_TAG, transport_->sums());
      landing += own.bytes;
      const Part theirs = part(member);
      requests_.send(operation_->buffer.data + theirs.offset, theirs.bytes, members_[member], tag(0),
                     transport_->sums());
    }
  }

  void add() {
    const Part own = part(self_);
    std::vector<const std::byte*> addends;
    const std::byte* landed = received_.data();
    for (std::size_t member = 0; member < members_.size(); ++member) {
      if (member == self_) {
        addends.push_back(operation_->buffer.data + own.offset);
      } else {
        addends.push_back(landed);
        landed += own.bytes;
      }
    }
    if (own.bytes > 0) {
      add_in_order(operation_->buffer.data + own.offset, addends, own.bytes / element_, operation_->dtype);
    }
  }

  void share() {
    const Part own = part(self_);
    for (std::size_t member = 0; member < members_.size(); ++member) {
      if (member == self_) continue;
      const Part theirs = part(member);
      requests_.receive(operation_->buffer.data + theirs.offset, theirs.bytes, members_[member], tag(1), MPI_ANY_TAG,
                        transport_->sums());
      requests_.send(operation_->buffer.data + own.offset, own.bytes, members_[member], tag(1), transport_->sums());
    }
  }

  void swap_parts() {
    std::byte* const first = operation_->buffer.data;
    std::byte* const second = first + operation_->buffer.bytes / 2;
    const std::size_t bytes = operation_->buffer.bytes / 2 / members_.size();
    for (std::size_t member = 0; member < members_.size(); ++member) {
      if (member == self_) {
        std::copy_n(first + member * bytes, bytes, second + member * bytes);
        continue;
      }
      requests_.receive(second + member * bytes, bytes, members_[member], tag(0), MPI_ANY_TAG, transport_->sums());
      requests_.send(first + member * bytes, bytes, members_[member], tag(0), transport_->sums());
    }
  }

  std::shared_ptr<MpiTransport> transport_;
  std::shared_ptr<HostOperation> operation_;
  const std::vector<Rank> members_;
  const std::size_t self_;
  const std::size_t element_;
  const HostOperation::Kind kind_;
  const bool small_;
  Step step_ = Step::kBegin;
  std::vector<std::byte> received_;
  Requests requests_;
};

MpiTransport::MpiTransport(std::shared_ptr<MpiEngine> engine, std::shared_ptr<Health> health,
                           std::shared_ptr<const CommunicatorPair> communicators, int tag_limit)
    : HostTransport(std::move(health)),
      engine_(std::move(engine)),
      communicators_(std::move(communicators)),
      tag_limit_(tag_limit) {}

void MpiTransport::group_made(GroupId group, const std::vector<Rank>&) {
  if (2 * (group.value + 1) < tag_limit_) return;
  throw InvalidArgument("a transport can have " + std::to_string(tag_limit_ / 2 - 1) + " groups at most");
}

void MpiTransport::post(std::shared_ptr<HostOperation> operation) {
  if (operation->kind != HostOperation::Kind::kSend && operation->kind != HostOperation::Kind::kReceive) {
    auto ranks = members(operation->group);
    engine_->submit(std::make_unique<SumTask>(shared_from_this(), std::move(operation), std::move(ranks)));
  } else {
    engine_->submit(std::make_unique<MessageTask>(shared_from_this(), std::move(operation)));
  }
}

}  // namespace autopar::detail
