#include "shard/softmax_block.hpp"

#include <cmath>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "shard/margin_logit.hpp"

namespace autopar::detail {

namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

/// The one column of each row that is its target, if the block has it.
struct TargetColumns {
  TargetColumns(const at::Tensor& block, std::int64_t first_class, const Targets& targets) {
    const auto column = targets.index - first_class;
    here = targets.counts.logical_and(column.ge(0)).logical_and(column.lt(block.size(1)));
    index = at::where(here, column, 0).unsqueeze(1);
  }

  [[nodiscard]] at::Tensor of(const at::Tensor& block) const { return block.gather(1, index).squeeze(1); }
  void put(at::Tensor& block, const at::Tensor& values) const {
    block.scatter_(1, index, at::where(here, values, of(block)).unsqueeze(1));
  }
  void add(at::Tensor& block, const at::Tensor& values) const {
    block.scatter_add_(1, index, values.masked_fill(here.logical_not(), 0).unsqueeze(1));
  }

  at::Tensor here, index;
};

/// Cosines become logits. @return the cosines of the targets
at::Tensor apply_margin(at::Tensor& block, const TargetColumns& target, const std::optional<Margin>& margin) {
  if (!margin.has_value()) return {};
  const auto cosine = target.of(block);
  block.mul_(margin->scale);
  target.put(block, margin_logit(cosine, *margin));
  return cosine;
}

}  // namespace

Targets Targets::rows(std::int64_t begin, std::int64_t length) const {
  return {index.narrow(0, begin, length), counts.narrow(0, begin, length)};
}

at::Tensor RowLoss::mass(std::int64_t begin, std::int64_t length, const at::TensorOptions& type) const {
  if (weight.defined()) return weight.narrow(0, begin, length).sum();
  return at::full({}, static_cast<double>(length), type);
}

at::Tensor RowLoss::target_weight(const Targets& targets, c10::ScalarType type) const {
  if (!weight.defined()) return targets.counts.to(type);
  const auto index = targets.index.masked_fill(targets.counts.logical_not(), 0);
  return weight.index_select(0, index).masked_fill(targets.counts.logical_not(), 0);
}

c10::ScalarType statistics_type(c10::ScalarType logits) { return logits == at::kDouble ? at::kDouble : at::kFloat; }

at::Tensor block_statistics(at::Tensor block, std::int64_t first_class, const Targets& targets, const RowLoss& loss) {
  if (block.size(1) == 0) {
    auto nothing = at::zeros({loss.statistics(), block.size(0)}, block.options());
    nothing[0].fill_(kNothing);
    return nothing;
  }
  const TargetColumns target(block, first_class, targets);
  apply_margin(block, target, loss.margin);
  const auto target_logit = target.of(block).masked_fill(target.here.logical_not(), 0);
  const auto maximum = block.amax(1);
  block.sub_(maximum.masked_fill(maximum.eq(kNothing), 0).unsqueeze(1));
  at::Tensor weighted;
  if (loss.smoothing > 0) {
    weighted = loss.weight.defined() ? block.mv(loss.weight.narrow(0, first_class, block.size(1))) : block.sum(1);
  }
  const auto sum = block.exp_().sum(1);
  if (loss.smoothing > 0) return at::stack({maximum, sum, target_logit, weighted});
  return at::stack({maximum, sum, target_logit});
}

at::Tensor merged(const at::Tensor& statistics, const at::Tensor& masses) {
  const auto maxima = statistics.select(1, 0);
  const auto maximum = maxima.amax(0);
  const auto shift = maxima - maximum;
  const auto sum = (statistics.select(1, 1) * shift.exp()).sum(0);
  const auto target_logit = statistics.select(1, 2).sum(0);
  if (statistics.size(1) < 4) return at::stack({maximum, sum, target_logit});
  const auto finite_shift = shift.masked_fill(shift.eq(kNothing), 0);
  const auto weighted = (statistics.select(1, 3) + masses.unsqueeze(1) * finite_shift).sum(0);
  return at::stack({maximum, sum, target_logit, weighted});
}

at::Tensor log_sum_exp(const at::Tensor& statistics) { return statistics[0] + statistics[1].log(); }

at::Tensor row_losses(const at::Tensor& statistics, const Targets& targets, const RowLoss& loss) {
  const auto log_sum = statistics[1].log();  // relative to the maximum
  const auto weight = loss.target_weight(targets, statistics.scalar_type());
  auto losses = weight * (log_sum + (statistics[0] - statistics[2]));
  if (loss.smoothing > 0) {
    const auto smooth = loss.mass(0, loss.classes, statistics.options()) * log_sum - statistics[3];
    losses = (1 - loss.smoothing) * losses + (loss.smoothing / static_cast<double>(loss.classes)) * smooth;
  }
  return losses.masked_fill(targets.counts.logical_not(), 0);
}

void block_gradient(at::Tensor block, std::int64_t first_class, const Targets& targets, const RowLoss& loss,
                    const at::Tensor& log_sums, const at::Tensor& gradient) {
  if (block.size(1) == 0) return;
  const TargetColumns target(block, first_class, targets);
  const auto cosine = apply_margin(block, target, loss.margin);
  const auto of_row = gradient.masked_fill(targets.counts.logical_not(), 0);
  const auto of_target = loss.target_weight(targets, block.scalar_type()) * of_row * (1 - loss.smoothing);
  auto of_softmax = of_target;
  const double smooth = loss.smoothing / static_cast<double>(loss.classes);
  if (loss.smoothing > 0) of_softmax = of_softmax + of_row * loss.mass(0, loss.classes, block.options()) * smooth;

  block.sub_(log_sums.unsqueeze(1)).exp_().mul_(of_softmax.unsqueeze(1));
  target.add(block, -of_target);
  if (loss.smoothing > 0) {
    if (loss.weight.defined()) {
      block.addr_(of_row, loss.weight.narrow(0, first_class, block.size(1)), 1, -smooth);
    } else {
      block.sub_((of_row * smooth).unsqueeze(1));
    }
  }
  if (!loss.margin.has_value()) return;
  const auto at_target = target.of(block) * margin_slope(cosine, *loss.margin);
  block.mul_(loss.margin->scale);
  target.put(block, at_target);
}

}  // namespace autopar::detail
