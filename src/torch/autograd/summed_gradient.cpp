#include "torch/autograd/summed_gradient.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

namespace autopar::autograd {

using torch::autograd::variable_list;

SummedGradient::SummedGradient(const at::Tensor& own, Sum sum)
    : Node(torch::autograd::collect_next_edges(own)), sum_(std::move(sum)) {}

at::Tensor SummedGradient::over(const at::Tensor& own, const at::Tensor& value, Sum sum) {
  auto out = value.detach();
  if (torch::autograd::compute_requires_grad(own)) {
    const std::shared_ptr<SummedGradient> node(new SummedGradient(own, std::move(sum)), torch::autograd::deleteNode);
    torch::autograd::set_history(out, node);
  }
  return out;
}

std::shared_ptr<SummedGradient> SummedGradient::of(const at::Tensor& value) {
  return std::dynamic_pointer_cast<SummedGradient>(value.grad_fn());
}

// The new edges lead to leaves, or to where a segment begins. So this node's distance to the ends of the graph does not
// grow. Autograd relies on that for nodes that already have predecessors.
std::size_t SummedGradient::take_over(const std::vector<at::Tensor>& parameters) {
  const auto place = num_outputs();
  for (const auto& parameter : parameters) next_edges().push_back(torch::autograd::impl::gradient_edge(parameter));
  return place;
}

void SummedGradient::put(std::size_t place, Make make) {
  const std::lock_guard<std::mutex> lock(mutex_);
  tasks_.push_back({place, std::move(make)});
}

variable_list SummedGradient::apply(variable_list&& gradients) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const at::AutoDispatchBelowADInplaceOrView no_history;
  variable_list all(num_outputs());
  auto term = std::move(gradients[0]);
  if (!term.defined()) term = input_metadata(0).zeros_like();
  all[0] = sum_(std::move(term), [&] {
    for (auto& [place, make] : std::exchange(tasks_, {})) {
      std::ranges::move(make(), all.begin() + static_cast<std::ptrdiff_t>(place));
    }
  });
  return all;
}

void SummedGradient::release_variables() {
  const std::lock_guard<std::mutex> lock(mutex_);
  tasks_.clear();
}

}  // namespace autopar::autograd
