#include "torch/collectives/session_collectives.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <autopar/core/error.hpp>

#include "torch/collectives/whole_parameters.hpp"
#include "torch/optim/reductions.hpp"
#include "torch/optim/whole_parameters.hpp"
#include "torch/parameters/part_access.hpp"

namespace autopar::collectives {

namespace {

/// Those that this rank counts; others become undefined.
ParameterCollectives::Tensors counted(const parameters::ParameterStore& parameters,
                                      const ParameterCollectives::Tensors& handles,
                                      const ParameterCollectives::Tensors& tensors) {
  expect(handles.size() == tensors.size(), "an optimizer's collective: a tensor for each parameter is needed");
  ParameterCollectives::Tensors own(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (parameters.counts(parameters.of(handles[i]))) own[i] = tensors[i];
  }
  return own;
}

}  // namespace

SessionCollectives::SessionCollectives(const OptimizerDescriptor& descriptor,
                                       const std::shared_ptr<parameters::ParameterStore>& parameters,
                                       deployment::Deployment& deployment, ranks::Ranks& ranks)
    : descriptor_(descriptor),
      parameters_(parameters),
      deployment_(deployment),
      ranks_(ranks),
      before_deployment_(optim::over_whole_parameters()) {}

std::shared_ptr<parameters::ParameterStore> SessionCollectives::alive(StepNeeds asked) const {
  auto parameters = parameters_.lock();
  if (parameters == nullptr) {
    throw InvalidArgument("the model that " + descriptor_.name +
                          " is attached to is gone, and with it the way to other ranks: step before the model ends");
  }
  if (descriptor_.needs >= asked) return parameters;
  const bool for_norms = asked == StepNeeds::kNorms;
  throw InvalidArgument(
      "the step of " + descriptor_.name + " asks for " +
      (for_norms ? "sums over whole parameters" : "whole parameters") +
      ", but its descriptor says StepNeeds::" + (descriptor_.needs == StepNeeds::kNorms ? "kNorms" : "kElementWise") +
      "; say StepNeeds::" + (for_norms ? "kNorms" : "kWholeMatrices") + " there");
}

c10::Device SessionCollectives::device_for(const Tensors& tensors) const {
  const auto found = std::ranges::find_if(tensors, [](const at::Tensor& tensor) { return tensor.defined(); });
  return found == tensors.end() ? deployment_.device() : found->device();
}

at::Tensor SessionCollectives::sum(const Tensors& handles, const at::Tensor& partial) {
  const auto parameters = alive(StepNeeds::kNorms);
  if (!deployment_.has_plan()) return before_deployment_->sum(handles, partial);
  const at::NoGradGuard no_grad;
  expect(partial.dim() > 0 && partial.size(0) == static_cast<std::int64_t>(handles.size()),
         "an optimizer's sum: `partial` needs a row for each parameter");
  auto own = at::zeros(partial.sizes(), at::TensorOptions().dtype(at::kDouble).device(deployment_.device()));
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    if (parameters->counts(parameters->of(handles[i]))) own.select(0, row).copy_(partial.select(0, row));
  }
  return deployment_.sums().sum({own})[0].to(partial.device());
}

at::Tensor SessionCollectives::norms(const Tensors& handles, const Tensors& tensors, double p) {
  const auto parameters = alive(StepNeeds::kNorms);
  if (!(p >= 1)) throw InvalidArgument("norms: p = " + std::to_string(p) + "; p-norms are of 1 or more, or infinity");
  if (!deployment_.has_plan()) return before_deployment_->norms(handles, tensors, p);
  const at::NoGradGuard no_grad;
  const auto own = [&] {
    const parameters::PartAccess access;
    return optim::detail::norms_of(counted(*parameters, handles, tensors), p).to(deployment_.device());
  }();
  const auto device = device_for(tensors);
  if (!std::isinf(p)) return deployment_.sums().sum({own.pow(p)})[0].pow(1 / p).to(device);
  auto of_ranks = at::zeros({ranks_.size(), own.size(0)}, own.options());
  of_ranks.select(0, ranks_.rank().value()).copy_(own);
  return std::get<0>(deployment_.sums().sum({of_ranks})[0].max(0)).to(device);
}

at::Tensor SessionCollectives::dot(const Tensors& handles, const Tensors& a, const Tensors& b) {
  const auto parameters = alive(StepNeeds::kNorms);
  if (!deployment_.has_plan()) return before_deployment_->dot(handles, a, b);
  const at::NoGradGuard no_grad;
  const auto own = [&] {
    const parameters::PartAccess access;
    return before_deployment_->dot(handles, counted(*parameters, handles, a), counted(*parameters, handles, b));
  }();
  return deployment_.sums().sum({own.to(deployment_.device())})[0].to(device_for(a));
}

std::vector<double> SessionCollectives::of_ranks(double mine) {
  const auto parameters = alive(StepNeeds::kNorms);
  if (!deployment_.has_plan()) return before_deployment_->of_ranks(mine);
  const auto texts = ranks_.all_gather(std::as_bytes(std::span(&mine, 1)), "a number of an optimizer's step");
  std::vector<double> all(texts.size());
  for (std::size_t r = 0; r < texts.size(); ++r) std::memcpy(&all[r], texts[r].data(), sizeof(double));
  return all;
}

std::vector<std::int64_t> SessionCollectives::sizes(const at::Tensor& handle) const {
  return deployment_.has_plan() ? alive(StepNeeds::kElementWise)->of(handle).sizes : handle.sizes().vec();
}

void SessionCollectives::on_wholes(const Tensors& handles, const std::vector<Tensors>& tensors, const OnWhole& on_whole,
                                   const std::vector<Tensors>& kept) {
  const auto parameters = alive(StepNeeds::kWholeMatrices);
  if (!deployment_.has_plan()) return before_deployment_->on_wholes(handles, tensors, on_whole, kept);
  expect(tensors.size() == handles.size() && (kept.empty() || kept.size() == handles.size()),
         "an optimizer's step on whole parameters: a list of tensors for each parameter is needed");
  std::vector<WholeParameters::Parts> parts;
  for (std::size_t i = 0; i < handles.size(); ++i) parts.push_back({&parameters->of(handles[i]), tensors[i], {}});
  std::vector<char> ran_here(handles.size(), 0);
  WholeParameters(ranks_, deployment_.wire(), deployment_.group_of_all(), deployment_.device(), *parameters)
      .run(parts, std::numeric_limits<std::size_t>::max(), [&](std::size_t i, Tensors& wholes) {
        if (wholes.empty()) return;
        ran_here[i] = 1;
        on_whole(i, wholes);
      });
  if (!kept.empty()) share(kept, ran_here);
}

/// Brings what one rank has written to all that have it.
void SessionCollectives::share(const std::vector<Tensors>& kept, const std::vector<char>& ran_here) const {
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> elements;
  for (const auto& of_parameter : kept) {
    auto& sum = elements.emplace_back(0);
    for (const auto& tensor : of_parameter) sum += tensor.numel();
  }
  for (const auto& other : ranks_.all_gather(std::as_bytes(std::span(elements)), "sizes of an optimizer's state")) {
    for (std::size_t i = 0; i < elements.size(); ++i) {
      std::int64_t theirs = 0;
      std::memcpy(&theirs, other.data() + i * sizeof(theirs), sizeof(theirs));
      elements[i] = std::max(elements[i], theirs);
    }
  }
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (elements[i] == 0) continue;
    auto all = at::zeros({elements[i]}, at::TensorOptions().dtype(at::kDouble).device(deployment_.device()));
    const auto each = [&](const auto& work) {
      std::int64_t begin = 0;
      for (const auto& tensor : kept[i]) {
        work(tensor, all.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
        begin += tensor.numel();
      }
    };
    if (ran_here[i] != 0) each([](const at::Tensor& own, const at::Tensor& place) { place.copy_(own); });
    all = deployment_.sums().sum({all})[0];
    each([](const at::Tensor& own, const at::Tensor& place) { own.copy_(place); });
  }
}

}  // namespace autopar::collectives
