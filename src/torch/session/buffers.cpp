#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <autopar/core/assert.hpp>

#include "torch/session/session_impl.hpp"

namespace autopar {

/// A batch norm whose running statistics this rank holds, and what its shares saw.
struct Session::Impl::NormPool {
  const BatchNormPlan* norm;
  std::vector<NormSample> samples;
};

GlobalSums Session::Impl::sums_over(const std::vector<Rank>& holders) {
  return {wire_, group_of(holders), static_cast<int>(holders.size()), device_};
}

void Session::Impl::update_buffers(Call& call) {
  const at::NoGradGuard no_grad;
  pool_batch_norms(call);
  const auto& graph = call.program->graph;
  for (const auto& update : call.program->plan.buffer_updates) {
    const auto& tensor = registry_.named(graph.value(update.buffer).name);
    if (!holds(tensor)) continue;
    auto handle = tensor.handle;
    if (update.kind == BufferUpdateKind::kReplicated) {
      OpRunner runner(graph, call.program->plan, update.ops, {update.result}, device_);
      auto values = runner.environment();
      for (const auto op : update.ops) {
        for_each_input(graph.op(op), [&](ValueId value) {
          const auto kind = graph.value(value).kind;
          if (kind != ValueKind::kParameter && kind != ValueKind::kBuffer) return;
          if (!values[value.index()].defined()) values[value.index()] = handle_of(graph, value).detach().clone();
        });
      }
      ShareContext whole;
      whole.samples = whole.batch = call.batch;
      std::vector<NormSample> norms(call.program->plan.batch_norms.size());
      runner.run(values, whole, norms);
      handle.detach().copy_(values[update.result.index()]);
      continue;
    }
    if (call.tail && call.tail->results.count(update.result) > 0) {
      handle.detach().copy_(call.tail->results.at(update.result));
      continue;
    }
    const auto results = call.engine->buffer_results(update.result);
    auto total = at::zeros_like(handle);
    for (const auto& result : results) total.add_(result);
    handle.detach().copy_(sums_over(tensor.holders).sum({total})[0]);
  }
}

// Norms with the same holders are pooled together. Every rank goes through the holders in the same order.
void Session::Impl::pool_batch_norms(Call& call) {
  const auto& graph = call.program->graph;
  const auto& norms = call.program->plan.batch_norms;
  std::vector<std::pair<std::vector<Rank>, std::vector<NormPool>>> pools;
  for (std::size_t i = 0; i < norms.size(); ++i) {
    if (!norms[i].running_mean.valid()) continue;
    const auto& mean = registry_.named(graph.value(norms[i].running_mean).name);
    if (!holds(mean)) continue;
    auto of_holders = std::find_if(pools.begin(), pools.end(), [&](const auto& p) { return p.first == mean.holders; });
    if (of_holders == pools.end()) of_holders = pools.insert(pools.end(), {mean.holders, {}});
    of_holders->second.push_back({&norms[i], call.engine->norm_samples(i)});
  }
  for (const auto& [holders, of_holders] : pools) pool_over(holders, of_holders, graph);
}

// Two passes, so that variances do not suffer from large means: first the pooled means, then squares around them.
void Session::Impl::pool_over(const std::vector<Rank>& holders, const std::vector<NormPool>& pools, const OpGraph& graph) {
  auto total = sums_over(holders);
  std::vector<at::Tensor> addends;
  for (const auto& pool : pools) {
    const auto channels = handle_of(graph, pool.norm->running_mean).sizes();
    auto sums = at::zeros(channels, at::TensorOptions().dtype(at::kDouble).device(device_));
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
  for (std::size_t k = 0; k < pools.size(); ++k) {
    const auto& norm = *pools[k].norm;
    const auto& count = first[2 * k + 1];
    const auto mean = first[2 * k].div(count);
    const auto unbiased = second[k].div(norm.by_sample ? count : count.sub(1));
    const auto blend = [&](ValueId buffer, const at::Tensor& value) {
      auto handle = handle_of(graph, buffer);
      handle.detach().mul_(1 - norm.momentum).add_(value.to(handle.scalar_type()), norm.momentum);
    };
    blend(norm.running_mean, mean);
    blend(norm.running_var, unbiased);
  }
}

}  // namespace autopar
