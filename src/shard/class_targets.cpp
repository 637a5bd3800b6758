#include "shard/class_targets.hpp"

#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <torch/enum.h>

#include <autopar/core/error.hpp>
#include <autopar/shard/collectives.hpp>

#include "shard/group_state.hpp"
#include "shard/margin_logit.hpp"

namespace autopar::detail {

namespace {

/// Of the message of a rank, before its statistics: position and value of a target that is no class, or -1; a sum that
/// tells different targets apart; one more for the alignment of what follows.
constexpr std::int64_t kHead = 4;

at::Tensor is_no_class(const Targets& targets, const ClassShards& shards) {
  return targets.counts.logical_not().logical_and(targets.index.ne(shards.ignore_index));
}

at::Tensor head_of(const Targets& targets, const ClassShards& shards) {
  const auto& index = targets.index;
  if (index.numel() == 0) return at::full({kHead}, -1, index.options());
  const auto bad = is_no_class(targets, shards);
  const auto position = at::where(bad.any(), bad.to(at::kInt).argmax(), -1);
  const auto value = index.index_select(0, position.clamp_min(0).unsqueeze(0)).squeeze(0);
  const auto places = at::arange(index.numel(), index.options()).remainder(8191) + 1;
  return at::stack({position, value, (index * places).sum(), at::full({}, index.numel(), index.options())});
}

void require_good(const at::Tensor& heads_there, const ClassShards& shards) {
  const auto heads = heads_there.cpu().contiguous();
  const auto* values = heads.const_data_ptr<std::int64_t>();
  const auto rank_of = [&](std::int64_t place) {
    return " on rank " + std::to_string(shards.group.ranks()[static_cast<std::size_t>(place)].value());
  };
  const bool is_alone = shards.group.is_alone();
  for (std::int64_t place = 0; place < heads.size(0); ++place) {
    const auto* head = values + place * kHead;
    if (head[0] >= 0) {
      throw InvalidArgument("cross-entropy: target " + std::to_string(head[1]) + " at position " +
                            std::to_string(head[0]) + (is_alone ? "" : rank_of(place)) + " is none of " +
                            std::to_string(shards.loss.classes) + " classes, nor ignore_index (" +
                            std::to_string(shards.ignore_index) + ")");
    }
  }
  for (std::int64_t place = 1; place < heads.size(0); ++place) {
    if (values[place * kHead + 2] == values[2]) continue;
    throw InvalidArgument("cross-entropy: the targets" + rank_of(place) + " are not those" + rank_of(0) +
                          "; all ranks that share the classes take the same samples: gather features and targets along "
                          "the batch first");
  }
}

at::Tensor masses_of(const ClassShards& shards, const at::TensorOptions& type) {
  std::vector<at::Tensor> masses;
  for (int place = 0; place < shards.split.parts(); ++place) {
    masses.push_back(shards.loss.mass(shards.split.begin(place), shards.split.length(place), type));
  }
  return at::stack(masses);
}

}  // namespace

ClassShards::ClassShards(const ParallelCrossEntropyOptions& options, Group of, Split cut, const at::Tensor& like)
    : group(std::move(of)),
      split(std::move(cut)),
      ignore_index(options.ignore_index()),
      check_targets(options.check_targets()) {
  loss.classes = split.total();
  loss.smoothing = options.label_smoothing();
  loss.margin = options.margin();
  expect(loss.smoothing >= 0 && loss.smoothing <= 1, "cross-entropy: label_smoothing must be in [0, 1]");
  if (loss.margin.has_value()) require_sound(*loss.margin);
  if (!options.weight().defined()) return;
  if (options.weight().dim() != 1 || options.weight().size(0) != loss.classes) {
    throw InvalidArgument("cross-entropy: a weight of " + std::to_string(options.weight().numel()) + " elements for " +
                          std::to_string(loss.classes) + " classes; pass that of all classes on every rank");
  }
  loss.weight = options.weight().to(like.device(), statistics_type(like.scalar_type()));
}

Targets targets_of(const at::Tensor& index, const ClassShards& shards) {
  const auto is_class = index.ge(0).logical_and(index.lt(shards.loss.classes));
  return {index, is_class.logical_and(index.ne(shards.ignore_index))};
}

at::Tensor over_group(const at::Tensor& statistics, const Targets& targets, const ClassShards& shards) {
  const auto members = shards.group.size();
  const auto masses = shards.loss.smoothing > 0 ? masses_of(shards, statistics.options()) : at::Tensor();
  const auto element = static_cast<std::int64_t>(statistics.element_size());
  constexpr auto kHeadBytes = kHead * static_cast<std::int64_t>(sizeof(std::int64_t));
  const auto bytes = (statistics.numel() * element + 7) / 8 * 8;
  auto message = at::empty({members, kHeadBytes + bytes}, statistics.options().dtype(at::kByte));
  const auto heads = message.narrow(1, 0, kHeadBytes).view(at::kLong);
  const auto all = message.narrow(1, kHeadBytes, statistics.numel() * element).view(statistics.scalar_type());

  auto own_head = heads[shards.group.place()];
  if (shards.check_targets) {
    own_head.copy_(head_of(targets, shards));
  } else {
    own_head.zero_();
  }
  all[shards.group.place()].copy_(statistics.flatten());
  if (members > 1) shards.group.state()->all_gather(message);
  if (shards.check_targets) require_good(heads, shards);
  return merged(all.unflatten(1, statistics.sizes()), masses);
}

at::Tensor checked_losses(const at::Tensor& statistics, const Targets& targets, const ClassShards& shards) {
  const auto losses = row_losses(statistics, targets, shards.loss);
  if (shards.check_targets) return losses;
  return losses.masked_fill(is_no_class(targets, shards), std::numeric_limits<double>::quiet_NaN());
}

at::Tensor reduced(const at::Tensor& losses, const Targets& targets, const ParallelCrossEntropyOptions& options) {
  if (std::holds_alternative<torch::enumtype::kNone>(options.reduction())) return losses;
  const bool is_mean = std::holds_alternative<torch::enumtype::kMean>(options.reduction());
  at::Tensor count;
  if (is_mean) {
    const at::NoGradGuard no_grad;
    RowLoss loss;
    if (options.weight().defined()) loss.weight = options.weight().to(losses.device(), losses.scalar_type());
    count = loss.target_weight(targets, losses.scalar_type()).sum();
  }
  if (options.replicas().is_alone()) return is_mean ? losses.sum() / count : losses.sum();
  auto terms = is_mean ? at::stack({losses.sum(), count}) : losses.sum().unsqueeze(0);
  const at::Tensor sums = reduce(Placed::partial(std::move(terms), options.replicas()));
  return is_mean ? sums[0] / sums[1].detach() : sums[0];
}

}  // namespace autopar::detail
