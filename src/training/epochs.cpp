#include <autopar/training/epochs.hpp>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <random>

namespace autopar::training {

void GlobalRandomSampler::reset() {
  position_ = 0;
  order_.resize(size_);
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  std::seed_seq words{static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32),
                      static_cast<std::uint32_t>(epoch_), static_cast<std::uint32_t>(epoch_ >> 32)};
  std::mt19937_64 random(words);
  // Fisher and Yates; std::shuffle differs between standard libraries. The modulo's bias is below size / 2^64.
  for (std::size_t i = size_; i > 1; --i) std::swap(order_[i - 1], order_[random() % i]);
}

std::vector<std::size_t> GlobalRandomSampler::taken(std::size_t samples) {
  const auto at = [&](std::size_t rank) {
    return order_.begin() + static_cast<std::ptrdiff_t>(position_ + samples * rank / ranks_);
  };
  std::vector<std::size_t> mine(at(rank_), at(rank_ + 1));
  position_ += samples;
  return mine;
}

std::optional<std::vector<std::size_t>> GlobalRandomSampler::next(std::size_t batch) {
  const auto share = std::min(batch, (size_ - position_) / ranks_);
  if (share == 0) return std::nullopt;
  return taken(share * ranks_);
}

std::optional<std::vector<std::size_t>> GlobalRandomSampler::share(std::size_t samples) {
  if (samples > size_ - position_) return std::nullopt;
  return taken(samples);
}

void GlobalRandomSampler::skip(std::size_t samples) { position_ += std::min(samples, size_ - position_); }

std::pair<std::int64_t, std::int64_t> detail::read_epoch_place(const std::string& text) {
  std::int64_t epoch = -1, taken = -1;
  const auto* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, epoch);
  if (first.ec == std::errc() && first.ptr != end && *first.ptr == ',') {
    const auto second = std::from_chars(first.ptr + 1, end, taken);
    if (second.ec == std::errc() && second.ptr == end && epoch >= 0 && taken >= 0) return {epoch, taken};
  }
  throw InvalidArgument("'" + text + "' is not what Epochs saved");
}

}  // namespace autopar::training
