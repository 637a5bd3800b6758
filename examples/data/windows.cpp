#include "windows.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

Windows::Windows(torch::Tensor tokens, std::int64_t length, std::int64_t held_out, std::uint64_t seed, Place place)
    : tokens_(std::move(tokens)), length_(length), seed_(seed), place_(place) {
  const auto size = tokens_.numel();
  const auto windows = (size - 1) / length;  // the last token is only predicted
  if (windows < 2) {
    throw std::runtime_error("the text has " + std::to_string(size) + " tokens, less than two windows of " +
                             std::to_string(length) +
                             ", one of which is for validation: name more text with --data, "
                             "or a smaller --length");
  }
  training_.resize(static_cast<std::size_t>(windows));
  std::iota(training_.begin(), training_.end(), 0);
  std::shuffle(training_.begin(), training_.end(), std::mt19937_64(seed));
  const auto kept = windows - std::clamp<std::int64_t>(held_out, 1, std::max<std::int64_t>(1, windows / 10));
  validation_.assign(training_.begin() + kept, training_.end());
  training_.resize(static_cast<std::size_t>(kept));
}

Batch Windows::training(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> windows;
  for (auto sample = first + begin_of(count); sample < first + end_of(count); ++sample) {
    shuffle_for(sample / training_size());
    windows.push_back(order_[static_cast<std::size_t>(sample % training_size())]);
  }
  return gathered(windows);
}

Batch Windows::validation(std::int64_t first, std::int64_t count) const {
  return gathered({validation_.begin() + first + begin_of(count), validation_.begin() + first + end_of(count)});
}

void Windows::shuffle_for(std::int64_t epoch) {
  if (epoch == epoch_) return;
  epoch_ = epoch;
  order_ = training_;
  std::seed_seq seeds{seed_, static_cast<std::uint64_t>(epoch)};
  std::shuffle(order_.begin(), order_.end(), std::mt19937_64(seeds));
}

Batch Windows::gathered(const std::vector<std::int64_t>& windows) const {
  auto rows = torch::empty({static_cast<std::int64_t>(windows.size()), length_ + 1}, torch::kLong);
  auto* to = rows.data_ptr<std::int64_t>();
  const auto* from = tokens_.const_data_ptr<std::int32_t>();
  for (const auto window : windows) to = std::copy_n(from + window * length_, length_ + 1, to);
  rows = rows.to(place_.device);
  return {rows.slice(1, 0, length_).contiguous(), rows.slice(1, 1).contiguous()};
}
