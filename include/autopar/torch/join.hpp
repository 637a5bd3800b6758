#pragma once

#include <cstddef>
#include <iterator>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include <autopar/capture/flatten.hpp>
#include <autopar/core/error.hpp>
#include <autopar/runtime/world.hpp>

namespace autopar {

/// A loader that continues with empty batches until the loaders of all ranks have ended. See `join`.
template <class Loader>
class JoinedLoader {
 public:
  using Inner = decltype(std::begin(std::declval<Loader&>()));
  using Batch = std::remove_cvref_t<decltype(*std::declval<Inner&>())>;
  static_assert(Flattenable<Batch>,
                "autopar: join needs a loader of tensors, tuples, vectors or plain structs of them");

  struct Sentinel {};

  class Iterator {
   public:
    using difference_type = std::ptrdiff_t;
    using value_type = Batch;

    Iterator(World& world, Inner at, decltype(std::end(std::declval<Loader&>())) end)
        : world_(&world), at_(std::move(at)), end_(std::move(end)) {
      fetch();
    }
    [[nodiscard]] const Batch& operator*() const { return *batch_; }
    Iterator& operator++() {
      if (has_own_) ++at_;
      fetch();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& iterator, Sentinel) { return iterator.done_; }

   private:
    void fetch() {
      has_own_ = at_ != end_;
      const auto mine = static_cast<std::byte>(has_own_ ? 1 : 0);
      done_ = true;
      for (const auto& other : world_->all_gather(std::span(&mine, 1), "join")) {
        if (other.at(0) != std::byte(0)) done_ = false;
      }
      if (done_) return;
      if (has_own_) {
        batch_.emplace(*at_);
      } else {
        expect(batch_.has_value(),
               "join: this rank's loader is empty from the start, so the form of its batches is not known; give every "
               "rank at least one batch");
        batch_.emplace(emptied(*batch_));
      }
    }
    static Batch emptied(const Batch& batch) {
      auto tensors = autopar::flatten(batch).tensors;
      for (auto& tensor : tensors) {
        if (tensor.defined() && tensor.dim() > 0) tensor = tensor.narrow(0, 0, 0);
      }
      return with_tensors(batch, tensors);
    }

    World* world_;
    Inner at_;
    decltype(std::end(std::declval<Loader&>())) end_;
    std::optional<Batch> batch_;
    bool has_own_ = false;
    bool done_ = false;
  };

  JoinedLoader(World& world, Loader& loader) : world_(&world), loader_(&loader) {}
  [[nodiscard]] Iterator begin() { return Iterator(*world_, std::begin(*loader_), std::end(*loader_)); }
  [[nodiscard]] Sentinel end() { return {}; }

 private:
  World* world_;
  Loader* loader_;
};

/// Continues with empty batches (0 samples in dim 0) on ranks that have fewer batches than others. Every rank thus
/// makes the same calls: `for (auto& [x, y] : ap::join(world, loader))`. Each increment is collective.
template <class Loader>
[[nodiscard]] JoinedLoader<Loader> join(World& world, Loader& loader) {
  return {world, loader};
}

}  // namespace autopar
