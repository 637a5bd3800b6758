#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <autopar/runtime/any_transport.hpp>

/// What went through a transport.
struct TransportLog {
  std::size_t messages = 0, collectives = 0, bytes = 0;
};

/// Counts what another transport moves.
class Logged {
 public:
  using Ticket = autopar::AnyTransport::Ticket;

  Logged(autopar::AnyTransport inner, TransportLog& log) : inner_(std::move(inner)), log_(&log) {}

  [[nodiscard]] autopar::Rank rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  [[nodiscard]] bool in_order() const { return inner_.in_order(); }
  void connect(const std::vector<autopar::DirectedPair>& pairs) { inner_.connect(pairs); }
  [[nodiscard]] autopar::GroupId make_group(const std::vector<autopar::Rank>& ranks) {
    return inner_.make_group(ranks);
  }
  [[nodiscard]] Ticket send(autopar::Buffer buffer, autopar::Rank peer, autopar::Tag tag) {
    note(log_->messages, buffer);
    return inner_.send(std::move(buffer), peer, tag);
  }
  [[nodiscard]] Ticket receive(autopar::Buffer buffer, autopar::Rank peer, autopar::Tag tag) {
    return inner_.receive(std::move(buffer), peer, tag);
  }
  [[nodiscard]] Ticket all_reduce(autopar::Buffer buffer, autopar::DType dtype, autopar::GroupId group) {
    note(log_->collectives, buffer);
    return inner_.all_reduce(std::move(buffer), dtype, group);
  }
  [[nodiscard]] Ticket reduce_scatter(autopar::Buffer buffer, autopar::DType dtype, autopar::GroupId group) {
    note(log_->collectives, buffer);
    return inner_.reduce_scatter(std::move(buffer), dtype, group);
  }
  [[nodiscard]] Ticket all_gather(autopar::Buffer buffer, autopar::GroupId group) {
    note(log_->collectives, buffer);
    return inner_.all_gather(std::move(buffer), group);
  }
  [[nodiscard]] Ticket all_to_all(autopar::Buffer buffer, autopar::GroupId group) {
    note(log_->collectives, buffer);
    return inner_.all_to_all(std::move(buffer), group);
  }
  [[nodiscard]] bool done(const Ticket& ticket) { return inner_.done(ticket); }
  void wait(const Ticket& ticket) { inner_.wait(ticket); }

 private:
  void note(std::size_t& count, const autopar::Buffer& buffer) {
    ++count;
    log_->bytes += buffer.bytes;
  }

  autopar::AnyTransport inner_;
  TransportLog* log_;
};
