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

/// 1F1B on a pipeline that passes its positions v times (interleaved 1F1B): a micro-batch comes to the last stage after
/// as many but v times shorter compute actions, so the bubble is (positions - 1) / (v * microbatches + positions - 1)
/// of a step, for equal stage times and at least as many micro-batches as positions. With v = 1 it is 1F1B.
///
/// Micro-batches go round in groups: a group passes a position's first chunk, then its second, and so on. The source
/// wants groups of exactly p = positions micro-batches. Here max(1, microbatches / p) groups, rounded down, are as
/// equal as can be, so that none is smaller than p as long as there are p micro-batches: any number of micro-batches
/// has the bubble above. (A smaller last group waits for itself to come round, and for some sizes waits for ever.) The
/// price is memory: the largest group g instead of p in the law of `peak_activations`.
/// @source Narayanan et al., SC'21, arXiv:2104.04473, section 2.2.2
struct Interleaved {
  using policy_category = schedule_policy_tag;

  /// @throws InvalidArgument unless the pipeline is looped_stages
  [[nodiscard]] std::vector<std::vector<ComputeAction>> rank_orders(const Pipeline& pipeline, int microbatches) const {
    const ChunkLayout layout = chunk_layout(pipeline);
    expect(layout.is_looped() && microbatches >= 1,
           "Interleaved: the stages must pass all positions again and again; lay them out by looped_stages");
    std::vector<std::vector<ComputeAction>> orders;
    for (int d = 0; d < layout.size(); ++d) orders.push_back(order(d, layout.size(), layout.chunks(), microbatches));
    return detail::orders_of_ranks(pipeline, layout, orders);
  }

  /// Most chunks of micro-batches that the ranks of a position hold: (v - 1) g + 2 (positions - position) - 1.
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

  /// Forwards before the first pair of a forward and a backward.
  [[nodiscard]] static int warmup(int position, int positions, int chunks, int microbatches) {
    const int below = positions - position - 1;
    if (chunks == 1) return std::min(microbatches, below);
    return std::min(chunks * microbatches, 2 * below + (chunks - 1) * groups(positions, microbatches).front());
  }

  [[nodiscard]] static std::vector<ComputeAction> order(int position, int positions, int chunks, int microbatches) {
    std::vector<std::pair<int, int>> passes;  // chunk, micro-batch: forwards; backwards have the chunks the other way
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
