#include "torch/interpret/norm_sample.hpp"

#include <map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

namespace autopar::interpret {

namespace {

using Tensors = std::vector<at::Tensor>;

/// Norms whose next slice has the same share of all samples seen so far: all norms of an ordinary network.
struct Alike {
  std::vector<NormSample*> seen, next;
};

Tensors gathered(const std::vector<NormSample*>& samples, at::Tensor NormSample::*which) {
  Tensors out;
  for (const auto* sample : samples) out.push_back(sample->*which);
  return out;
}

void scatter(const Tensors& values, const std::vector<NormSample*>& samples, at::Tensor NormSample::*which) {
  for (std::size_t i = 0; i < values.size(); ++i) samples[i]->*which = values[i];
}

Tensors in_double(const Tensors& tensors) {
  Tensors out;
  for (const auto& tensor : tensors) out.push_back(at::empty_like(tensor, tensor.options().dtype(at::kDouble)));
  at::_foreach_copy_(out, tensors);
  return out;
}

void add(const Alike& norms, double part, bool by_sample) {
  const auto means = gathered(norms.seen, &NormSample::mean);
  const auto apart = at::_foreach_sub(gathered(norms.next, &NormSample::mean), means);
  const auto variances = at::_foreach_mul(gathered(norms.seen, &NormSample::variance), 1 - part);
  at::_foreach_add_(variances, gathered(norms.next, &NormSample::variance), part);
  scatter(at::_foreach_add(means, apart, part), norms.seen, &NormSample::mean);
  if (!by_sample) {
    at::_foreach_mul_(apart, apart);
    at::_foreach_add_(variances, apart, part * (1 - part));
  }
  scatter(variances, norms.seen, &NormSample::variance);
}

}  // namespace

void prepare_for_pooling(const std::vector<NormSample*>& samples) {
  const at::NoGradGuard no_grad;
  std::vector<NormSample*> given, unbiased, of_one_element;
  std::vector<at::Scalar> factors;
  for (auto* sample : samples) {
    if (!std::exchange(sample->as_given, false)) continue;
    given.push_back(sample);
    if (sample->by_sample) continue;
    (sample->count > 1 ? unbiased : of_one_element).push_back(sample);
    if (sample->count > 1) factors.emplace_back((sample->count - 1) / sample->count);
  }
  if (given.empty()) return;
  for (const auto which : {&NormSample::mean, &NormSample::variance})
    scatter(in_double(gathered(given, which)), given, which);
  if (!unbiased.empty()) at::_foreach_mul_(gathered(unbiased, &NormSample::variance), factors);
  for (auto* sample : of_one_element)
    sample->variance = at::zeros_like(sample->mean);  // one element has no unbiased
                                                      // variance
}

void pool(std::vector<NormSample>& seen, std::vector<NormSample> next) {
  const at::NoGradGuard no_grad;
  seen.resize(next.size());
  std::vector<NormSample*> all;
  std::map<std::pair<double, bool>, Alike> alike;
  for (std::size_t i = 0; i < next.size(); ++i) {
    if (next[i].count == 0) continue;
    if (seen[i].count == 0) {
      seen[i] = std::move(next[i]);
      continue;
    }
    all.insert(all.end(), {&seen[i], &next[i]});
    auto& [these, those] = alike[{next[i].count / (seen[i].count + next[i].count), next[i].by_sample}];
    these.push_back(&seen[i]);
    those.push_back(&next[i]);
  }
  prepare_for_pooling(all);
  for (const auto& [key, norms] : alike) {
    add(norms, key.first, key.second);
    for (std::size_t i = 0; i < norms.seen.size(); ++i) norms.seen[i]->count += norms.next[i]->count;
  }
}

}  // namespace autopar::interpret
