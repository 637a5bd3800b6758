#include "torch/cost/measured/atom_bench.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/autograd.h>

#include "capture/ir/tensor_form.hpp"
#include "ops/registry.hpp"
#include "torch/autograd/parameter_cast.hpp"
#include "torch/cost/measured/stopwatch.hpp"
#include "torch/fused/fp8.hpp"
#include "torch/fused/philox_seed.hpp"
#include "torch/fused/vectorised_rows.hpp"

namespace autopar::cost::detail {

namespace {

constexpr std::uint64_t kInputSeed = 20, kGradientSeed = 21;

// An asynchronous device hides the launch of a run behind the previous run, if that run takes long enough. Long runs
// are not repeated, since several need more memory.
int runs_in_a_row(c10::Device device, double seconds) {
  constexpr double kEnough = 1e-3;
  return device.is_cpu() ? 1 : static_cast<int>(std::clamp(kEnough / std::max(seconds, 1e-6), 1.0, 8.0));
}

std::vector<ValueId> made_for_others(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                     const std::vector<OpId>& ops) {
  std::vector<bool> wanted(graph.values.size(), false);
  std::size_t next = 0;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (next < ops.size() && ops[next].index() == i) {
      ++next;
      continue;
    }
    for_each_input(graph.ops[i], [&](ValueId value) { wanted[value.index()] = true; });
  }
  for (const auto value : graph.outputs) wanted[value.index()] = true;
  for (const auto& input : plan.epilogue_inputs) wanted[input.value.index()] = true;
  std::vector<ValueId> result;
  for (const auto op : ops) {
    for_each_output(graph.op(op), [&](ValueId value) {
      if (wanted[value.index()]) result.push_back(value);
    });
  }
  return result;
}

std::vector<OpId> run_for_each_slice(const algebra::BatchSemantics& plan, std::vector<OpId> ops) {
  std::erase_if(ops, [&](OpId op) { return plan.handling(op).once; });
  return ops;
}

/// Of random numbers that stand for a value. Layers must neither grow nor saturate what passes through several of them:
/// zeros and equal numbers take less power than those of a training, and therefore less time.
double deviation_of(const ValueInfo& value, const std::vector<std::int64_t>& sizes) {
  if (value.kind != ValueKind::kParameter || sizes.size() < 2 || sizes[0] == 0) return 1;
  const auto inputs = static_cast<double>(c10::multiply_integers(sizes)) / static_cast<double>(sizes[0]);
  return 1 / std::sqrt(std::max(1.0, inputs));
}

/// The roots of a run's backward.
struct Roots {
  std::vector<at::Tensor> values, gradients;
};

/// @param generator  of gradients with either sign: products of equal numbers take less power, and therefore less time
Roots roots_among(const replay::Environment& values, const std::vector<ValueId>& outgoing,
                  const at::Generator& generator) {
  Roots roots;
  for (const auto value : outgoing) {
    const auto& tensor = values[value.index()];
    if (!tensor.defined() || !tensor.requires_grad()) continue;
    roots.values.push_back(tensor);
    auto& gradient = roots.gradients.emplace_back(fused::empty_like_rows(tensor.detach()));
    gradient.is_complex() ? gradient.fill_(1) : gradient.normal_(0, 1, generator);
  }
  return roots;
}

}  // namespace

AtomBench::AtomBench(const OpGraph& graph, const algebra::BatchSemantics& plan, const std::vector<OpId>& ops,
                     StepStopwatch& stopwatch, fp8::Layers& fp8)
    : graph_(graph),
      plan_(plan),
      stopwatch_(stopwatch),
      device_(stopwatch.device()),
      boundary_{{}, {}, made_for_others(graph, plan, ops)},
      runner_(graph, plan, run_for_each_slice(plan, ops), boundary_.outgoing, device_, /*splits_backwards=*/false,
              /*recomputed=*/{}, {.fp8 = &fp8}) {
  find_boundary(ops);
  find_casts(ops, fp8);
  for (const auto op : ops) {
    const auto& handling = plan.handling(op);
    whole_batch_ = whole_batch_ || handling.whole_batch || handling.collective != nullptr;
  }
}

// Products take longer the more bits of their factors differ, since they take more power. Other operators may need
// probabilities.
void AtomBench::find_boundary(const std::vector<OpId>& ops) {
  std::set<ValueId> known, multiplied;
  for (const auto op : ops) {
    const auto op_class = ops::definition_of(graph_.name(op)).op_class;
    const bool multiplies =
        op_class == OpClass::kMatmul || op_class == OpClass::kConvolution || op_class == OpClass::kAttention;
    for_each_input(graph_.op(op), [&](ValueId value) {
      if (graph_.value(value).kind != ValueKind::kConstant && known.insert(value).second)
        boundary_.incoming.push_back(value);
      if (multiplies) multiplied.insert(value);
    });
    for_each_output(graph_.op(op), [&](ValueId value) { known.insert(value); });
  }
  for (const auto value : boundary_.incoming)
    boundary_.of_both_signs.push_back(multiplied.contains(value) || graph_.value(value).kind == ValueKind::kParameter);
}

void AtomBench::find_casts(const std::vector<OpId>& ops, fp8::Layers& fp8) {
  constexpr int kX = 0, kWeight = 1;
  std::map<ValueId, int> reads;
  for (const auto op : ops) for_each_input(graph_.op(op), [&](ValueId value) { ++reads[value]; });
  for (const auto op : ops) {
    if (!plan_.handling(op).once) continue;
    Cast cast{op};
    const auto parameter = graph_.input(op, 0), copy = graph_.output(op);
    for (const auto layer : runner_.in_fp8()) {
      const bool is_alone = graph_.input(layer, kWeight) == copy && reads[copy] == 1;
      if (is_alone && differentiable(parameter) && graph_.value(graph_.input(layer, kX)).dtype == c10::kBFloat16)
        cast.in_8_bits = fp8.find(graph_.value(parameter).name);
    }
    casts_.push_back(cast);
  }
}

at::Tensor AtomBench::cast_of(const Cast& cast, const at::Tensor& parameter) const {
  auto copy = autograd::cast_of(parameter, graph_.value(graph_.output(cast.op)));
  if (cast.in_8_bits != nullptr && cast.in_8_bits->is_ready)
    copy = fused::cast_to_fp8(copy, at::kFloat8_e4m3fn, cast.in_8_bits->of_weight(), fused::Fp8Sides::kRows).rows;
  return autograd::with_history_of(parameter, copy);
}

bool AtomBench::differentiable(ValueId value) const {
  return graph_.value(value).has_gradient() && !plan_.is_prologue(value);
}

at::Tensor AtomBench::make_input(ValueId value, bool of_both_signs, std::int64_t samples) const {
  const auto& info = graph_.value(value);
  const auto sizes = ir::sizes_at(info, samples);
  const auto options = ir::options_of(info, device_);
  const auto generator = fused::make_generator(device_, {kInputSeed});
  at::Tensor made;
  switch (info.dtype) {
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Float:
    case c10::ScalarType::Double:
      made = at::empty(sizes, options);
      of_both_signs ? made.normal_(0, deviation_of(info, sizes), generator) : made.uniform_(0, 1, generator);
      break;
    case c10::ScalarType::ComplexFloat:
    case c10::ScalarType::ComplexDouble:
      made = at::empty(sizes, options);
      at::view_as_real(made).uniform_(0, 1, generator);
      break;
    default:
      made = at::zeros(sizes, options);
  }
  return ir::in_captured_layout(made, info, samples);
}

void AtomBench::bring(std::int64_t samples) {
  if (samples_ == samples) return;
  const at::NoGradGuard no_grad;
  inputs_.clear();
  for (std::size_t i = 0; i < boundary_.incoming.size(); ++i)
    inputs_.push_back(make_input(boundary_.incoming[i], boundary_.of_both_signs[i], samples));
  counts_.assign(plan_.counts.size(),
                 at::full({}, static_cast<double>(samples), at::TensorOptions().dtype(at::kDouble).device(device_)));
  samples_ = samples;
  latest_ = 1;
}

// Inputs have no gradients yet, as in a first micro-batch. Products of later ones add to gradients at about that cost.
replay::Environment AtomBench::fresh_environment() const {
  replay::Environment values = runner_.environment();
  for (std::size_t i = 0; i < boundary_.incoming.size(); ++i) {
    auto leaf = inputs_[i].detach();
    if (differentiable(boundary_.incoming[i])) leaf.set_requires_grad(true);
    values[boundary_.incoming[i].index()] = std::move(leaf);
  }
  for (const auto& cast : casts_)
    values[graph_.output(cast.op).index()] = cast_of(cast, values[graph_.input(cast.op, 0).index()]);
  return values;
}

interpret::SliceContext AtomBench::slice(std::int64_t samples) const {
  interpret::SliceContext context;
  context.samples = samples;
  context.batch = whole_batch_ ? samples : 2 * samples;  // as part of a batch, if the atom may run on a part
  context.counts = &counts_;
  return context;
}

void AtomBench::pass_through_caches(Bytes elsewhere, const std::vector<at::Tensor>& fresh) {
  if (!device_.is_cpu()) return;  // consecutive runs find what the previous run left, as later micro-batches do
  const at::NoGradGuard no_grad;
  const auto floats = std::min(elsewhere.value(), kCacheBytes) / static_cast<std::int64_t>(sizeof(float));
  if (!others_.defined() || others_.numel() != floats) {
    others_ = at::empty({floats}, at::TensorOptions().dtype(at::kFloat).device(device_));
  }
  others_.fill_(latest_);
  for (const auto& tensor : fresh) static_cast<void>(tensor.clone());
}

std::vector<at::Tensor> AtomBench::made_by_others() const {
  std::vector<at::Tensor> made;
  for (std::size_t i = 0; i < boundary_.incoming.size(); ++i) {
    if (graph_.value(boundary_.incoming[i]).kind != ValueKind::kParameter) made.push_back(inputs_[i]);
  }
  return made;
}

AtomBench::Times AtomBench::run(std::int64_t samples, Bytes elsewhere, double start) {
  const at::AutoGradMode with_grad(true);
  bring(samples);
  const auto runs = static_cast<std::size_t>(runs_in_a_row(device_, latest_));
  const auto context = slice(samples);
  std::vector<replay::Environment> values;
  for (std::size_t i = 0; i < runs; ++i) values.push_back(fresh_environment());
  std::vector<interpret::NormSample> statistics(plan_.batch_norms.size());

  Times times;
  pass_through_caches(elsewhere, made_by_others());
  const auto each = [&](StepStopwatch::Seconds all) {
    return StepStopwatch::Seconds{all.device / static_cast<double>(runs), all.host / static_cast<double>(runs)};
  };
  times.forward = each(stopwatch_.time([&] {
    for (auto& environment : values) runner_.run(environment, context, statistics);
  }));
  latest_ = times.forward.device;
  std::vector<Roots> roots;
  const auto generator = fused::make_generator(device_, {kGradientSeed});
  for (const auto& environment : values) roots.push_back(roots_among(environment, boundary_.outgoing, generator));
  times.has_backward = !roots.front().values.empty();
  if (!times.has_backward) return times;
  pass_through_caches(elsewhere, roots.front().gradients);
  times.backward = each(stopwatch_.time([&] {
    for (auto& [tensors, gradients] : roots) torch::autograd::backward(tensors, gradients);
  }));
  times.backward.host = std::max(0.0, times.backward.host - start);
  if (device_.is_cpu()) times.backward.device = times.backward.host;
  return times;
}

void AtomBench::run_untimed(std::int64_t samples) {
  const at::AutoGradMode with_grad(true);
  bring(samples);
  std::vector<interpret::NormSample> statistics(plan_.batch_norms.size());
  auto values = fresh_environment();
  runner_.run(values, slice(samples), statistics);
  const auto roots = roots_among(values, boundary_.outgoing, fused::make_generator(device_, {kGradientSeed}));
  if (!roots.values.empty()) torch::autograd::backward(roots.values, roots.gradients);
}

double start_of_backward(StepStopwatch& stopwatch) {
  constexpr int kRuns = 31;
  const at::AutoGradMode with_grad(true);
  const auto device = stopwatch.device();
  const auto runs = runs_in_a_row(device, 0);
  std::vector<double> times;
  for (int run = 0; run < kRuns; ++run) {
    std::vector<Roots> roots;
    for (int i = 0; i < runs; ++i) {
      const auto leaf = at::ones({1}, at::TensorOptions().device(device)).set_requires_grad(true);
      roots.push_back({{at::alias(leaf)}, {at::ones({1}, at::TensorOptions().device(device))}});
    }
    const auto taken = stopwatch.time([&] {
      for (auto& [tensors, gradients] : roots) torch::autograd::backward(tensors, gradients);
    });
    times.push_back(taken.host / runs);
  }
  return median(times);
}

}  // namespace autopar::cost::detail
