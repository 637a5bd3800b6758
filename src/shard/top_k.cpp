#include <autopar/shard/top_k.hpp>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <autopar/core/error.hpp>

#include "shard/group_state.hpp"

namespace autopar {

std::pair<at::Tensor, at::Tensor> top_k(const Placed& logits, std::int64_t k) {
  const at::NoGradGuard no_grad;
  const bool is_sharded = logits.placement().is_shard(1);
  if (logits.dim() != 2 || (!is_sharded && !logits.placement().is_replicate())) {
    throw InvalidArgument("top_k takes logits [N, C] sharded by class or on all ranks, not " + to_string(logits) +
                          "; gather, reduce or flatten them");
  }
  if (k < 1 || k > logits.size(1)) {
    throw InvalidArgument("top_k: there are no " + std::to_string(k) + " largest of " + std::to_string(logits.size(1)) +
                          " classes");
  }
  if (!is_sharded) {
    auto [values, classes] = logits.local().topk(k, 1);
    return {std::move(values), std::move(classes)};
  }

  const auto& group = logits.group();
  const auto samples = logits.size(0), here = std::min(k, logits.local().size(1));
  // Values and classes of the candidates as doubles, which hold both exactly.
  auto candidates = at::empty({group.size(), 2, samples, k}, logits.local().options().dtype(at::kDouble));
  const auto [values, classes] = logits.local().topk(here, 1);
  candidates[group.place()][0].narrow(1, 0, here).copy_(values);
  candidates[group.place()][1].narrow(1, 0, here).copy_(classes + logits.split().begin(group.place()));
  group.state()->all_gather(candidates);
  std::vector<at::Tensor> there;  // of a rank with few classes some places are empty
  for (int place = 0; place < group.size(); ++place)
    there.push_back(candidates[place].narrow(2, 0, std::min(k, logits.split().length(place))));
  const auto of_all = at::cat(there, 2);  // [2, N, at least k]
  const auto [best, places] = of_all[0].topk(k, 1);
  return {best.to(values.scalar_type()), of_all[1].gather(1, places).to(at::kLong)};
}

at::Tensor top_k_accuracy(const Placed& logits, const at::Tensor& target, const std::vector<std::int64_t>& ks,
                          std::int64_t ignore_index) {
  expect(!ks.empty(), "top_k_accuracy: name at least one k");
  if (target.dim() != 1 || logits.dim() != 2 || target.size(0) != logits.size(0)) {
    throw InvalidArgument("top_k_accuracy takes one target for each row of logits [N, C], not " +
                          std::to_string(target.numel()) + " for " + to_string(logits));
  }
  const auto classes = top_k(logits, *std::ranges::max_element(ks)).second;
  const auto index = target.to(classes.device());
  const auto counts = index.ne(ignore_index).unsqueeze(1);
  const auto hits = classes.eq(index.unsqueeze(1)).logical_and(counts);
  const auto all = counts.sum().to(at::kDouble);
  std::vector<at::Tensor> parts;
  for (const auto k : ks) parts.push_back(hits.narrow(1, 0, k).sum().to(at::kDouble) / all);
  return at::stack(parts);
}

}  // namespace autopar
