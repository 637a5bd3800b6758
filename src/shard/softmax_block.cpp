#include "shard/softmax_block.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "shard/margin_logit.hpp"

namespace autopar::detail {

TORCH_LIBRARY_FRAGMENT(autopar, library) {
  library.def("class_block_statistics(Tensor logits, Tensor target, int first_class, Tensor made) -> bool");
  library.def(
      "class_block_gradient(Tensor logits, Tensor target, Tensor? weight, Tensor log_sums, Tensor gradient, int "
      "first_class, int classes, Tensor made) -> bool");
}

namespace {

using StatisticsKernel = bool(const at::Tensor&, const at::Tensor&, std::int64_t, const at::Tensor&);
using GradientKernel = bool(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, const at::Tensor&,
                            const at::Tensor&, std::int64_t, std::int64_t, const at::Tensor&);

/// Runs an operator above where the logits' device has it and the operator supports the arguments.
/// @return whether it ran
template <class Signature, class... Arguments>
bool runs_in_kernel(const char* name, const at::Tensor& logits, const RowLoss& loss, const Arguments&... arguments) {
  if (loss.smoothing > 0 || loss.margin.has_value()) return false;
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  const auto key = logits.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  if (!op.hasKernelForDispatchKey(key)) return false;
  const at::AutoDispatchBelowADInplaceOrView no_history;
  return op.template typed<Signature>().call(arguments...);
}

/// The index of each target, -1 where the row does not count.
at::Tensor counted(const Targets& targets) { return targets.index.masked_fill(targets.counts.logical_not(), -1); }

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

/// Rows that are worked on together: few enough for caches of CPUs, enough to fill a device.
template <class Work>
void for_each_rows(const at::Tensor& logits, const Work& work) {
  const std::int64_t elements = logits.is_cpu() ? std::int64_t{1} << 18 : std::int64_t{1} << 24;
  const auto step = std::max<std::int64_t>(elements / logits.size(1), 1);
  for (std::int64_t begin = 0; begin < logits.size(0); begin += step)
    work(begin, std::min(step, logits.size(0) - begin));
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

namespace {

at::Tensor statistics_of_rows(const at::Tensor& logits, std::int64_t first_class, const Targets& targets,
                              const RowLoss& loss) {
  const auto type = statistics_type(logits.scalar_type());
  auto block = loss.margin.has_value() ? logits.to(type, false, /*copy=*/true) : logits;
  const TargetColumns target(block, first_class, targets);
  apply_margin(block, target, loss.margin);
  const auto target_logit = target.of(block).to(type).masked_fill_(target.here.logical_not(), 0);
  const auto maximum = block.amax(1).to(type);
  const auto logs = at::log_softmax(block, 1, type);
  const auto is_nothing = maximum.eq(kNothing);
  const auto log_sum = (maximum - logs.amax(1)).masked_fill_(is_nothing, kNothing);
  const auto sum = is_nothing.logical_not().to(type);  // relative to exp(log_sum)
  if (loss.smoothing == 0) return at::stack({log_sum, sum, target_logit});
  const auto weighted = loss.weight.defined() ? logs.mv(loss.weight.narrow(0, first_class, logs.size(1))) : logs.sum(1);
  return at::stack({log_sum, sum, target_logit, weighted});
}

}  // namespace

at::Tensor block_statistics(const at::Tensor& logits, std::int64_t first_class, const Targets& targets,
                            const RowLoss& loss) {
  auto statistics =
      at::zeros({loss.statistics(), logits.size(0)}, logits.options().dtype(statistics_type(logits.scalar_type())));
  if (logits.size(1) == 0) {
    statistics[0].fill_(kNothing);
    return statistics;
  }
  if (runs_in_kernel<StatisticsKernel>("autopar::class_block_statistics", logits, loss, logits, counted(targets),
                                       first_class, statistics))
    return statistics;
  for_each_rows(logits, [&](std::int64_t begin, std::int64_t length) {
    statistics.narrow(1, begin, length)
        .copy_(statistics_of_rows(logits.narrow(0, begin, length), first_class, targets.rows(begin, length), loss));
  });
  return statistics;
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

namespace {

void gradient_of_rows(const at::Tensor& logits, std::int64_t first_class, const Targets& targets, const RowLoss& loss,
                      const at::Tensor& own_log_sums, const at::Tensor& log_sums, const at::Tensor& gradient,
                      at::Tensor result) {
  const auto type = log_sums.scalar_type();
  auto block = loss.margin.has_value() ? logits.to(type, false, /*copy=*/true) : logits;
  const TargetColumns target(block, first_class, targets);
  const auto cosine = apply_margin(block, target, loss.margin);
  const auto of_row = gradient.masked_fill(targets.counts.logical_not(), 0);
  const auto of_target = loss.target_weight(targets, type) * of_row * (1 - loss.smoothing);
  auto of_softmax = of_target;
  const double smooth = loss.smoothing / static_cast<double>(loss.classes);
  if (loss.smoothing > 0) of_softmax = of_softmax + of_row * loss.mass(0, loss.classes, log_sums.options()) * smooth;

  const auto is_nothing = own_log_sums.eq(kNothing).unsqueeze(1);
  auto part = at::softmax(block, 1, type);
  // From the block's own probabilities to those of all classes.
  const auto factor = ((own_log_sums - log_sums).exp() * of_softmax).unsqueeze(1);
  if (loss.smoothing == 0 && !loss.margin.has_value()) {
    const auto at_target = target.of(part) * factor.squeeze(1) - of_target;
    at::mul_out(result, part, factor).masked_fill_(is_nothing, 0);
    target.put(result, at_target.to(result.scalar_type()));
    return;
  }
  part.mul_(factor).masked_fill_(is_nothing, 0);
  target.add(part, -of_target);
  if (loss.smoothing > 0) {
    if (loss.weight.defined()) {
      part.addr_(of_row, loss.weight.narrow(0, first_class, part.size(1)), 1, -smooth);
    } else {
      part.sub_((of_row * smooth).unsqueeze(1));
    }
  }
  if (loss.margin.has_value()) {
    const auto at_target = target.of(part) * margin_slope(cosine, *loss.margin);
    part.mul_(loss.margin->scale);
    target.put(part, at_target);
  }
  result.copy_(part);
}

}  // namespace

void block_gradient(const at::Tensor& logits, std::int64_t first_class, const Targets& targets, const RowLoss& loss,
                    const at::Tensor& own_log_sums, const at::Tensor& log_sums, const at::Tensor& gradient,
                    const at::Tensor& result) {
  if (logits.size(1) == 0) return;
  const auto weight = loss.weight.defined() ? std::optional(loss.weight) : std::nullopt;
  if (runs_in_kernel<GradientKernel>("autopar::class_block_gradient", logits, loss, logits, counted(targets), weight,
                                     log_sums, gradient, first_class, loss.classes, result))
    return;
  for_each_rows(logits, [&](std::int64_t begin, std::int64_t length) {
    gradient_of_rows(logits.narrow(0, begin, length), first_class, targets.rows(begin, length), loss,
                     own_log_sums.narrow(0, begin, length), log_sums.narrow(0, begin, length),
                     gradient.narrow(0, begin, length), result.narrow(0, begin, length));
  });
}

}  // namespace autopar::detail
