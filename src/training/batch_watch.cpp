#include <autopar/training/batch_watch.hpp>

#include <autopar/core/error.hpp>

namespace autopar::training {

std::string BatchWatch::see(std::int64_t samples) {
  if (samples <= size_.samples) return {};
  size_.samples = samples;
  // Other sizes may be of an epoch's end, or are meant.
  const bool is_per_rank = samples * before_.ranks == before_.samples * size_.ranks;
  if (before_.samples == 0 || samples == before_.samples || !is_per_rank) return {};
  const auto text = [](const StepSize& size) {
    return std::to_string(size.samples) + " samples on " + std::to_string(size.ranks) + " ranks";
  };
  const auto change = "a step takes " + text(size_) + ", and took " + text(before_);
  if (may_change_) return change;
  throw InvalidArgument(change +
                        ": this is another training. Take parts of one batch (training::Epochs::share), or allow it: "
                        "RunOptions::allow_batch_change, or autopar run --allow-batch-change");
}

}  // namespace autopar::training
