#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/runtime/log.hpp>
#include <autopar/runtime/world.hpp>

namespace autopar::ranks {

/// The ranks that train a model, as one part of a session sees them. A test stands in for them without a World.
/// All ranks make the same calls in one order.
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
  [[nodiscard]] virtual std::vector<Blob> all_gather(const Blob& mine, std::string_view action) = 0;
  /// Of rank `root`. Collective.
  [[nodiscard]] virtual Blob broadcast(Blob mine, Rank root, std::string_view action) = 0;
  [[nodiscard]] virtual Logger logger(LogModule module) const = 0;
};

/// All ranks of a World, which outlives this.
class WorldRanks final : public Ranks {
 public:
  explicit WorldRanks(World& world) : world_(world) {}

  [[nodiscard]] int size() const override { return world_.size(); }
  [[nodiscard]] Rank rank() const override { return world_.rank_id(); }
  [[nodiscard]] std::vector<Blob> all_gather(const Blob& mine, std::string_view action) override {
    return world_.all_gather(mine, action);
  }
  [[nodiscard]] Blob broadcast(Blob mine, Rank root, std::string_view action) override {
    return world_.broadcast(std::move(mine), root, action);
  }
  [[nodiscard]] Logger logger(LogModule module) const override { return world_.logger(module); }

 private:
  World& world_;
};

}  // namespace autopar::ranks
