#include "torch/interpret/summed_gradient.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "shard/group_state.hpp"
#include "torch/ir/only_owner.hpp"

namespace autopar {

using torch::autograd::variable_list;

SummedGradient::SummedGradient(const at::Tensor& value, Group group)
    : Node(torch::autograd::collect_next_edges(value)), group_(std::move(group)) {}

at::Tensor SummedGradient::over(const Group& group, const at::Tensor& value) {
  auto copy = value.detach();
  if (!torch::autograd::compute_requires_grad(value)) return copy;
  torch::autograd::set_history(
      copy, std::shared_ptr<SummedGradient>(new SummedGradient(value, group), torch::autograd::deleteNode));
  return copy;
}

std::shared_ptr<SummedGradient> SummedGradient::of(const at::Tensor& value) {
  return std::dynamic_pointer_cast<SummedGradient>(value.grad_fn());
}

// The edges lead to leaves, or to where a segment begins. So this node is no farther from the ends of the graph than
// before, which autograd relies on for nodes that others lead to already.
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
  auto& sum = all[0];
  if (!term.defined())
    sum = input_metadata(0).zeros_like();
  else
    sum = is_only_owner(term) ? std::move(term) : term.clone(at::MemoryFormat::Contiguous);
  term.reset();
  group_.state()->all_reduce(sum, [this, &all] {
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

}  // namespace autopar
