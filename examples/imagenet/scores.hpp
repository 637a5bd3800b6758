#pragma once

#include <algorithm>
#include <tuple>

#include <torch/nn/functional/loss.h>

#include "models/resnet.hpp"

/// Sums over a batch: the loss, without smoothing, and of how many images the class is the likeliest, and one of the
/// five likeliest. As sums they are those of all ranks, on each.
using Scores = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

inline Scores scores(models::ResNetImpl& network, const at::Tensor& images, const at::Tensor& labels) {
  using Options = torch::nn::functional::CrossEntropyFuncOptions;
  const auto logits = network.logits(images);
  const auto likeliest = std::get<1>(logits.topk(std::min<std::int64_t>(5, logits.size(1)), 1));
  const auto right = likeliest.eq(labels.unsqueeze(1));
  return {torch::nn::functional::cross_entropy(logits, labels, Options().reduction(torch::kSum)),
          right.slice(1, 0, 1).sum(), right.sum()};
}
