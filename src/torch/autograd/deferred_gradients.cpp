#include "torch/autograd/deferred_gradients.hpp"

#include <map>
#include <utility>

#include <ATen/core/grad_mode.h>

namespace autopar::autograd {

namespace {

/// The sum of a parameter's gradients from one slice.
struct Sum {
  int missing = 0;
  at::Tensor tensor{};

  void add(at::Tensor gradient) {
    if (!tensor.defined())
      tensor = std::move(gradient);
    else if (tensor.scalar_type() == gradient.scalar_type())
      tensor.add_(gradient);
    else
      tensor = tensor.add(gradient);  // read both as 16-bit cast and as it is: the sum has the wider type
  }
};

}  // namespace

void DeferredGradients::defer(Task task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
}

void DeferredGradients::compute(const std::function<void(ValueId, at::Tensor)>& add,
                                const std::function<void(const std::vector<ValueId>&)>& before,
                                const std::function<at::Tensor(ValueId)>& sum_of) {
  const at::NoGradGuard no_grad;
  auto tasks = [&] {
    const std::lock_guard lock(mutex_);
    return std::exchange(tasks_, {});
  }();
  std::map<ValueId, Sum> sums;
  for (const auto& task : tasks) {
    for (const auto parameter : task.parameters) ++sums[parameter].missing;
  }
  // Sums that a task may add to. None if several tasks have gradients of a parameter: their sum is added later.
  const auto places_of = [&](const Task& task) {
    std::vector<at::Tensor> places;
    if (!task.add_to || !sum_of) return places;
    for (const auto parameter : task.parameters) {
      const auto& own = sums.at(parameter);
      auto place = own.missing == 1 && !own.tensor.defined() ? sum_of(parameter) : at::Tensor();
      if (!place.defined()) return std::vector<at::Tensor>();
      places.push_back(std::move(place));
    }
    return places;
  };
  for (auto& task : tasks) {
    if (before) before(task.parameters);
    const auto places = places_of(task);
    std::vector<at::Tensor> gradients;
    if (places.empty())
      gradients = task.compute();
    else
      task.add_to(places);
    task.compute = nullptr;
    task.add_to = nullptr;
    for (std::size_t i = 0; i < task.parameters.size(); ++i) {
      auto& sum = sums.at(task.parameters[i]);
      if (places.empty()) sum.add(std::move(gradients[i]));
      if (--sum.missing == 0) add(task.parameters[i], std::exchange(sum.tensor, at::Tensor()));
    }
  }
}

}  // namespace autopar::autograd
