#include <autopar/shard/linear_cross_entropy.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <autopar/core/error.hpp>
#include <autopar/shard/collectives.hpp>

#include "shard/class_targets.hpp"
#include "shard/kept.hpp"
#include "shard/local_class_head.hpp"
#include "shard/softmax_block.hpp"

namespace autopar {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Range {
  std::int64_t begin = 0;
  std::int64_t length = 0;
};

/// One range at least, so that there are statistics of nothing as well.
std::vector<Range> cut(std::int64_t total, std::int64_t at_once) {
  std::vector<Range> ranges;
  do {
    const auto begin = ranges.empty() ? 0 : ranges.back().begin + ranges.back().length;
    ranges.push_back({begin, std::min(at_once, total - begin)});
  } while (ranges.back().begin + ranges.back().length < total);
  return ranges;
}

/// How the logits are made piece by piece, and of what the loss is.
struct Plan {
  detail::ClassShards shards;
  std::vector<Range> rows;
  std::vector<Range> classes;  ///< of this rank's
};

Plan plan_of(detail::ClassShards shards, std::int64_t samples, const LinearCrossEntropyOptions& options) {
  expect(options.chunk_elements() > 0, "linear_cross_entropy: chunk_elements must be above 0");
  const auto classes = shards.length();
  const bool by_class =
      options.chunks() == LogitChunks::kClasses || (options.chunks() == LogitChunks::kAuto && classes > samples);
  const auto at_once = [&](std::int64_t other) {
    return std::max<std::int64_t>(options.chunk_elements() / std::max<std::int64_t>(other, 1), 1);
  };
  Plan plan{std::move(shards), {}, {}};
  plan.rows = cut(samples, by_class ? std::max<std::int64_t>(samples, 1) : at_once(classes));
  plan.classes = cut(classes, by_class ? at_once(samples) : std::max<std::int64_t>(classes, 1));
  return plan;
}

/// The tensors that a chunk of logits is made of.
struct Factors {
  Tensor features, weight, bias;

  [[nodiscard]] Tensor logits(Range rows, Range classes) const {
    const auto part = bias.defined() ? bias.narrow(0, classes.begin, classes.length) : Tensor();
    const auto made =
        at::linear(features.narrow(0, rows.begin, rows.length), weight.narrow(0, classes.begin, classes.length), part);
    return made.to(detail::statistics_type(made.scalar_type()));
  }
};

/// @param own_log_sums  [chunks of classes, rows], set
Tensor statistics_of_rows(const Factors& factors, Range rows, const detail::Targets& targets, const Plan& plan,
                          const Tensor& own_log_sums) {
  std::vector<Tensor> statistics, masses;
  for (const auto classes : plan.classes) {
    const auto first = plan.shards.first() + classes.begin;
    const auto logits = factors.logits(rows, classes);
    const auto type = logits.options();
    statistics.push_back(detail::block_statistics(logits, first, targets, plan.shards.loss));
    own_log_sums[static_cast<std::int64_t>(masses.size())].copy_(statistics.back()[0]);
    masses.push_back(plan.shards.loss.mass(first, classes.length, type));
  }
  return statistics.size() == 1 ? statistics.front() : detail::merged(at::stack(statistics), at::stack(masses));
}

/// Sums up in the type of statistics.
class Gradient {
 public:
  Gradient(const Tensor& of, bool wanted) : type_(of.defined() ? of.scalar_type() : at::kFloat) {
    if (wanted && of.defined()) sum_ = at::zeros_like(of, of.options().dtype(detail::statistics_type(type_)));
  }
  [[nodiscard]] bool wanted() const { return sum_.defined(); }
  void add(Range range, const Tensor& term) { sum_.narrow(0, range.begin, range.length).add_(term); }
  void add_product(Range range, const Tensor& a, const Tensor& b) {
    auto part = sum_.narrow(0, range.begin, range.length);
    if (sum_.scalar_type() == type_) {
      part.addmm_(a, b);
    } else {
      part.add_(a.mm(b));
    }
  }
  [[nodiscard]] Tensor result() const { return sum_.defined() ? sum_.to(type_) : Tensor(); }

 private:
  c10::ScalarType type_;
  Tensor sum_;
};

struct LinearCrossEntropyFunction : torch::autograd::Function<LinearCrossEntropyFunction> {
  // An undefined tensor would be asked for its device.
  static Tensor forward(AutogradContext* context, const Tensor& features, const Tensor& weight,
                        const std::optional<Tensor>& given_bias, const Tensor& index, Plan plan) {
    const auto bias = given_bias.value_or(Tensor());
    const Factors factors{features, weight, bias};
    const auto targets = detail::targets_of(index, plan.shards);
    const auto type = features.options().dtype(detail::statistics_type(features.scalar_type()));
    auto statistics = at::empty({plan.shards.loss.statistics(), features.size(0)}, type);
    const auto own_log_sums = at::empty({static_cast<std::int64_t>(plan.classes.size()), features.size(0)}, type);
    for (const auto rows : plan.rows) {
      statistics.narrow(1, rows.begin, rows.length)
          .copy_(statistics_of_rows(factors, rows, targets.rows(rows.begin, rows.length), plan,
                                    own_log_sums.narrow(1, rows.begin, rows.length)));
    }
    statistics = detail::over_group(statistics, targets, plan.shards);
    auto losses = detail::checked_losses(statistics, targets, plan.shards);
    context->save_for_backward({features, weight, bias, index, own_log_sums, detail::log_sum_exp(statistics)});
    detail::keep(*context, std::move(plan));
    return losses;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    detail::refuse_double_backward("linear_cross_entropy");
    const auto saved = context->get_saved_variables();
    const auto& plan = detail::kept<Plan>(*context);
    const Factors factors{saved[0], saved[1], saved[2]};
    const auto targets = detail::targets_of(saved[3], plan.shards);
    Gradient of_features(factors.features, context->needs_input_grad(0));
    Gradient of_weight(factors.weight, context->needs_input_grad(1));
    Gradient of_bias(factors.bias, factors.bias.defined() && context->needs_input_grad(2));
    for (const auto rows : plan.rows) {
      const auto features = factors.features.narrow(0, rows.begin, rows.length);
      for (std::size_t c = 0; c < plan.classes.size(); ++c) {
        const auto classes = plan.classes[c];
        auto block = factors.logits(rows, classes);
        detail::block_gradient(
            block, plan.shards.first() + classes.begin, targets.rows(rows.begin, rows.length), plan.shards.loss,
            saved[4][static_cast<std::int64_t>(c)].narrow(0, rows.begin, rows.length),
            saved[5].narrow(0, rows.begin, rows.length), gradients[0].narrow(0, rows.begin, rows.length), block);
        if (of_bias.wanted()) of_bias.add(classes, block.sum(0));
        block = block.to(features.scalar_type());
        const auto weight = factors.weight.narrow(0, classes.begin, classes.length);
        if (of_features.wanted()) of_features.add_product(rows, block, weight);
        if (of_weight.wanted()) of_weight.add_product(classes, block.t(), features);
      }
    }
    return {of_features.result(), of_weight.result(), of_bias.result(), Tensor(), Tensor()};
  }
};

/// As libtorch's autocast gives it to a product. The backward's products are outside of autocast.
Tensor as_products(const Tensor& tensor) {
  const auto device = tensor.device().type();
  if (!at::autocast::is_autocast_enabled(device) || tensor.scalar_type() == at::kDouble) return tensor;
  return tensor.to(at::autocast::get_autocast_dtype(device));
}

void require_factors(const Placed& features, const Placed& weight, const std::optional<Placed>& bias,
                     const Tensor& target) {
  const auto refuse = [](const std::string& why) { throw InvalidArgument("linear_cross_entropy: " + why); };
  if (features.dim() != 2 || weight.dim() != 2 || features.size(1) != weight.size(1)) {
    refuse("features are [N, D] and the weight [C, D], not " + to_string(features) + " and " + to_string(weight));
  }
  const bool by_class = weight.placement().is_replicate() || weight.placement().is_shard(0);
  if (!by_class) refuse("the weight must be sharded by class, not " + to_string(weight) + "; give the head dim 1");
  if (!features.placement().is_replicate() && !features.placement().is_shard(0)) {
    refuse("features must be on all ranks, or each rank's own samples, not " + to_string(features) +
           "; gather or reduce them");
  }
  if (!features.group().is_alone() && !weight.group().is_alone() && !(features.group() == weight.group())) {
    refuse("features and weight are of different groups of ranks; use one group throughout");
  }
  if (bias.has_value()) {
    const bool alike = bias->placement() == weight.placement() && bias->dim() == 1 && bias->size(0) == weight.size(0) &&
                       (!weight.placement().is_shard() || bias->split() == weight.split());
    if (!alike) refuse("the bias must lie as the weight's classes do, not " + to_string(*bias));
  }
  if (target.dim() != 1 || target.size(0) != features.size(0) || c10::isFloatingType(target.scalar_type())) {
    refuse("targets must be one index of a class for each of all " + std::to_string(features.size(0)) +
           " samples; gather them along the batch as features are");
  }
}

}  // namespace

Tensor linear_cross_entropy(const Placed& features, const Placed& weight, const std::optional<Placed>& bias,
                            const Tensor& target, const LinearCrossEntropyOptions& options) {
  require_factors(features, weight, bias, target);
  const bool is_sharded = weight.placement().is_shard();
  const auto group = is_sharded ? weight.group() : Group();
  const auto split = is_sharded ? weight.split() : Split({weight.size(0)});
  if (!is_sharded && features.placement().is_shard()) {
    throw InvalidArgument(
        "linear_cross_entropy: each rank has its own samples and the whole weight; pass its samples "
        "as a plain tensor, with its own targets, and .replicas(group) for the mean over all");
  }
  const Placed rows = features.placement().is_shard() ? gather(features, Placement::partial()) : copy(features, group);
  return detail::local_class_head({rows.local(), weight.local(), bias.has_value() ? bias->local() : Tensor()}, target,
                                  group, split, options);
}

Tensor detail::local_class_head(const ClassHeadFactors& factors, const Tensor& target, const Group& group,
                                const Split& classes, const LinearCrossEntropyOptions& options) {
  const auto& features = factors.features;
  auto plan = plan_of(ClassShards(options.loss(), group, classes, features), features.size(0), options);
  const auto index = target.to(features.device(), at::kLong);
  const auto targets = targets_of(index, plan.shards);
  const auto bias = factors.bias.defined() ? std::optional(as_products(factors.bias)) : std::nullopt;
  const auto losses = LinearCrossEntropyFunction::apply(as_products(features), as_products(factors.weight), bias, index,
                                                        std::move(plan));
  return reduced(losses, targets, options.loss());
}

Tensor linear_cross_entropy(const Placed& features, const ParallelLinear& head, const Tensor& target,
                            const LinearCrossEntropyOptions& options) {
  return linear_cross_entropy(features, head->placed_weight(), head->placed_bias(), target, options);
}

}  // namespace autopar
