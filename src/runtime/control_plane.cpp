#include "control_plane.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include <autopar/core/error.hpp>

namespace autopar::detail {
namespace {

/// Most blobs are a few numbers, so that they travel with their size in one message.
constexpr std::size_t kInline = 248;
/// Of an action's name, so much is compared between ranks and shown where it differs.
constexpr std::size_t kActionName = 64;

struct Header {
  std::uint64_t size = 0;
  std::array<char, kActionName> action{};  ///< ends with 0
  std::array<std::byte, kInline> head{};
};

Header header_of(std::span<const std::byte> bytes, std::string_view action) {
  Header header;
  header.size = bytes.size();
  std::copy_n(action.begin(), std::min(action.size(), kActionName - 1), header.action.begin());
  std::copy_n(bytes.begin(), std::min(bytes.size(), kInline), header.head.begin());
  return header;
}

void require_same_action(const Header& here, std::size_t self, const Header& there, std::size_t peer) {
  if (here.action == there.action) return;
  const bool first = self < peer;
  const auto named = [](std::size_t rank, const Header& header) {
    return "rank " + std::to_string(rank) + " is in '" + header.action.data() + "'";
  };
  throw InvalidArgument("the ranks are out of step: " + named(std::min(self, peer), first ? here : there) + ", " +
                        named(std::max(self, peer), first ? there : here) +
                        "; every rank must make the same calls in the same order");
}

/// Memory that outlives the operation on it even if its caller is unwound by an error.
template <class T>
Buffer shared(const std::shared_ptr<T>& value) {
  return {reinterpret_cast<std::byte*>(value.get()), sizeof(T), value};
}

struct SharedBytes {
  std::shared_ptr<Blob> blob;
  [[nodiscard]] Buffer from(std::size_t offset) const { return {blob->data() + offset, blob->size() - offset, blob}; }
};

SharedBytes copy_of(std::span<const std::byte> bytes) { return {std::make_shared<Blob>(bytes.begin(), bytes.end())}; }

std::vector<Rank> all_ranks(int size) {
  std::vector<Rank> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.emplace_back(rank);
  return ranks;
}

}  // namespace

ControlPlane::ControlPlane(std::shared_ptr<HostTransport> transport)
    : transport_(std::move(transport)), everyone_(transport_->make_group(all_ranks(transport_->size()))) {}

Tag ControlPlane::next_tag(Kind kind) {
  serial_ = serial_ == INT32_MAX ? 1 : serial_ + 1;
  return {static_cast<std::int32_t>(kind), serial_, 0};
}

std::vector<Blob> ControlPlane::all_gather(std::span<const std::byte> mine, std::string_view action,
                                           Patience patience) {
  transport_->health()->begin(action);
  const Tag tag = next_tag(Kind::kGather);
  const std::size_t ranks = static_cast<std::size_t>(transport_->size());
  const std::size_t self = transport_->rank().index();
  const SharedBytes own = copy_of(mine);
  const auto own_header = std::make_shared<Header>(header_of(mine, action));
  std::vector<std::shared_ptr<Header>> headers(ranks);
  std::vector<HostTransport::Ticket> receives(ranks), sends;

  for (std::size_t peer = 0; peer < ranks; ++peer) {
    if (peer == self) continue;
    headers[peer] = std::make_shared<Header>();
    receives[peer] = transport_->receive(shared(headers[peer]), Rank::of(peer), tag, action);
    sends.push_back(transport_->send(shared(own_header), Rank::of(peer), tag, action));
    if (mine.size() > kInline) sends.push_back(transport_->send(own.from(kInline), Rank::of(peer), tag, action));
  }
  std::vector<SharedBytes> gathered(ranks);
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    if (peer == self) continue;
    transport_->await(receives[peer], action, patience);
    gathered[peer].blob = std::make_shared<Blob>(headers[peer]->size);
    std::copy_n(headers[peer]->head.begin(), std::min(kInline, gathered[peer].blob->size()),
                gathered[peer].blob->begin());
    receives[peer].reset();
    if (headers[peer]->size > kInline) {
      receives[peer] = transport_->receive(gathered[peer].from(kInline), Rank::of(peer), tag, action);
    }
  }
  for (const auto& receive : receives) {
    if (receive) transport_->await(receive, action, patience);
  }
  for (const auto& send : sends) transport_->await(send, action, patience);
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    if (peer != self) require_same_action(*own_header, self, *headers[peer], peer);
  }

  std::vector<Blob> result(ranks);
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    result[peer] = peer == self ? std::move(*own.blob) : std::move(*gathered[peer].blob);
  }
  return result;
}

Blob ControlPlane::broadcast(Blob bytes, Rank root, std::string_view action) {
  if (!root.valid() || root.value() >= transport_->size()) {
    throw InvalidArgument("cannot broadcast from rank " + std::to_string(root.value()) + " in a world of " +
                          std::to_string(transport_->size()) + " ranks");
  }
  transport_->health()->begin(action);
  const Tag tag = next_tag(Kind::kBroadcast);
  const auto header = std::make_shared<Header>();
  if (transport_->rank() == root) {
    const SharedBytes own{std::make_shared<Blob>(std::move(bytes))};
    *header = header_of(*own.blob, action);
    std::vector<HostTransport::Ticket> sends;
    for (const Rank peer : transport_->members(everyone_)) {
      if (peer == root) continue;
      sends.push_back(transport_->send(shared(header), peer, tag, action));
      if (own.blob->size() > kInline) sends.push_back(transport_->send(own.from(kInline), peer, tag, action));
    }
    for (const auto& send : sends) transport_->await(send, action);
    return std::move(*own.blob);
  }
  transport_->await(transport_->receive(shared(header), root, tag, action), action);
  require_same_action(header_of({}, action), transport_->rank().index(), *header, root.index());
  const SharedBytes received{std::make_shared<Blob>(header->size)};
  std::copy_n(header->head.begin(), std::min(kInline, received.blob->size()), received.blob->begin());
  if (header->size > kInline) transport_->await(transport_->receive(received.from(kInline), root, tag, action), action);
  return std::move(*received.blob);
}

void ControlPlane::all_reduce(std::span<std::byte> bytes, DType dtype, std::string_view action) {
  transport_->health()->begin(action);
  const SharedBytes sums = copy_of(bytes);
  transport_->await(transport_->all_reduce(sums.from(0), dtype, everyone_, action), action);
  std::copy(sums.blob->begin(), sums.blob->end(), bytes.begin());
}

void ControlPlane::send(std::span<const std::byte> bytes, Rank to, std::string_view action) {
  transport_->health()->begin(action);
  const SharedBytes copy = copy_of(bytes);
  const Tag tag{static_cast<std::int32_t>(Kind::kBytes), 0, 0};
  transport_->await(transport_->send(copy.from(0), to, tag, action), action);
}

void ControlPlane::receive(std::span<std::byte> bytes, Rank from, std::string_view action) {
  transport_->health()->begin(action);
  const SharedBytes landing{std::make_shared<Blob>(bytes.size())};
  const Tag tag{static_cast<std::int32_t>(Kind::kBytes), 0, 0};
  transport_->await(transport_->receive(landing.from(0), from, tag, action), action);
  std::copy(landing.blob->begin(), landing.blob->end(), bytes.begin());
}

}  // namespace autopar::detail
