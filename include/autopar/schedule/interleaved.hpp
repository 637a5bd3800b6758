#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/schedule/chunks.hpp>
#include <autopar/schedule/concepts.hpp>
#include <autopar/schedule/pipeline.hpp>

namespace autopar {

/// Interleaved 1F1B: 1F1B on a pipeline that passes its positions v times. With v = 1 it is 1F1B. A micro-batch reaches
/// the last stage after as many compute actions as in 1F1B, each v times shorter. For equal stage times and at least as
/// many micro-batches as positions, the bubble is (positions - 1) / (v * microbatches + positions - 1) of a step.
///
/// Micro-batches pass a position's chunks in groups: the whole group passes the first chunk, then the second, and so
/// on. The paper requires groups of exactly p = positions micro-batches. Here there are max(1, floor(microbatches / p))
/// groups, as equal as possible. No group is smaller than p if there are at least p micro-batches, so the bubble above
/// holds for any number of micro-batches. (A smaller last group would wait for its own return, for some sizes for
/// ever.) The cost is memory: in the law of `peak_activations`, the largest group g takes the place of p.
/// @source Narayanan et al., SC'21, arXiv:2104.04473, section 2.2.2
struct Interleaved {
  using policy_category = schedule_policy_tag;

  /// @throws InvalidArgument unless the pipeline has the layout kLooped
  [[nodiscard]] std::vector<std::vector<ComputeAction>> rank_orders(const Pipeline& pipeline, int microbatches) const {
    expect(microbatches >= 1, "Interleaved: at least one micro-batch is needed");
    return detail::orders_of_ranks(
        pipeline, StageLayout::kLooped,
        "Interleaved: the stages must pass all positions again and again; lay them out by stages_in(kLooped)",
        [&](int position, int positions, int chunks) { return order(position, positions, chunks, microbatches); });
  }

  /// The largest number of chunks of micro-batches that the ranks of a position hold:
  /// `(v - 1) g + 2 (positions - position) - 1`.
  [[nodiscard]] static int peak_activations(int position, int positions, int chunks, int microbatches) {
    return std::min(chunks * microbatches, warmup(position, positions, chunks, microbatches) + 1);
  }

 private:
  /// Sizes of the groups, the largest first.
  [[nodiscard]] static std::vector<int> groups(int positions, int microbatches) {
    const int count = std::max(1, microbatches / positions);
    std::vector<int> sizes;
    for (int i = 0; i < count; ++i) sizes.push_back((microbatches + count - 1 - i) / count);
    return sizes;
  }

  /// Number of forwards before the first pair of a forward and a backward.
  [[nodiscard]] static int warmup(int position, int positions, int chunks, int microbatches) {
    const int below = positions - position - 1;
    if (chunks == 1) return std::min(microbatches, below);
    return std::min(chunks * microbatches, 2 * below + (chunks - 1) * groups(positions, microbatches).front());
  }

  [[nodiscard]] static std::vector<ComputeAction> order(int position, int positions, int chunks, int microbatches) {
    std::vector<std::pair<int, int>> passes;  // (chunk, micro-batch) of forwards; backwards reverse chunks
    int first = 0;
    for (const int group : groups(positions, microbatches)) {
      for (int c = 0; c < chunks; ++c) {
        for (int m = first; m < first + group; ++m) passes.emplace_back(c, m);
      }
      first += group;
    }
    const auto warm = static_cast<std::size_t>(warmup(position, positions, chunks, microbatches));
    std::vector<ComputeAction> out;
    const auto forward = [&](std::size_t k) {
      const auto [chunk, microbatch] = passes[k];
      out.push_back({ActionKind::kForward, microbatch, StageId(chunk * positions + position)});
    };
    for (std::size_t k = 0; k < warm; ++k) forward(k);
    for (std::size_t k = 0; k < passes.size(); ++k) {
      if (k + warm < passes.size()) forward(k + warm);
      const auto [chunk, microbatch] = passes[k];
      out.push_back({ActionKind::kBackward, microbatch, StageId((chunks - 1 - chunk) * positions + position)});
    }
    return out;
  }
};
static_assert(SchedulePolicy<Interleaved>);

}  // namespace autopar
