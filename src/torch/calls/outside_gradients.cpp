#include "torch/calls/outside_gradients.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <sstream>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/engine.h>

#include <autopar/core/error.hpp>

#include "capture/trace/own_hook.hpp"
#include "torch/deployment/world_sums.hpp"

namespace autopar::calls {

namespace {

using Fingerprint = OutsideGradients::Fingerprint;

/// Looked at of one gradient, spread over it.
constexpr std::int64_t kMostElements = 1 << 14;

at::Tensor sums_of(const at::Tensor& gradient) {
  const auto flat = deployment::real_parts(gradient.detach()).reshape({-1});
  const auto step = std::max<std::int64_t>(1, (flat.numel() + kMostElements - 1) / kMostElements);
  const auto elements = flat.slice(0, 0, flat.numel(), step).to(at::kDouble);
  // Weights without a pattern, so that gradients of other rows have other sums.
  const auto weights = at::arange(elements.numel(), elements.options()).mul(0.7).sin().add(1.5);
  return at::stack({elements.mul(weights).sum(), elements.abs().sum()});
}

bool same(const Fingerprint& a, const Fingerprint& b, at::ScalarType dtype) {
  constexpr double kFewRoundings = 1e3;
  const double epsilon = dtype == at::kDouble || dtype == at::kComplexDouble
                             ? 2.2e-16
                             : (dtype == at::kFloat || dtype == at::kComplexFloat ? 1.2e-7 : 1e-4);
  const auto close = [&](double x, double y) {
    if (x == y || (std::isnan(x) && std::isnan(y))) return true;
    return std::abs(x - y) <= kFewRoundings * epsilon * std::max(a.absolute, b.absolute);
  };
  return close(a.weighted, b.weighted) && close(a.absolute, b.absolute);
}

std::vector<Fingerprint> fingerprints_in(const Blob& blob) {
  std::vector<Fingerprint> all(blob.size() / sizeof(Fingerprint));
  if (!all.empty()) std::memcpy(all.data(), blob.data(), all.size() * sizeof(Fingerprint));
  return all;
}

constexpr auto kWaysOut =
    ". A forward of the unwrapped module (model->module().forward(x), or of a part of it) has gradients of this rank's "
    "samples alone, which are summed over no ranks: call the model, model(x), for its other methods "
    "model->call(&Net::method, x), and to evaluate with it do so under torch::NoGradGuard";

}  // namespace

OutsideGradients::~OutsideGradients() {
  for (const auto& [parameter, watched] : watched_) watched.handle.remove_hook(watched.hook);
}

void OutsideGradients::watch(const parameters::ParameterStore& parameters, c10::Device device) {
  device_ = device;
  for (const auto& tensor : parameters.tensors()) {
    const auto type = tensor.handle.scalar_type();
    const bool is_differentiable = at::isFloatingType(type) || at::isComplexType(type);
    if (!tensor.is_parameter || !parameters.holds(tensor) || !is_differentiable || tensor.handle.is_inference())
      continue;
    const auto hook = trace::add_own_hook(tensor.handle,
                                          {[this, id = tensor.id](const at::Tensor& gradient) { note(id, gradient); }});
    watched_[tensor.id] = {tensor.handle, hook, tensor.name(),
                           parameters.is_whole(tensor) && tensor.holders.size() > 1};
    by_leaf_[tensor.handle.unsafeGetTensorImpl()] = tensor.id;
  }
}

const results::OutsideTerms* OutsideGradients::terms_of_backward() {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes == nullptr) return nullptr;  // nobody's backward: the hook was called by hand
  const int task = torch::autograd::get_current_graph_task_id();
  if (task != task_ || !terms_) {
    terms_.emplace(*nodes, by_leaf_);
    task_ = task;
  }
  if (const auto& found = terms_->on_data()) {
    throw InvalidArgument("backward brings parameter '" + watched_.at(found->leaf).name +
                          "' a gradient from outside of the model, through an operator (" + found->op +
                          ") that takes data beside parameters" + kWaysOut +
                          ". A term of parameters with constants that ends here is to be computed in forward");
  }
  return &*terms_;
}

void OutsideGradients::note(parameters::StateId parameter, const at::Tensor& gradient) {
  const std::lock_guard lock(mutex_);
  const auto* terms = terms_of_backward();
  const bool is_compared = watched_.at(parameter).is_compared && gradient.layout() == at::kStrided;
  if (terms == nullptr || !terms->reach(parameter) || !is_compared || gradient.numel() == 0) return;
  const at::NoGradGuard no_grad;
  auto& sums = sums_[parameter];
  sums = sums.defined() ? sums.add(sums_of(gradient)) : sums_of(gradient);
}

OutsideGradients::Leaving OutsideGradients::leave() {
  Leaving leaving;
  if (sums_.empty()) return leaving;
  std::vector<at::Tensor> sums;
  for (const auto& [parameter, sum] : sums_) {
    leaving.parameters.push_back(parameter);
    sums.push_back(sum.to(device_));
  }
  sums_.clear();
  const auto all = at::stack(sums);
  constexpr bool kNonBlocking = true;
  leaving.sums = devices::host_memory(all.numel(), at::kDouble, device_).view(all.sizes());
  leaving.sums.copy_(all, kNonBlocking);
  leaving.copied.set(device_);
  return leaving;
}

std::vector<Fingerprint> OutsideGradients::look() {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  auto left = leave();
  if (!device_.is_cpu()) {
    auto before = std::exchange(leaving_, std::move(left));
    left = before ? std::move(*before) : Leaving();
  }
  std::vector<Fingerprint> all;
  if (left.parameters.empty()) return all;
  left.copied.wait();
  const auto* sums = left.sums.const_data_ptr<double>();
  for (std::size_t i = 0; i < left.parameters.size(); ++i)
    all.push_back({left.parameters[i], sums[2 * i], sums[2 * i + 1]});
  return all;
}

void require_same_outside_gradients(ranks::Ranks& ranks, const parameters::ParameterStore& parameters,
                                    const std::vector<Fingerprint>& mine) {
  const auto blobs = ranks.all_gather(std::as_bytes(std::span(mine)), "comparing gradients from outside of the model");
  std::vector<std::map<parameters::StateId, Fingerprint>> of_ranks(blobs.size());
  for (std::size_t r = 0; r < blobs.size(); ++r) {
    for (const auto& each : fingerprints_in(blobs[r])) of_ranks[r][each.parameter] = each;
  }
  const auto text = [](const std::optional<Fingerprint>& each) {
    std::ostringstream out;
    out.precision(17);
    if (each)
      out << "one whose absolute values add up to " << each->absolute;
    else
      out << "none";
    return out.str();
  };
  for (const auto& tensor : parameters.tensors()) {
    const auto seen = [&](Rank rank) -> std::optional<Fingerprint> {
      const auto found = of_ranks[rank.index()].find(tensor.id);
      return found == of_ranks[rank.index()].end() ? std::nullopt : std::optional(found->second);
    };
    for (const auto holder : tensor.holders) {
      const auto first = tensor.holders.front();
      const auto a = seen(first), b = seen(holder);
      if (!a && !b) continue;
      if (a && b && same(*a, *b, tensor.handle.scalar_type())) continue;
      throw InvalidArgument("since the last call backwards outside of the model gave parameter '" + tensor.name() +
                            "' other gradients on some ranks: rank " + std::to_string(first.value()) + " has " +
                            text(a) + ", rank " + std::to_string(holder.value()) + " has " + text(b) + kWaysOut +
                            ". Terms of parameters are added by all ranks that hold them, from the same numbers");
    }
  }
}

}  // namespace autopar::calls
