
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <nets.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "torch/fused/fused_ops.hpp"

#include "unit/torch/passes/folded.hpp"

namespace autopar::test {
namespace layer_norm_fold {

using torch::Tensor;

constexpr std::int64_t kSamples = 3, kWidth = 6;

struct Net : TestModel {
  using Forward = std::function<Tensor(Net&, const Tensor&)>;
  Forward forward;
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({kWidth})}, other{torch::nn::LayerNormOptions({kWidth})},
      plain{torch::nn::LayerNormOptions({kWidth}).elementwise_affine(false)};
  torch::nn::Linear layer{kWidth, kWidth};
  explicit Net(Forward of) : forward(std::move(of)) {
    nets::register_all(*this, "norm", norm, "other", other, "plain", plain, "layer", layer);
    for (auto& parameter : parameters()) parameter.data().normal_();
  }
  Tensors run(const Tensors& in) override { return {forward(*this, in[0])}; }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 4, kWidth})}; }
};

struct Form {
  std::string name;
  Net::Forward forward;
  int joined;       ///< sums
  int dropped = 0;  ///< dropouts
};

Tensor half_of(const Tensor& x) { return torch::dropout(x, 0.5, /*train=*/true); }

void check(const std::vector<Form>& forms) {
  for (const auto& form : forms) {
    INFO(form.name);
    Net net(form.forward);
    const auto in = net.arguments(kSamples);
    const auto plain = capture_model(net, in), joined = fused::add_layer_norm().pattern(plain);
    const auto found = count_floating(joined, fused::kAddLayerNorm);
    const auto dropped = count_floating(plain, "aten::dropout") - count_floating(joined, "aten::dropout");
    CHECK(found == form.joined);
    CHECK(dropped == form.dropped);
    CHECK(joined.ops.size() + static_cast<std::size_t>(found + dropped) == plain.ops.size());
    check_folded(net, plain, joined, in, 1e-6);  // gradients of a sum are added in another order
  }
}

}  // namespace layer_norm_fold

TEST_CASE("add_layer_norm: fuses a sum and its first norm exactly", "[rewrite]") {
  using namespace layer_norm_fold;
  torch::manual_seed(21);
  const std::vector<Form> forms{
      {"residuals of a block",
       [](Net& n, const Tensor& x) {
         const auto y = x + n.layer(n.norm(x));
         return y + torch::tanh(n.layer(n.other(y)));
       },
       1},
      {"norms behind", [](Net& n, const Tensor& x) { return n.norm(x + n.layer(x)); }, 1},
      {"two norms of one sum",
       [](Net& n, const Tensor& x) {
         const auto y = n.layer(x) + x;
         return n.norm(y) * n.other(y);
       },
       1},
      {"a chain",
       [](Net& n, const Tensor& x) {
         auto y = x;
         for (int i = 0; i < 3; ++i) y = y + n.layer(n.norm(y));
         return n.other(y);
       },
       3},
      {"read before the norm",
       [](Net& n, const Tensor& x) {
         const auto y = x + n.layer(x);
         const auto z = torch::tanh(y);
         return n.norm(y) * z;
       },
       0},
      {"a row is added", [](Net& n, const Tensor& x) { return n.norm(n.layer(x) + x[0]); }, 0},
      {"a factor", [](Net& n, const Tensor& x) { return n.norm(torch::add(n.layer(x), x, 2)); }, 0},
      {"in place",
       [](Net& n, const Tensor& x) {
         auto y = n.layer(x);
         y += x;
         return n.norm(y);
       },
       0},
      {"without weights", [](Net& n, const Tensor& x) { return n.plain(x + n.layer(x)); }, 0},
      {"an addend is written in between",
       [](Net& n, const Tensor& x) {
         auto z = torch::zeros_like(x);
         const auto y = n.layer(x) + z;
         z += 1;
         return n.norm(y) * z;
       },
       0}};
  check(forms);
}

TEST_CASE("add_layer_norm: includes dropout without other readers", "[rewrite]") {
  using namespace layer_norm_fold;
  torch::manual_seed(22);
  check(
      {{"behind the sum", [](Net& n, const Tensor& x) { return n.norm(x + half_of(n.layer(x))); }, 1, 1},
       {"first addend", [](Net& n, const Tensor& x) { return n.norm(half_of(n.layer(x)) + x); }, 1, 1},
       {"a chain",
        [](Net& n, const Tensor& x) {
          auto y = x;
          for (int i = 0; i < 3; ++i) y = y + half_of(n.layer(n.norm(y)));
          return n.other(y);
        },
        3, 3},
       {"both addends",
        [](Net& n, const Tensor& x) {
          const auto second = half_of(x), first = half_of(n.layer(x));
          return n.norm(first + second);
        },
        1, 1},
       {"read elsewhere",
        [](Net& n, const Tensor& x) {
          const auto dropped = half_of(n.layer(x));
          return n.norm(x + dropped) * dropped;
        },
        1},
       {"added to itself",
        [](Net& n, const Tensor& x) {
          const auto dropped = half_of(n.layer(x));
          return n.norm(dropped + dropped);
        },
        1},
       {"nothing", [](Net& n, const Tensor& x) { return n.norm(x + torch::dropout(n.layer(x), 0.0, true)); }, 1},
       {"all", [](Net& n, const Tensor& x) { return n.norm(x + torch::dropout(n.layer(x), 1.0, true)); }, 1},
       {"in evaluation", [](Net& n, const Tensor& x) { return n.norm(x + torch::dropout(n.layer(x), 0.5, false)); }, 1},
       {"of channels",
        [](Net& n, const Tensor& x) { return n.norm(x + torch::feature_dropout(n.layer(x), 0.5, true)); }, 1},
       {"in place",
        [](Net& n, const Tensor& x) {
          auto y = n.layer(x);
          return n.norm(x + torch::dropout_(y, 0.5, true));
        },
        1},
       {"without a gradient",
        [](Net& n, const Tensor& x) {
          const auto dropped = [&] {
            const torch::NoGradGuard no_grad;
            return half_of(n.layer(x));
          }();
          return n.norm(n.layer(x) + dropped);
        },
        1},
       {"its input is written in between",
        [](Net& n, const Tensor& x) {
          auto z = torch::zeros_like(x) + x;
          const auto sum = n.layer(x) + half_of(z);
          z += 1;
          return n.norm(sum) * z;
        },
        1}});
}

TEST_CASE("add_layer_norm: RNG keyed by slice, unused without dropout", "[rewrite]") {
  using namespace layer_norm_fold;
  Net net([](Net& n, const Tensor& x) { return n.other(n.norm(x + half_of(n.layer(x))) + n.layer(x)); });
  const auto joined = fused::add_layer_norm().pattern(capture_model(net, net.arguments(kSamples)));
  const auto plan = algebra::analyze_batch(joined);
  std::vector<Draw> draws;
  for (std::size_t i = 0; i < joined.ops.size(); ++i) {
    if (joined.is(OpId::of(i), fused::kAddLayerNorm)) draws.push_back(plan.handling(OpId::of(i)).draw);
  }
  CHECK((draws == std::vector<Draw>{Draw::kPerSlice, Draw::kNone}));
}

}  // namespace autopar::test
