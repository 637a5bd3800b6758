#include <autopar/capture/module_paths.hpp>

#include <string>
#include <utility>
#include <vector>

#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <catch_shim.hpp>

#include <autopar/capture/capture.hpp>

namespace autopar::test {
namespace {

namespace nn = torch::nn;

/// Operators with their modules, in program order: "fc aten::linear".
template <class Net>
std::vector<std::string> places(Net net, const at::Tensor& in) {
  const auto program = capture(net, in);
  const auto& graph = program.graph();
  const auto paths = module_paths(graph);
  std::vector<std::string> out;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) out.push_back(paths[i] + " " + graph.name(OpId::of(i)));
  return out;
}

/// The modules of the operators of this name, in program order.
std::vector<std::string> modules_of(const std::vector<std::string>& places, const std::string& op) {
  std::vector<std::string> out;
  for (const auto& place : places) {
    if (place.ends_with(" " + op)) out.push_back(place.substr(0, place.find(' ')));
  }
  return out;
}

struct BlockWithResidual : nn::Module {
  BlockWithResidual() {
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({4})));
    up = register_module("up", nn::Linear(4, 8));
    down = register_module("down", nn::Linear(8, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(nn::functional::gelu(up(norm(x)))); }
  nn::LayerNorm norm{nullptr};
  nn::Linear up{nullptr}, down{nullptr};
};

struct Blocks : nn::Module {
  Blocks() {
    for (int i = 0; i < 3; ++i) blocks->push_back(std::make_shared<BlockWithResidual>());
    register_module("blocks", blocks);
    head = register_module("head", nn::Linear(4, 2));
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : *blocks) x = block->as<BlockWithResidual>()->forward(x);
    return head(torch::tanh(x)).sigmoid();
  }
  nn::ModuleList blocks;
  nn::Linear head{nullptr};
};

struct Head : nn::Module {
  explicit Head(const at::Tensor& words) { weight = register_parameter("weight", words); }
  at::Tensor forward(const at::Tensor& x) { return x.matmul(weight.t()); }
  at::Tensor weight;
};

struct TiedNet : nn::Module {
  TiedNet() {
    words = register_module("words", nn::Embedding(10, 4));
    mix = register_module("mix", nn::Linear(4, 4));
    head = register_module("head", std::make_shared<Head>(words->weight));
  }
  at::Tensor forward(const at::Tensor& x) { return head->forward(torch::relu(mix(words(x)))); }
  nn::Embedding words{nullptr};
  nn::Linear mix{nullptr};
  std::shared_ptr<Head> head;
};

struct ConvBlock : nn::Module {
  ConvBlock() {
    conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(2, 2, 3).padding(1).bias(false)));
    bn = register_module("bn", nn::BatchNorm2d(2));
  }
  at::Tensor forward(const at::Tensor& x) { return torch::relu(bn(conv(x)) + x); }
  nn::Conv2d conv{nullptr};
  nn::BatchNorm2d bn{nullptr};
};

TEST_CASE("module_paths: what ends a block belongs to it, also in the last one", "[module_paths]") {
  const auto found = places(std::make_shared<Blocks>(), torch::randn({3, 4}));
  const std::vector<std::string> each{"blocks.0", "blocks.1", "blocks.2"};
  CHECK(modules_of(found, "aten::add") == each);
  CHECK(modules_of(found, "aten::gelu") == each);
  CHECK(modules_of(found, "aten::tanh") == std::vector<std::string>{""});
  CHECK(modules_of(found, "aten::sigmoid") == std::vector<std::string>{""});
}

TEST_CASE("module_paths: operators that read parameters belong to their module", "[module_paths]") {
  const auto found = places(std::make_shared<Blocks>(), torch::randn({3, 4}));
  std::vector<std::string> products;
  for (const auto& place : found) {
    if (place.ends_with("aten::t") || place.ends_with("aten::addmm")) products.push_back(place);
  }
  REQUIRE(products.size() >= 14);
  CHECK(products.at(0) == "blocks.0.up aten::t");  // of parameters alone: where the result is read
  CHECK(products.at(1) == "blocks.0.up aten::addmm");
  CHECK(products.at(3) == "blocks.0.down aten::addmm");
  CHECK(products.back() == "head aten::addmm");
}

TEST_CASE("module_paths: a module without parameters has its number in a Sequential", "[module_paths]") {
  const auto found = places(nn::Sequential(nn::Linear(4, 4), nn::ReLU(), nn::Linear(4, 4)), torch::randn({3, 4}));
  CHECK(modules_of(found, "aten::relu") == std::vector<std::string>{"1"});
}

TEST_CASE("module_paths: a tied parameter belongs to each of its modules in turn", "[module_paths]") {
  const auto found = places(std::make_shared<TiedNet>(), torch::randint(0, 10, {3, 5}));
  CHECK(modules_of(found, "aten::embedding") == std::vector<std::string>{"words"});
  CHECK(modules_of(found, "aten::relu") == std::vector<std::string>{""});
  CHECK(found.back().starts_with("head "));
}

TEST_CASE("module_paths: residual blocks with batch norm", "[module_paths]") {
  nn::Sequential net(std::make_shared<ConvBlock>(), std::make_shared<ConvBlock>(), nn::Conv2d(2, 3, 1));
  const auto found = places(net, torch::randn({2, 2, 4, 4}));
  const auto relus = modules_of(found, "aten::relu");
  CHECK(relus == std::vector<std::string>{"0", "1"});
}

TEST_CASE("module_paths: a model without parameters is one module", "[module_paths]") {
  struct Plain : nn::Module {
    at::Tensor forward(const at::Tensor& x) { return x.relu().sum(1); }
  };
  for (const auto& place : places(std::make_shared<Plain>(), torch::randn({3, 4}))) CHECK(place.starts_with(' '));
}

}  // namespace
}  // namespace autopar::test
