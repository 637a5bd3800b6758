#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/runtime/world.hpp>

namespace autopar::training {

/// A distributed sampler whose order is a function of the epoch's number: GlobalRandomSampler, and
/// DistributedRandomSampler and DistributedSequentialSampler of torch::data::samplers.
template <class T>
concept EpochSampler = std::constructible_from<T, std::size_t, std::size_t, std::size_t> &&
    requires(T& sampler, std::size_t number) {
  sampler.set_epoch(number);
  sampler.reset();
  { sampler.next(number) } -> std::same_as<std::optional<std::vector<std::size_t>>>;
};

/// One whose order is the same for every number of ranks, and that cuts it into batches of all ranks.
template <class T>
concept SharingSampler = EpochSampler<T> && requires(T& sampler, std::size_t number) {
  sampler.skip(number);
  { sampler.share(number) } -> std::same_as<std::optional<std::vector<std::size_t>>>;
};

/// Random order, in which a global batch has the same samples for every number of ranks. (A DistributedRandomSampler
/// cuts the whole epoch among the ranks.) The order depends on the seed and the epoch alone.
class GlobalRandomSampler {
 public:
  GlobalRandomSampler(std::size_t size, std::size_t ranks, std::size_t rank, std::uint64_t seed = 0)
      : size_(size), ranks_(ranks), rank_(rank), seed_(seed) {
    reset();
  }

  void set_epoch(std::size_t epoch) { epoch_ = epoch; }
  /// Begins the epoch of `set_epoch`.
  void reset();
  /// The rank's share of the next `batch * ranks` samples, of fewer at the epoch's end; nothing after it. There at most
  /// `ranks - 1` samples are left out.
  [[nodiscard]] std::optional<std::vector<std::size_t>> next(std::size_t batch);
  /// The rank's share of the next `samples` samples: shares differ by one at most, and may be empty. Nothing if the
  /// epoch has less left.
  [[nodiscard]] std::optional<std::vector<std::size_t>> share(std::size_t samples);
  /// Passes over so many samples of all ranks.
  void skip(std::size_t samples);

 private:
  [[nodiscard]] std::vector<std::size_t> taken(std::size_t samples);

  std::size_t size_, ranks_, rank_;
  std::uint64_t seed_;
  std::size_t epoch_ = 0, position_ = 0;
  std::vector<std::size_t> order_{};
};

/// This rank's place in the data, epoch after epoch without end. It is saved and loaded with the model:
///
///     training::Epochs order(world, 60'000);     // samples
///     model->keep("order", order);
///     const auto picked = order.share(256);      // this rank's part of the next 256 samples of all ranks
///
/// With `share` a training that goes on with another number of ranks has the same batches. What is saved is the number
/// of the epoch and how many samples all ranks took of it.
template <EpochSampler Sampler = GlobalRandomSampler>
class Epochs {
 public:
  /// @param size  of the data
  /// @param more  for the sampler's constructor, behind size, number of ranks and rank: a seed
  template <class... More>
  Epochs(const World& world, std::size_t size, More&&... more)
      : ranks_(world.size()),
        sampler_(size, static_cast<std::size_t>(world.size()), static_cast<std::size_t>(world.rank()),
                 std::forward<More>(more)...) {
    begin(0);
  }

  /// This rank's part of the next `samples` samples, in rank order: parts differ by one at most, and may be empty. The
  /// rest of an epoch that is less is left out. All ranks pass the same number.
  /// @throws InvalidArgument if an epoch has less
  [[nodiscard]] std::vector<std::size_t> share(std::size_t samples) requires SharingSampler<Sampler> {
    auto picked = sampler_.share(samples);
    if (!picked) {
      begin(epoch_ + 1);
      picked = sampler_.share(samples);
    }
    if (!picked) throw InvalidArgument("an epoch has less than a batch of " + std::to_string(samples) + " samples");
    taken_ += static_cast<std::int64_t>(samples);
    return *std::move(picked);
  }

  /// The next samples of this rank, as many on each. With another number of ranks a batch of all ranks is another:
  /// see `share`. The rest of an epoch that is less than a batch is left out.
  /// @throws InvalidArgument if a rank has less than a batch in an epoch
  [[nodiscard]] std::vector<std::size_t> next(std::size_t batch) {
    auto picked = sampler_.next(batch);
    if (!picked || picked->size() < batch) {
      begin(epoch_ + 1);
      picked = sampler_.next(batch);
    }
    const auto there = picked ? picked->size() : 0;
    if (there < batch) {
      throw InvalidArgument("an epoch has " + std::to_string(there) + " samples a rank, less than a batch of " +
                            std::to_string(batch));
    }
    taken_ += static_cast<std::int64_t>(batch) * ranks_;
    return *std::move(picked);
  }

  [[nodiscard]] std::int64_t epoch() const { return epoch_; }  ///< from 0
  [[nodiscard]] std::int64_t taken() const { return taken_; }  ///< samples of the epoch, by all ranks

  // For `model->keep`.
  [[nodiscard]] std::string save() const { return std::to_string(epoch()) + ',' + std::to_string(taken()); }
  /// With a sampler that does not share, another number of ranks goes on at most `ranks - 1` samples before the place.
  /// @throws InvalidArgument if `save` did not write the text; the place is unchanged
  void load(const std::string& text);

 private:
  void begin(std::int64_t epoch) {
    epoch_ = epoch;
    taken_ = 0;
    sampler_.set_epoch(static_cast<std::size_t>(epoch));
    sampler_.reset();
  }

  std::int64_t ranks_;
  Sampler sampler_;
  std::int64_t epoch_ = 0;
  std::int64_t taken_ = 0;
};

namespace detail {
/// The two counts of Epochs::save. @throws InvalidArgument
[[nodiscard]] std::pair<std::int64_t, std::int64_t> read_epoch_place(const std::string& text);
}  // namespace detail

template <EpochSampler Sampler>
void Epochs<Sampler>::load(const std::string& text) {
  const auto [epoch, taken] = detail::read_epoch_place(text);
  begin(epoch);
  if constexpr (SharingSampler<Sampler>) {
    taken_ = taken;
    sampler_.skip(static_cast<std::size_t>(taken));
  } else if (const auto own = taken / ranks_; own > 0) {
    taken_ = own * ranks_;
    static_cast<void>(sampler_.next(static_cast<std::size_t>(own)));
  }
}

template <class... More>
Epochs(const World&, std::size_t, More&&...) -> Epochs<GlobalRandomSampler>;

}  // namespace autopar::training
