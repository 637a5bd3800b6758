#include "torch/collectives/parameter_sums.hpp"

#include <vector>

#include <torch/nn.h>

#include <autopar/core/error.hpp>
#include <catch_shim.hpp>
#include <one_rank_model.hpp>

namespace parameter_sums_test {

using namespace autopar;

struct Fixture : test::OneRankModel {
  explicit Fixture(torch::nn::Linear net = torch::nn::Linear(3, 2))
      : OneRankModel(net.ptr(),
                     [net](const std::vector<at::Tensor>& tensors) mutable {
                       return std::vector<at::Tensor>{net(tensors.at(0))};
                     }),
        layer(net) {
    static_cast<void>(deployed({torch::rand({6, 3})}));
    for (auto& parameter : layer->parameters()) parameter.mutable_grad() = torch::rand_like(parameter);
  }

  torch::nn::Linear layer;
  collectives::ParameterSums sums{*ranks, *module, parameters, deployment, validator};
};

TEST_CASE("ParameterSums: norms and products are those of libtorch") {
  Fixture fixture;
  const auto weight = fixture.layer->weight.detach(), grad = fixture.layer->weight.grad();
  CHECK(fixture.sums.norm({fixture.layer->weight}, 2).item<double>() == Approx(weight.norm().item<double>()));
  const auto product = fixture.sums.dot({fixture.layer->weight}, {grad});
  CHECK(product.item<double>() == Approx((weight * grad).sum().item<double>()));
}

TEST_CASE("ParameterSums: clips gradients as libtorch") {
  Fixture fixture;
  auto copies = std::vector<at::Tensor>{};
  for (const auto& parameter : fixture.layer->parameters()) {
    copies.push_back(parameter.detach().clone().requires_grad_());
    copies.back().mutable_grad() = parameter.grad().clone();
  }
  const auto norm = fixture.sums.clip_grad_norm(fixture.layer->parameters(), 0.5, 2, false);
  CHECK(norm.item<double>() == Approx(torch::nn::utils::clip_grad_norm_(copies, 0.5)));
  for (std::size_t i = 0; i < copies.size(); ++i)
    CHECK(torch::allclose(fixture.layer->parameters()[i].grad(), copies[i].grad()));
}

TEST_CASE("ParameterSums: what belongs to no parameter is refused") {
  Fixture fixture;
  CHECK_THROWS_AS(fixture.sums.norm({torch::ones({5})}, 2), InvalidArgument);
  CHECK_THROWS_AS(fixture.sums.norm({fixture.layer->weight}, -1), InvalidArgument);
  CHECK_THROWS_AS(fixture.sums.dot({fixture.layer->weight}, {}), InvalidArgument);
}

}  // namespace parameter_sums_test
