#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include <autopar/core/error.hpp>
#include <autopar/runtime/world.hpp>
#include <autopar/torch/parallel_module.hpp>

namespace autopar::training {

/// Into how many calls a batch is cut so that no rank gets more than `most` samples a call: the fewest that are equal.
/// With fewer ranks these are more, as each rank has no more memory than before.
/// @param samples  of the batch, of all ranks
/// @throws InvalidArgument if one of them is not positive
[[nodiscard]] inline std::int64_t parts_of(const World& world, std::int64_t samples, std::int64_t most) {
  if (samples < 1 || most < 1) {
    throw InvalidArgument("a batch of " + std::to_string(samples) + " samples with at most " + std::to_string(most) +
                          " a call: both are at least 1");
  }
  const std::int64_t ranks = world.size();
  const auto largest_share = [&](std::int64_t parts) { return (samples / parts + ranks - 1) / ranks; };
  std::int64_t parts = 1;
  while (samples % parts != 0 || largest_share(parts) > most) ++parts;
  return parts;
}

/// Gradients of a batch that comes in several calls, each of as many samples: forward and backward of each, divided by
/// their number. Ranks exchange gradients in the last one alone. Collective.
///
///     const auto loss = training::accumulate(model, 4, [&](std::int64_t) { return model(next_x(), next_y()); });
///
/// Set Options::gradient_accumulation, so that the plan keeps room for it.
/// @param loss_of  makes the calls of the model: the mean loss of part 0, 1, …, parts - 1
/// @return the mean loss of all parts, without gradients
/// @throws InvalidArgument if `parts` is not positive
template <class Model, class LossOf>
at::Tensor accumulate(Model& model, std::int64_t parts, LossOf&& loss_of) {
  if (parts < 1) throw InvalidArgument("parts = " + std::to_string(parts) + ": a batch comes in at least one");
  at::Tensor sum;
  for (std::int64_t part = 0; part < parts; ++part) {
    std::optional<NoSyncGuard> until_last;
    if (part + 1 < parts) until_last.emplace(model->no_sync());
    const at::Tensor loss = loss_of(part) / parts;
    loss.backward();
    sum = sum.defined() ? sum + loss.detach() : loss.detach();
  }
  return sum;
}

}  // namespace autopar::training
