#include "torch/rewrite/layer_norm_fold.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "torch/ir/add_layer_norm.hpp"

#include "unit/torch/rewrite/folded.hpp"

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
    register_module("norm", norm);
    register_module("other", other);
    register_module("plain", plain);
    register_module("layer", layer);
    for (auto& parameter : parameters()) parameter.data().normal_();
  }
  Tensors run(const Tensors& in) override { return {forward(*this, in[0])}; }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 4, kWidth})}; }
};

struct Form {
  std::string name;
  Net::Forward forward;
  int joined;
};

}  // namespace layer_norm_fold

TEST_CASE("a sum and the layer norm that reads it first become one operator that makes the same", "[rewrite]") {
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
  for (const auto& form : forms) {
    INFO(form.name);
    Net net(form.forward);
    const auto in = net.arguments(kSamples);
    const auto plain = capture_model(net, in), joined = fold_layer_norms(plain);
    const auto found = count_floating(joined, kAddLayerNorm);
    CHECK(found == form.joined);
    CHECK(joined.ops.size() + static_cast<std::size_t>(found) == plain.ops.size());
    check_folded(net, plain, joined, in, 1e-6);  // gradients of a sum are added in another order
  }
}

}  // namespace autopar::test
