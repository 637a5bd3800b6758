#include "torch/autograd/deferred_gradients.hpp"

#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>

namespace deferred_gradients_test {

using autopar::ValueId;
using autopar::autograd::DeferredGradients;
using torch::Tensor;

TEST_CASE("DeferredGradients: computed once, in order, summed first") {
  DeferredGradients deferred;
  std::vector<int> computed;
  const auto defer = [&](int number, std::vector<ValueId> parameters, std::vector<double> values) {
    deferred.defer({std::move(parameters), [&computed, number, values] {
                      computed.push_back(number);
                      std::vector<Tensor> gradients;
                      for (const auto value : values) gradients.push_back(torch::full({2}, value));
                      return gradients;
                    }});
  };
  const ValueId a(3), b(1), c(2);
  defer(0, {a, b}, {1, 10});
  defer(1, {c}, {100});
  defer(2, {a}, {2});
  std::vector<std::pair<ValueId, double>> added;
  const auto add = [&](ValueId parameter, const Tensor& sum) { added.emplace_back(parameter, sum[1].item<double>()); };
  deferred.compute(add);
  CHECK(computed == std::vector{0, 1, 2});
  const std::vector<std::pair<ValueId, double>> expected{{b, 10}, {c, 100}, {a, 3}};
  CHECK((added == expected));
  deferred.compute(add);
  CHECK(added.size() == 3);
}

TEST_CASE("DeferredGradients: operands are freed at once") {
  DeferredGradients deferred;
  std::weak_ptr<int> first, second;
  const auto defer = [&](std::weak_ptr<int>& watched, bool first_is_gone) {
    auto held = std::make_shared<int>(0);
    watched = held;
    deferred.defer({{ValueId(0)}, [held, first_is_gone, &first] {
                      CHECK(first.expired() == first_is_gone);
                      return std::vector{torch::ones({1})};
                    }});
  };
  defer(first, false);
  defer(second, true);
  deferred.compute([](ValueId, const Tensor&) {});
  CHECK(second.expired());
}

}  // namespace deferred_gradients_test
