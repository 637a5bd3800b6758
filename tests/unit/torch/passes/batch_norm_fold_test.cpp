
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <nets.hpp>

#include "torch/fused/fused_ops.hpp"

#include "unit/torch/passes/folded.hpp"

namespace autopar::test {
namespace batch_norm_fold {

using torch::Tensor;

constexpr std::int64_t kSamples = 3, kChannels = 4;

/// Two norms, and what is made of their results.
struct Net : TestModel {
  using Forward = std::function<Tensors(Net&, const Tensor&)>;
  Forward forward;
  torch::nn::BatchNorm2d norm{kChannels}, other{kChannels};
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(kChannels, kChannels, 1)};
  explicit Net(Forward of) : forward(std::move(of)) {
    nets::register_all(*this, "norm", norm, "other", other, "conv", conv);
    for (auto& parameter : parameters()) parameter.data().normal_();
  }
  Tensors run(const Tensors& in) override { return forward(*this, in[0]); }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, kChannels, 3, 5})}; }
};

struct Form {
  std::string name;
  Net::Forward forward;
  std::int64_t norms, additions, relus;  ///< that are left beside the joined operators
};

/// Joined and not joined programs make the same results, gradients and running statistics, to the bit.
void check(const Form& form) {
  INFO(form.name);
  Net net(form.forward);
  const auto in = net.arguments(kSamples);
  const auto plain = capture_model(net, in);
  const auto joined = fused::batch_norm_relu().pattern(plain);
  CHECK(count_floating(joined, fused::kBatchNormRelu) + count_floating(joined, "aten::batch_norm") ==
        count_floating(plain, "aten::batch_norm"));
  CHECK(count_floating(joined, "aten::batch_norm") == form.norms);
  CHECK(count_floating(joined, "aten::add") + count_floating(joined, "aten::add_") == form.additions);
  CHECK(count_floating(joined, "aten::relu") + count_floating(joined, "aten::relu_") == form.relus);
  check_folded(net, plain, joined, in);
}

}  // namespace batch_norm_fold

TEST_CASE("batch_norm_relu: fuses norm, add and ReLU exactly", "[rewrite]") {
  using namespace batch_norm_fold;
  torch::manual_seed(11);
  const std::vector<Form> forms{
      {"the norm alone", [](Net& n, const Tensor& x) { return Tensors{n.norm(n.conv(x))}; }, 0, 0, 0},
      {"ReLU", [](Net& n, const Tensor& x) { return Tensors{torch::relu(n.norm(n.conv(x)))}; }, 0, 0, 0},
      {"ReLU in place", [](Net& n, const Tensor& x) { return Tensors{n.norm(n.conv(x)).relu_()}; }, 0, 0, 0},
      {"a shortcut, all in place",
       [](Net& n, const Tensor& x) {
         auto y = n.norm(n.conv(x));
         y += x;
         return Tensors{y.relu_()};
       },
       0, 0, 0},
      {"a shortcut on the left", [](Net& n, const Tensor& x) { return Tensors{torch::relu(x + n.norm(n.conv(x)))}; }, 0,
       0, 0},
      {"no ReLU", [](Net& n, const Tensor& x) { return Tensors{n.norm(n.conv(x)) + x}; }, 0, 0, 0},
      {"a norm as shortcut, made in between",
       [](Net& n, const Tensor& x) {
         auto y = n.norm(n.conv(x));
         y += n.other(x);
         return Tensors{torch::relu_(y)};
       },
       0, 0, 0},
      {"two norms added, the second first",
       [](Net& n, const Tensor& x) {
         const auto y = n.norm(n.conv(x));
         return Tensors{torch::relu(n.other(x) + y)};
       },
       0, 0, 0},
      {"the shortcut goes on",
       [](Net& n, const Tensor& x) {
         const auto shortcut = n.conv(x);
         const auto y = torch::relu(n.norm(n.conv(shortcut)) + shortcut);
         return Tensors{y, torch::relu(n.other(y)) + shortcut};
       },
       0, 1, 0}};
  for (const auto& form : forms) check(form);
}

TEST_CASE("batch_norm_relu: not fused where that changes results", "[rewrite]") {
  using namespace batch_norm_fold;
  torch::manual_seed(12);
  const std::vector<Form> forms{
      {"the norm's result is a result",
       [](Net& n, const Tensor& x) {
         const auto y = n.norm(n.conv(x));
         return Tensors{torch::relu(y), y};
       },
       0, 0, 1},
      {"the sum is read twice",
       [](Net& n, const Tensor& x) {
         const auto y = n.norm(n.conv(x)) + x;
         return Tensors{torch::relu(y) * y};
       },
       0, 0, 1},
      {"a factor", [](Net& n, const Tensor& x) { return Tensors{torch::relu(torch::add(n.norm(n.conv(x)), x, 2))}; }, 0,
       1, 1},
      {"a row is added", [](Net& n, const Tensor& x) { return Tensors{torch::relu(n.norm(n.conv(x)) + x[0])}; }, 0, 1,
       1},
      {"added into the shortcut",
       [](Net& n, const Tensor& x) {
         auto y = n.conv(x);
         y += n.norm(x);
         return Tensors{torch::relu(y)};
       },
       0, 1, 1},
      {"another activation", [](Net& n, const Tensor& x) { return Tensors{torch::relu6(n.norm(n.conv(x)) + x)}; }, 0, 0,
       0},
      {"one norm twice, whose statistics would change places",
       [](Net& n, const Tensor& x) {
         const auto y = n.norm(n.conv(x));
         return Tensors{torch::relu(y + n.norm(x * 2))};
       },
       0, 0, 0},
      {"its shortcut is written before ReLU",
       [](Net& n, const Tensor& x) {
         auto z = (x * 2).detach();
         const auto y = n.norm(z.clone());
         auto shortcut = x * 3;
         const auto sum = y + shortcut;
         shortcut.fill_(1);
         return Tensors{torch::relu(sum) + shortcut};
       },
       0, 1, 1}};
  for (const auto& form : forms) check(form);
}

TEST_CASE("batch_norm_relu: evaluation mode is not fused", "[rewrite]") {
  using namespace batch_norm_fold;
  Net net([](Net& n, const Tensor& x) { return Tensors{torch::relu(n.norm(x))}; });
  net.eval();
  const auto plain = capture_model(net, net.arguments(kSamples));
  CHECK(fused::batch_norm_relu().pattern(plain).hash() == plain.hash());
}

}  // namespace autopar::test
