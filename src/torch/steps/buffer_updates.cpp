#include "torch/steps/buffer_updates.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
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

// Two passes, so that variances do not suffer from large means: first the pooled means, then squares around them.
void BufferUpdates::pool_over(const std::vector<Rank>& holders, std::vector<NormPool>& pools, const OpGraph& graph) {
  std::vector<interpret::NormSample*> all;
  for (auto& pool : pools) {
    for (auto& sample : pool.samples) all.push_back(&sample);
  }
  interpret::prepare_for_pooling(all);
  auto total = deployment_.sums_over(holders);
  std::vector<at::Tensor> addends;
  for (const auto& pool : pools) {
    const auto channels = parameters_.handle_of(graph, pool.norm->running_mean).sizes();
    auto sums = at::zeros(channels, at::TensorOptions().dtype(at::kDouble).device(deployment_.device()));
    auto count = at::zeros({}, sums.options());
    for (const auto& sample : pool.samples) {
      sums.add_(sample.mean, sample.count);
      count.add_(sample.count);
    }
    addends.push_back(sums);
    addends.push_back(count);
  }
  const auto first = total.sum(addends);
  std::vector<at::Tensor> squares;
  for (std::size_t k = 0; k < pools.size(); ++k) {
    const auto mean = first[2 * k].div(first[2 * k + 1]);
    auto sum = at::zeros_like(mean);
    for (const auto& sample : pools[k].samples) {
      const bool by_sample = pools[k].norm->by_sample;
      sum.add_(by_sample ? sample.variance : sample.variance.add(sample.mean.sub(mean).square()), sample.count);
    }
    squares.push_back(sum);
  }
  const auto second = total.sum(squares);
  Blends blends;
  for (std::size_t k = 0; k < pools.size(); ++k) {
    const auto& norm = *pools[k].norm;
    const auto& count = first[2 * k + 1];
    const auto mean = first[2 * k].div(count);
    const auto unbiased = second[k].div(norm.by_sample ? count : count.sub(1));
    blends.add(parameters_.handle_of(graph, norm.running_mean), mean, norm.momentum);
    blends.add(parameters_.handle_of(graph, norm.running_var), unbiased, norm.momentum);
  }
  blends.run();
}

}  // namespace autopar::steps
