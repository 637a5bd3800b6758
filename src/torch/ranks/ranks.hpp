#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/runtime/log.hpp>
#include <autopar/runtime/one_caller.hpp>
#include <autopar/runtime/world.hpp>

namespace autopar::ranks {

/// The ranks that train a model, as one part of a session sees them. A test stands in for them without a World.
/// All ranks make the same calls in one order. Members are as those of World.
class Ranks {
 public:
  Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  virtual ~Ranks() = default;

  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual Rank rank() const = 0;
  [[nodiscard]] bool is_first() const { return rank() == Rank(0); }
  /// By rank. Collective.
  [[nodiscard]] virtual std::vector<Blob> all_gather(std::span<const std::byte> mine, std::string_view action) = 0;
  /// Of rank `root`. Collective.
  [[nodiscard]] virtual Blob broadcast(Blob mine, Rank root, std::string_view action) = 0;
  /// Element-wise sums in place. Collective.
  virtual void all_reduce_sum(std::span<double> values, std::string_view action) = 0;
  virtual void send(std::span<const std::byte> bytes, Rank to, std::string_view action) = 0;
  virtual void receive(std::span<std::byte> bytes, Rank from, std::string_view action) = 0;
  /// Tells the others that this rank cannot go on, unless some rank has failed before.
  virtual void fail(std::string_view action, std::string_view message) noexcept = 0;
  /// Until the result is destroyed, collective calls of other threads throw.
  [[nodiscard]] virtual OneCaller::Inside enter(std::string_view action) = 0;
  [[nodiscard]] virtual Logger logger(LogModule module) const = 0;
};

/// All ranks of a World, of which it keeps a view: it may outlive the World.
class WorldRanks final : public Ranks {
 public:
  explicit WorldRanks(const World& world) : world_(world.view()) {}

  [[nodiscard]] World& world() { return world_; }
  [[nodiscard]] int size() const override { return world_.size(); }
  [[nodiscard]] Rank rank() const override { return world_.rank_id(); }
  [[nodiscard]] std::vector<Blob> all_gather(std::span<const std::byte> mine, std::string_view action) override {
    return world_.all_gather(mine, action);
  }
  [[nodiscard]] Blob broadcast(Blob mine, Rank root, std::string_view action) override {
    return world_.broadcast(std::move(mine), root, action);
  }
  void all_reduce_sum(std::span<double> values, std::string_view action) override {
    world_.all_reduce_sum(values, action);
  }
  void send(std::span<const std::byte> bytes, Rank to, std::string_view action) override {
    world_.send(bytes, to, action);
  }
  void receive(std::span<std::byte> bytes, Rank from, std::string_view action) override {
    world_.receive(bytes, from, action);
  }
  void fail(std::string_view action, std::string_view message) noexcept override {
    if (!world_.failed()) world_.fail(action, message);
  }
  [[nodiscard]] OneCaller::Inside enter(std::string_view action) override { return world_.enter(action); }
  [[nodiscard]] Logger logger(LogModule module) const override { return world_.logger(module); }

 private:
  World world_;
};

}  // namespace autopar::ranks
