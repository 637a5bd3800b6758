#include <autopar/capture/capture.hpp>

#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>

namespace autopar::test {
namespace program {

namespace nn = torch::nn;
using Catch::Matchers::Contains;
using torch::Tensor;

/// A structure of results, a constant, an optional argument, a result that may be undefined.
struct Scored {
  Tensor logits;
  std::map<std::string, Tensor> parts;
  Tensor mask;
};

struct NetImpl : nn::Module {
  NetImpl() { nets::register_all(*this, "body", body, "norm", norm, "head", head); }
  Scored forward(const Tensor& x, const std::optional<Tensor>& shift, int repeats) {
    auto h = torch::tanh(norm(body(x)));
    for (int i = 1; i < repeats; ++i) h = h + torch::dropout(h, 0.5, is_training());
    if (shift) h = h + *shift;
    return {head(h), {{"hidden", h}, {"mean", h.mean(0)}}, Tensor()};
  }
  nn::Linear body{6, 8}, head{8, 3};
  nn::BatchNorm1d norm{8};
};
TORCH_MODULE(Net);

Tensor samples(std::int64_t n) { return torch::randn({n, 6}, torch::kDouble); }

TEST_CASE("Program: equals forward at any batch size, with gradients") {
  Net net;
  net->to(torch::kDouble);
  torch::manual_seed(1);
  const auto program = capture(net, samples(4), std::optional<Tensor>(), 3);
  CHECK(program.graph().ops.size() > 5);
  for (const std::int64_t batch : {4, 2, 9}) {
    INFO(batch << " samples");
    const auto x = samples(batch);
    const auto train = [&](const auto& forward) {
      torch::manual_seed(5);
      const auto before = net->norm->running_mean.clone();
      const Scored out = forward();
      net->zero_grad();
      (out.logits.sum() + out.parts.at("hidden").pow(2).sum()).backward();
      const auto gradient = net->body->weight.grad().clone(), mean = net->norm->running_mean.clone();
      net->norm->running_mean.copy_(before);
      CHECK_FALSE(out.mask.defined());
      return std::tuple(out.logits.detach(), out.parts.at("mean").detach(), gradient, mean);
    };
    const auto replayed = train([&] { return program.replay(x, std::optional<Tensor>(), 3); });
    const auto eager = train([&] { return net->forward(x, {}, 3); });
    CHECK(torch::equal(std::get<0>(replayed), std::get<0>(eager)));
    CHECK(torch::equal(std::get<1>(replayed), std::get<1>(eager)));
    CHECK(torch::allclose(std::get<2>(replayed), std::get<2>(eager), 1e-12, 1e-12));
    CHECK(torch::equal(std::get<3>(replayed), std::get<3>(eager)));
  }
}

TEST_CASE("Program: reads current parameters and outlives the module") {
  auto net = std::make_shared<nn::LinearImpl>(4, 2);
  const auto program = capture(net, torch::zeros({3, 4}));
  {
    const torch::NoGradGuard no_grad;
    net->weight.fill_(2);
    net->bias.zero_();
  }
  net.reset();
  CHECK(torch::equal(program.replay(torch::ones({5, 4})), torch::full({5, 2}, 8.0)));
  const auto copy = program;
  CHECK(copy.replay(torch::ones({1, 4})).size(0) == 1);
}

TEST_CASE("Program: captures by reference without running the module") {
  struct Large : nets::Linears {
    Large() : Linears(3, {{"layer", 2}}) {}
    Tensor forward(const Tensor& x) { return Linears::forward(x).sum(); }
  } net;
  const auto& layer = net.layers.front();
  const auto weight = layer->weight.detach().clone();
  const auto program = capture(net, torch::zeros({4, 3}));
  CHECK(describe_form(program.graph().value(program.graph().inputs[0])) == "Float[B, 3]");
  CHECK(torch::equal(layer->weight, weight));
  CHECK_FALSE(layer->weight.grad().defined());
}

TEST_CASE("Program: arguments unlike the capture's are refused") {
  Net net;
  const auto program = capture(net, torch::zeros({4, 6}), std::optional<Tensor>(), 1);
  const auto none = std::optional<Tensor>();
  CHECK_THROWS_WITH(program.replay(torch::zeros({4, 5}), none, 1), Contains("tensor argument 0 has sizes [4, 5]"));
  CHECK_THROWS_WITH(program.replay(torch::zeros({4, 6}, torch::kDouble), none, 1), Contains("Double"));
  CHECK_THROWS_WITH(program.replay(torch::zeros({4, 6}), none, 2), Contains("containers and constants"));
  CHECK_THROWS_WITH(program.replay(torch::zeros({4, 6}), std::optional(torch::zeros({8})), 1),
                    Contains("containers and constants"));
  CHECK_THROWS_WITH(program.replay(Tensor(), none, 1), Contains("tensor argument 0 was defined in the capture"));
  CHECK_THROWS_AS(capture(net, torch::zeros({4, 6}), std::optional(torch::zeros({8})), 1), InvalidArgument);
}

TEST_CASE("Program: what cannot be captured is named") {
  struct Reads : nn::Module {
    Tensor forward(const Tensor& x) { return x.sum().item<double>() > 0 ? x : -x; }
  };
  CHECK_THROWS_AS(capture(std::make_shared<Reads>(), torch::zeros({2, 2})), CaptureError);
}

}  // namespace program
}  // namespace autopar::test
