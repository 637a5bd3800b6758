#include "torch/steps/buffer_updates.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <autopar/core/assert.hpp>

namespace autopar::steps {

/// A batch norm whose running statistics this rank holds, and what its slices saw.
struct BufferUpdates::NormPool {
  const BatchNormPlan* norm;
  std::vector<interpret::NormSample> samples;
};

namespace {

/// One slice saw the whole batch.
bool is_whole(const std::vector<interpret::NormSample>& samples) {
  return samples.size() == 1 && samples.front().as_given;
}

/// buffer = (1 - momentum) buffer + momentum statistic, of all buffers of one momentum and type at once. A norm that
/// runs twice blends twice, in its order.
class Blends {
 public:
  void add(const at::Tensor& buffer, const at::Tensor& statistic, double momentum) {
    if (!seen_.insert(buffer.unsafeGetTensorImpl()).second) {
      run();
      seen_.insert(buffer.unsafeGetTensorImpl());
    }
    auto& list = lists_[{momentum, buffer.scalar_type()}];
    list.buffers.push_back(buffer.detach());
    list.statistics.push_back(statistic.to(buffer.scalar_type()));
  }
  void run() {
    for (const auto& [key, list] : lists_) {
      at::_foreach_mul_(list.buffers, 1 - key.first);
      at::_foreach_add_(list.buffers, list.statistics, key.first);
    }
    lists_.clear();
    seen_.clear();
  }

 private:
  struct Lists {
    std::vector<at::Tensor> buffers, statistics;
  };
  std::map<std::pair<double, at::ScalarType>, Lists> lists_;
  std::set<const void*> seen_;
};

}  // namespace

void BufferUpdates::run(Call& call) {
  const at::NoGradGuard no_grad;
  pool_batch_norms(call);
  call.program->runtime.replicated_updates->run(call.batch);
  for (const auto& update : call.program->plan.buffer_updates) {
    const auto& tensor = parameters_.named(call.program->graph.value(update.buffer).name);
    if (update.kind == algebra::BufferUpdateKind::kReplicated || !parameters_.holds(tensor)) continue;
    if (call.state.tail && call.state.tail->results.count(update.result) > 0) {
      tensor.handle.detach().copy_(call.state.tail->results.at(update.result));
      continue;
    }
    const auto results = call.state.engine->buffer_results(update.result);
    auto total = at::zeros_like(tensor.handle);
    for (const auto& result : results) total.add_(result);
    tensor.handle.detach().copy_(deployment_.sums_over(tensor.holders).sum({total})[0]);
  }
}

// Norms with the same holders are pooled together. Every rank goes through the holders in the same order.
void BufferUpdates::pool_batch_norms(Call& call) {
  const auto& graph = call.program->graph;
  const auto& norms = call.program->plan.batch_norms;
  std::vector<std::pair<std::vector<Rank>, std::vector<NormPool>>> pools;
  for (std::size_t i = 0; i < norms.size(); ++i) {
    // Of a tensor without elements libtorch leaves running statistics as they are.
    if (!norms[i].running_mean.valid() || norms[i].samples == SizeExpr{}) continue;
    const auto& mean = parameters_.named(graph.value(norms[i].running_mean).name);
    if (!parameters_.holds(mean)) continue;
    auto of_holders = std::find_if(pools.begin(), pools.end(), [&](const auto& p) { return p.first == mean.holders; });
    if (of_holders == pools.end()) of_holders = pools.insert(pools.end(), {mean.holders, {}});
    of_holders->second.push_back({&norms[i], call.state.engine->norm_samples(i)});
  }
  for (auto& [holders, of_holders] : pools) {
    if (holders.size() == 1) {
      Blends blends;
      for (const auto& [norm, samples] : of_holders) {
        if (!is_whole(samples)) continue;
        blends.add(parameters_.handle_of(graph, norm->running_mean), samples.front().mean, norm->momentum);
        blends.add(parameters_.handle_of(graph, norm->running_var), samples.front().variance, norm->momentum);
      }
      blends.run();
      std::erase_if(of_holders, [](const NormPool& pool) { return is_whole(pool.samples); });
    }
    if (!of_holders.empty()) pool_over(holders, of_holders, graph);
  }
}

namespace {

/// What a rank's slices saw, by norm.
template <class Pools>
std::vector<interpret::NormSample> over_slices(const Pools& pools) {
  std::vector<interpret::NormSample> pooled(pools.size());
  for (std::size_t i = 0; std::ranges::any_of(pools, [i](const auto& pool) { return i < pool.samples.size(); }); ++i) {
    std::vector<interpret::NormSample> next(pools.size());
    for (std::size_t k = 0; k < pools.size(); ++k) {
      if (i < pools[k].samples.size()) next[k] = pools[k].samples[i];
    }
    interpret::pool(pooled, std::move(next));
  }
  return pooled;
}

/// Statistics of norms, their channels one behind the other, with the number of elements that each is over.
struct FlatStatistics {
  at::Tensor mean, variance, count;  ///< f64
};

/// @param channels  of each norm
FlatStatistics flat(const std::vector<interpret::NormSample>& samples, const std::vector<std::int64_t>& channels,
                    const at::TensorOptions& options) {
  std::vector<at::Tensor> means, variances;
  std::vector<at::Scalar> counts;
  for (std::size_t k = 0; k < samples.size(); ++k) {
    const bool is_empty = samples[k].count == 0;
    means.push_back(is_empty ? at::zeros({channels[k]}, options) : samples[k].mean.reshape({-1}));
    variances.push_back(is_empty ? means.back() : samples[k].variance.reshape({-1}));
    counts.emplace_back(samples[k].count);
  }
  FlatStatistics all{at::cat(means), at::cat(variances), {}};
  all.count = at::zeros_like(all.mean);
  at::_foreach_add_(all.count.split_with_sizes(channels), counts);
  return all;
}

}  // namespace

std::vector<fused::NormStatistics> BufferUpdates::statistics_of(const std::vector<NormPool>& pools,
                                                                const std::vector<interpret::NormSample>& pooled,
                                                                const OpGraph& graph) const {
  std::vector<fused::NormStatistics> norms;
  for (std::size_t k = 0; k < pools.size(); ++k) {
    const auto& norm = *pools[k].norm;
    norms.push_back({pooled[k].mean, pooled[k].variance, pooled[k].count, norm.by_sample, pooled[k].as_given,
                     parameters_.handle_of(graph, norm.running_mean).detach(),
                     parameters_.handle_of(graph, norm.running_var).detach(), norm.momentum});
  }
  return norms;
}

// Two passes, so that variances do not suffer from large means: first the pooled means, then squares around them. All
// norms at once: on a device, kernels for each norm would outnumber the kernels of the norms.
void BufferUpdates::pool_over(const std::vector<Rank>& holders, std::vector<NormPool>& pools, const OpGraph& graph) {
  std::ranges::stable_partition(pools, [](const NormPool& pool) { return !pool.norm->by_sample; });
  auto pooled = over_slices(pools);
  auto total = deployment_.sums_over(holders);
  if (const auto norms = statistics_of(pools, pooled, graph); fused::PooledStatistics::takes(norms)) {
    const fused::PooledStatistics statistics(norms);
    const auto sums = total.sum({statistics.sums()})[0];
    const auto squares = total.sum({statistics.squares(sums)})[0];
    return statistics.blend(sums, squares);
  }
  std::vector<std::int64_t> channels;
  std::int64_t of_batches = 0;  // channels of norms over batches, which are the first
  for (const auto& pool : pools) {
    channels.push_back(parameters_.handle_of(graph, pool.norm->running_mean).numel());
    if (!pool.norm->by_sample) of_batches += channels.back();
  }
  std::vector<interpret::NormSample*> all;
  for (auto& sample : pooled) all.push_back(&sample);
  interpret::prepare_for_pooling(all);
  const auto here = flat(pooled, channels, at::TensorOptions().dtype(at::kDouble).device(deployment_.device()));
  const auto first = total.sum({here.mean.mul(here.count), here.count});
  const auto mean = first[0].div(first[1]);
  const auto over_batches = [&](const at::Tensor& each) { return each.narrow(0, 0, of_batches); };
  const auto difference = over_batches(here.mean).sub(over_batches(mean));
  over_batches(here.variance).addcmul_(difference, difference);
  const auto squares = total.sum({here.variance.mul(here.count)})[0];
  over_batches(first[1]).sub_(1);  // unbiased
  const auto variance = squares.div(first[1]);
  blend(pools, channels, mean, variance, graph);
}

/// @param mean, variance  of the norms, their channels one behind the other
void BufferUpdates::blend(const std::vector<NormPool>& pools, const std::vector<std::int64_t>& channels,
                          const at::Tensor& mean, const at::Tensor& variance, const OpGraph& graph) {
  struct OfNorms {
    std::vector<at::Tensor> means, variances;
  };
  std::map<at::ScalarType, OfNorms> by_type;
  const auto in_type = [&](at::ScalarType type) -> const OfNorms& {
    const auto [known, is_new] = by_type.try_emplace(type);
    if (is_new)
      known->second = {mean.to(type).split_with_sizes(channels), variance.to(type).split_with_sizes(channels)};
    return known->second;
  };
  Blends blends;
  for (std::size_t k = 0; k < pools.size(); ++k) {
    const auto& norm = *pools[k].norm;
    const auto& running_mean = parameters_.handle_of(graph, norm.running_mean);
    const auto& running_var = parameters_.handle_of(graph, norm.running_var);
    blends.add(running_mean, in_type(running_mean.scalar_type()).means[k], norm.momentum);
    blends.add(running_var, in_type(running_var.scalar_type()).variances[k], norm.momentum);
  }
  blends.run();
}

}  // namespace autopar::steps
