#pragma once

#include <memory>
#include <vector>

#include <autopar/runtime/any_transport.hpp>

namespace autopar::test {

/// A transport of one rank without a World: sums are what they were, and there is nobody to send to.
class AloneTransport final : public detail::TransportBackend {
 public:
  [[nodiscard]] Rank rank() const override { return Rank(0); }
  [[nodiscard]] int size() const override { return 1; }
  void connect(const std::vector<DirectedPair>&) override {}
  GroupId make_group(const std::vector<Rank>&) override { return GroupId(groups_++); }
  Ticket send(Buffer, Rank, Tag) override { return {}; }
  Ticket receive(Buffer, Rank, Tag) override { return {}; }
  Ticket all_reduce(Buffer, DType, GroupId) override { return {}; }
  Ticket reduce_scatter(Buffer, DType, GroupId) override { return {}; }
  Ticket all_gather(Buffer, GroupId) override { return {}; }
  Ticket all_to_all(Buffer, GroupId) override { return {}; }
  [[nodiscard]] bool done(const Ticket&) override { return true; }
  void wait(const Ticket&) override {}

 private:
  int groups_ = 0;
};

[[nodiscard]] inline AnyTransport alone_transport() { return AnyTransport(std::make_shared<AloneTransport>()); }

}  // namespace autopar::test
