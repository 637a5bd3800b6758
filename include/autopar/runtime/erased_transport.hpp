#pragma once

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <autopar/runtime/any_transport.hpp>
#include <autopar/runtime/transport.hpp>

namespace autopar {

namespace detail {

/// A transport of any type behind the interface of all.
template <Transport T>
class ErasedTransport final : public TransportBackend {
 public:
  explicit ErasedTransport(T transport) : transport_(std::move(transport)) {}

  [[nodiscard]] Rank rank() const override { return transport_.rank(); }
  [[nodiscard]] int size() const override { return transport_.size(); }
  [[nodiscard]] bool in_order() const override { return transport_.in_order(); }
  void connect(const std::vector<DirectedPair>& pairs) override {
    if constexpr (requires { transport_.connect(pairs); }) transport_.connect(pairs);
  }
  GroupId make_group(const std::vector<Rank>& ranks) override { return transport_.make_group(ranks); }
  Ticket send(Buffer buffer, Rank peer, Tag tag) override {
    return held(transport_.send(std::move(buffer), peer, tag));
  }
  Ticket receive(Buffer buffer, Rank peer, Tag tag) override {
    return held(transport_.receive(std::move(buffer), peer, tag));
  }
  Ticket all_reduce(Buffer buffer, DType dtype, GroupId group) override {
    return held(transport_.all_reduce(std::move(buffer), dtype, group));
  }
  Ticket reduce_scatter(Buffer buffer, DType dtype, GroupId group) override {
    return held(transport_.reduce_scatter(std::move(buffer), dtype, group));
  }
  Ticket all_gather(Buffer buffer, GroupId group) override {
    return held(transport_.all_gather(std::move(buffer), group));
  }
  Ticket all_to_all(Buffer buffer, GroupId group) override {
    return held(transport_.all_to_all(std::move(buffer), group));
  }
  [[nodiscard]] bool done(const Ticket& ticket) override { return transport_.done(own(ticket)); }
  void wait(const Ticket& ticket) override { transport_.wait(own(ticket)); }

 private:
  struct Held final : Operation {
    explicit Held(typename T::Ticket its) : ticket(std::move(its)) {}
    typename T::Ticket ticket;
  };
  static Ticket held(typename T::Ticket ticket) { return std::make_shared<Held>(std::move(ticket)); }
  static typename T::Ticket& own(const Ticket& ticket) { return static_cast<Held&>(*ticket).ticket; }

  mutable std::remove_const_t<T> transport_;
};

}  // namespace detail

/// A transport of your own type, as a World hands it out: see WorldOptions::transports. The type models `Transport`
/// and keeps its laws. `connect` is optional.
template <Transport T>
[[nodiscard]] AnyTransport erased(T transport) {
  return AnyTransport(std::make_shared<detail::ErasedTransport<T>>(std::move(transport)));
}

}  // namespace autopar
