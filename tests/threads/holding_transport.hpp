#pragma once

#include <string>
#include <utility>
#include <vector>

#include <autopar/runtime/any_transport.hpp>

namespace autopar::testing {

/// The worst device that `in_order()` allows: nothing issued after an operation happens before the operation has ended.
class HoldingTransport {
 public:
  using Ticket = AnyTransport::Ticket;
  explicit HoldingTransport(AnyTransport transport) : transport_(std::move(transport)) {}

  [[nodiscard]] Rank rank() const { return transport_.rank(); }
  [[nodiscard]] int size() const { return transport_.size(); }
  [[nodiscard]] bool in_order() const { return true; }
  GroupId make_group(const std::vector<Rank>& ranks) { return transport_.make_group(ranks); }
  Ticket send(Buffer buffer, Rank peer, Tag tag) {
    return ended("send", peer, tag, transport_.send(std::move(buffer), peer, tag));
  }
  Ticket receive(Buffer buffer, Rank peer, Tag tag) {
    return ended("receive", peer, tag, transport_.receive(std::move(buffer), peer, tag));
  }
  Ticket all_reduce(Buffer buffer, DType dtype, GroupId group) {
    return ended("reduce", Rank::none(), {group.value, 0, 0}, transport_.all_reduce(std::move(buffer), dtype, group));
  }
  Ticket reduce_scatter(Buffer buffer, DType dtype, GroupId group) {
    return ended("scatter", Rank::none(), {group.value, 0, 0},
                 transport_.reduce_scatter(std::move(buffer), dtype, group));
  }
  Ticket all_gather(Buffer buffer, GroupId group) {
    return ended("gather", Rank::none(), {group.value, 0, 0}, transport_.all_gather(std::move(buffer), group));
  }
  Ticket all_to_all(Buffer buffer, GroupId group) {
    return ended("parts", Rank::none(), {group.value, 0, 0}, transport_.all_to_all(std::move(buffer), group));
  }
  bool done(const Ticket& ticket) { return transport_.done(ticket); }
  void wait(const Ticket& ticket) { transport_.wait(ticket); }

  [[nodiscard]] const std::vector<std::string>& issued() const { return issued_; }
  static std::string name(const char* kind, Rank peer, Tag tag) {
    return kind + (" " + std::to_string(peer.value())) + " " + std::to_string(tag.channel) + " " +
           std::to_string(tag.microbatch) + " " + std::to_string(tag.flow);
  }

 private:
  Ticket ended(const char* kind, Rank peer, Tag tag, Ticket ticket) {
    issued_.push_back(name(kind, peer, tag));
    transport_.wait(ticket);
    return ticket;
  }

  AnyTransport transport_;
  std::vector<std::string> issued_;
};
static_assert(Transport<HoldingTransport>);

}  // namespace autopar::testing
