#pragma once

#include <algorithm>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/schedule/chunks.hpp>
#include <autopar/schedule/concepts.hpp>
#include <autopar/schedule/pipeline.hpp>

namespace autopar {

/// ZB-V: backwards in two parts on a pipeline that goes to the last position and back, two chunks on each rank. The
/// last stage is where the first is, so the first backward starts at once. For F = B = W and at least 2 * positions - 1
/// micro-batches, no rank waits between its first and its last compute action. If the optimizer waits for all ranks,
/// the bubble is (positions - 1) / (6 * microbatches + positions - 1) of a step. A rank holds at most 2 * positions
/// chunks of micro-batches, as does the first rank of 1F1B.
///
/// With fewer micro-batches, the order of 2 * positions - 1 is used, without the missing ones.
/// @source Qi et al., NeurIPS 2024, arXiv:2405.15362, section 3 and appendix. The explicit order is from
/// torch.distributed.pipelining's ScheduleZBVZeroBubble.
struct ZbV {
  using policy_category = schedule_policy_tag;

  /// @throws InvalidArgument unless the pipeline has the layout kVShaped
  [[nodiscard]] std::vector<std::vector<ComputeAction>> rank_orders(const Pipeline& pipeline, int microbatches) const {
    expect(microbatches >= 1, "ZbV: at least one micro-batch is needed");
    return detail::orders_of_ranks(
        pipeline, StageLayout::kVShaped,
        "ZbV: the stages must go to the last position and back, two chunks a rank; lay them out by stages_in(kVShaped)",
        [&](int position, int positions, int) { return order(position, positions, microbatches); });
  }

  /// The largest number of chunks of micro-batches that the ranks of a position hold from forward to weight backward.
  [[nodiscard]] static constexpr int peak_activations(int /*position*/, int positions, int microbatches) {
    return std::min(2 * positions, 2 * microbatches);
  }

 private:
  /// Compute actions of one position; each chunk's micro-batches ascend.
  class Row {
   public:
    Row(int position, int positions, int microbatches)
        : stage_{StageId(position), StageId(2 * positions - 1 - position)}, microbatches_(microbatches) {}
    void forward(int chunk) { add(ActionKind::kForward, chunk, forwards[chunk]++); }
    void input(int chunk) { add(ActionKind::kBackwardInput, chunk, inputs[chunk]++); }
    void weight(int chunk) { add(ActionKind::kBackwardWeight, chunk, weights[chunk]++); }
    void backward(int chunk) {
      input(chunk);
      weight(chunk);
    }
    int forwards[2] = {0, 0}, inputs[2] = {0, 0}, weights[2] = {0, 0};  // numbers of actions so far
    std::vector<ComputeAction> computes;

   private:
    void add(ActionKind kind, int chunk, int microbatch) {
      if (microbatch < microbatches_) computes.push_back({kind, microbatch, stage_[chunk]});
    }
    StageId stage_[2];
    int microbatches_;
  };

  [[nodiscard]] static std::vector<ComputeAction> order(int position, int positions, int microbatches) {
    const int all = std::max(2 * positions - 1, microbatches);
    Row row(position, positions, microbatches);
    for (int i = 0; i < 2 * (positions - position) - 1; ++i) row.forward(0);
    for (int i = 0; i < position; ++i) {
      row.forward(1);
      row.forward(0);
    }
    for (int i = position; i < positions; ++i) {
      row.forward(1);
      row.backward(1);
    }
    while (row.forwards[1] < all) {
      if (row.forwards[0] < all) row.forward(0);
      row.backward(0);
      row.forward(1);
      row.backward(1);
    }
    for (int i = 0; i < position; ++i) {
      row.input(0);
      row.input(1);
    }
    for (int i = position; i < positions; ++i) row.backward(0);
    while (row.weights[1] < all) row.weight(1);
    while (row.weights[0] < all) row.weight(0);
    return std::move(row.computes);
  }
};
static_assert(SchedulePolicy<ZbV>);

}  // namespace autopar
