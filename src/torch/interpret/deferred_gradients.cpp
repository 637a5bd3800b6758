#include "torch/interpret/deferred_gradients.hpp"

#include <map>
#include <utility>

#include <ATen/core/grad_mode.h>

namespace autopar {

void DeferredGradients::defer(Task task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
}

void DeferredGradients::compute(const std::function<void(ValueId, at::Tensor)>& add,
                                const std::function<void(const std::vector<ValueId>&)>& before) {
  const at::NoGradGuard no_grad;
  auto tasks = [&] {
    const std::lock_guard lock(mutex_);
    return std::exchange(tasks_, {});
  }();
  struct Sum {
    int missing = 0;
    at::Tensor tensor;
  };
  std::map<ValueId, Sum> sums;
  for (const auto& task : tasks) {
    for (const auto parameter : task.parameters) ++sums[parameter].missing;
  }
  for (auto& task : tasks) {
    if (before) before(task.parameters);
    auto gradients = task.compute();
    task.compute = nullptr;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      auto& sum = sums.at(task.parameters[i]);
      if (!sum.tensor.defined())
        sum.tensor = std::move(gradients[i]);
      else if (sum.tensor.scalar_type() == gradients[i].scalar_type())
        sum.tensor.add_(gradients[i]);
      else
        sum.tensor = sum.tensor.add(gradients[i]);  // read as it is and cast: the wider type
      if (--sum.missing == 0) add(task.parameters[i], std::exchange(sum.tensor, at::Tensor()));
    }
  }
}

}  // namespace autopar
