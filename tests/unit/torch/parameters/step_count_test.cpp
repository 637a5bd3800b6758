#include <torch/torch.h>

#include <catch_shim.hpp>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include <autopar/autopar.hpp>

#include "torch/parameters/step_count.hpp"

namespace step_count_test {

namespace ap = autopar;
using torch::Tensor;

constexpr double kEpsilon = std::numeric_limits<float>::epsilon();

/// Elements of a parameter that SGD steps in single precision.
std::vector<ap::parameters::UpdatedElement> stepped(int steps, const ap::parameters::PlainUpdate& update,
                                                    const Tensor& gradient) {
  auto parameter = torch::linspace(-2, 3, gradient.numel()).sin().requires_grad_();
  const auto before = parameter.detach().clone();
  torch::optim::SGD optimizer({parameter}, torch::optim::SGDOptions(update.lr).weight_decay(update.weight_decay));
  parameter.mutable_grad() = gradient.clone();
  for (int s = 0; s < steps; ++s) optimizer.step();
  std::vector<ap::parameters::UpdatedElement> elements;
  for (std::int64_t i = 0; i < gradient.numel(); ++i)
    elements.push_back({before[i].item<double>(), parameter.detach()[i].item<double>(), gradient[i].item<double>()});
  return elements;
}

TEST_CASE("count_steps: plain SGD steps are inferred from elements") {
  const auto gradient = torch::linspace(-1, 1, 8);
  for (const double lr : {1.0, 0.1, 1e-3}) {
    for (const double decay : {0.0, 0.1}) {
      for (int steps = 0; steps <= 6; ++steps) {
        CAPTURE(lr, decay, steps);
        const ap::parameters::PlainUpdate update{lr, decay};
        CHECK(ap::parameters::count_steps(stepped(steps, update, gradient), update, kEpsilon) == steps);
      }
    }
  }
}

TEST_CASE("count_steps: unknown if rounded away or rates differ") {
  const auto gradient = torch::linspace(-1, 1, 8);
  const ap::parameters::PlainUpdate update{0.1, 0};
  CHECK(ap::parameters::count_steps(stepped(1, {0, 0}, gradient), {0, 0}, kEpsilon) == std::nullopt);
  CHECK(ap::parameters::count_steps(stepped(1, update, torch::zeros({8})), update, kEpsilon) == std::nullopt);
  CHECK(ap::parameters::count_steps(stepped(1, {1e-8, 0}, gradient), {1e-8, 0}, kEpsilon) == std::nullopt);
  CHECK(ap::parameters::count_steps(stepped(7, update, gradient), update, kEpsilon) == std::nullopt);
  auto others = stepped(1, update, gradient);
  for (auto& element : others) element.gradient += 0.3;
  CHECK(ap::parameters::count_steps(others, update, kEpsilon) == std::nullopt);
  CHECK(ap::parameters::count_steps(stepped(1, {0.13, 0}, gradient), update, kEpsilon) == std::nullopt);
  others = stepped(1, update, gradient);
  for (auto& element : others) element.gradient = std::nan("");
  CHECK(ap::parameters::count_steps(others, update, kEpsilon) == std::nullopt);
}

TEST_CASE("step count: optimizer state tells it from the first step") {
  const auto parameter = torch::ones({4}).requires_grad_();
  parameter.mutable_grad() = torch::ones({4});
  namespace o = torch::optim;
  const std::vector<Tensor> all{parameter};
  const auto momentum = o::SGDOptions(0.1).momentum(0.9);
  std::vector<std::unique_ptr<o::Optimizer>> optimizers;
  optimizers.push_back(std::make_unique<o::SGD>(all, momentum));
  optimizers.push_back(std::make_unique<ap::optim::SGD>(all, momentum));
  optimizers.push_back(std::make_unique<o::Adam>(all, 0.1));
  optimizers.push_back(std::make_unique<ap::optim::AdamW>(all, 0.1));
  optimizers.push_back(std::make_unique<o::RMSprop>(all, 0.1));
  optimizers.push_back(std::make_unique<o::Adagrad>(all, 0.1));
  optimizers.push_back(std::make_unique<ap::optim::LAMB>(all, ap::optim::LAMBOptions(0.1)));
  for (const auto& optimizer : optimizers) {
    auto before = ap::parameters::step_mark(*optimizer, parameter);
    CHECK(ap::parameters::steps_between(*optimizer, before, before) == 0);
    for (const int steps : {1, 2, 0, 3, 1}) {
      for (int s = 0; s < steps; ++s) optimizer->step();
      const auto after = ap::parameters::step_mark(*optimizer, parameter);
      CHECK(ap::parameters::steps_between(*optimizer, before, after) == steps);
      before = after;
    }
  }
  auto& buffer =
      static_cast<o::SGDParamState&>(*optimizers[0]->state().at(parameter.unsafeGetTensorImpl())).momentum_buffer();
  const auto before = ap::parameters::step_mark(*optimizers[0], parameter);
  buffer.zero_();
  CHECK(ap::parameters::steps_between(*optimizers[0], before, ap::parameters::step_mark(*optimizers[0], parameter)) ==
        std::nullopt);
  buffer = torch::zeros({4});
  CHECK(ap::parameters::steps_between(*optimizers[0], before, ap::parameters::step_mark(*optimizers[0], parameter)) ==
        std::nullopt);
}

}  // namespace step_count_test
