#include "torch/rewrite/batch_norm_fold.hpp"

#include <torch/torch.h>

#include <catch_shim.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "unit/torch/capture/models.hpp"

#include "torch/ir/batch_norm_relu.hpp"
#include "torch/replay/replay.hpp"

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
    register_module("norm", norm);
    register_module("other", other);
    register_module("conv", conv);
    for (auto& parameter : parameters()) parameter.data().normal_();
  }
  Tensors run(const Tensors& in) override { return forward(*this, in[0]); }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, kChannels, 3, 5})}; }
};

/// Operators of that name whose result is of floating point: norms also count the batches.
std::int64_t count(const OpGraph& graph, std::string_view name) {
  std::int64_t found = 0;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const auto op = OpId::of(i);
    if (graph.is(op, name) && c10::isFloatingType(graph.value(graph.output(op)).dtype)) ++found;
  }
  return found;
}

OpGraph captured(Net& net) {
  return capture(net, specs(net.arguments(kSamples)), [&](const Tensors& in) { return net.run(in); });
}

/// Results, gradients of all parameters, and buffers, from the same start.
Tensors trained(Net& net, const OpGraph& graph, const Tensors& in) {
  Tensors buffers;
  for (const auto& buffer : net.buffers()) buffers.push_back(buffer.clone());
  Replayer replayer(graph, all_ops(graph), graph.outputs, at::kCPU);
  auto environment = replayer.environment();
  bind_state(graph, net, environment);
  for (std::size_t i = 0; i < in.size(); ++i) environment[graph.inputs[i].index()] = in[i];
  replayer.run(environment, {kSamples, kSamples});
  net.zero_grad();
  Tensors out;
  Tensor sum = torch::zeros({});
  for (const auto output : graph.outputs) {
    const auto& result = environment[output.index()];
    sum = sum + (result * torch::arange(1, result.numel() + 1, result.options()).view_as(result).cos()).sum();
    out.push_back(result.detach().clone());
  }
  sum.backward();
  for (const auto& parameter : net.parameters())
    out.push_back(parameter.grad().defined() ? parameter.grad().clone() : torch::zeros({}));
  std::size_t next = 0;
  for (auto& buffer : net.buffers()) {
    out.push_back(buffer.clone());
    buffer.copy_(buffers[next++]);
  }
  return out;
}

struct Form {
  std::string name;
  Net::Forward forward;
  std::int64_t norms, additions, relus;  ///< that are left beside the joined operators
};

/// Joined and not joined programs make the same results, gradients and running statistics, to the bit.
void check(const Form& form) {
  INFO(form.name);
  Net net(form.forward);
  const auto plain = captured(net);
  const auto joined = fold_batch_norms(plain);
  CHECK(count(joined, kBatchNormRelu) + count(joined, "aten::batch_norm") == count(plain, "aten::batch_norm"));
  CHECK(count(joined, "aten::batch_norm") == form.norms);
  CHECK(count(joined, "aten::add") + count(joined, "aten::add_") == form.additions);
  CHECK(count(joined, "aten::relu") + count(joined, "aten::relu_") == form.relus);
  const auto in = net.arguments(kSamples);
  const auto expected = trained(net, plain, in), made = trained(net, joined, in);
  REQUIRE(made.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO(i);
    CHECK(torch::equal(made[i], expected[i]));
  }
}

}  // namespace batch_norm_fold

TEST_CASE("a batch norm, an addition and ReLU become one operator that makes the same", "[rewrite]") {
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

TEST_CASE("what lies behind a batch norm stays apart where joining would change something", "[rewrite]") {
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

TEST_CASE("batch norms that use their running statistics are left alone", "[rewrite]") {
  using namespace batch_norm_fold;
  Net net([](Net& n, const Tensor& x) { return Tensors{torch::relu(n.norm(x))}; });
  net.eval();
  const auto plain = captured(net);
  CHECK(fold_batch_norms(plain).hash() == plain.hash());
}

}  // namespace autopar::test
