#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>
#include <tensor_forms.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "unit/torch/capture/models.hpp"

#include "capture/algebra/batch_algebra.hpp"
#include "torch/passes/class_loss_fold.hpp"
#include "torch/passes/linear_fold.hpp"
#include "torch/passes/select_fold.hpp"
#include "torch/tensor_parallel/tensor_candidates.hpp"

namespace autopar::test {
namespace {

/// "units: parameter/dim …", one a candidate.
std::vector<std::string> found_in(const OpGraph& graph,
                                  tensor_parallel::SingleLayers singles = tensor_parallel::SingleLayers::kByOutputs) {
  std::vector<std::string> found;
  for (const auto& candidate : tensor_parallel::find_tensor_candidates(graph, algebra::analyze_batch(graph), singles)) {
    std::string text = std::to_string(candidate.units) + ":";
    std::vector<std::string> names;
    for (const auto& [leaf, slices] : candidate.leaves) {
      names.push_back(" " + graph.value(leaf).name + "/" + std::to_string(slices.dim));
    }
    std::ranges::sort(names);
    for (const auto& name : names) text += name;
    found.push_back(text);
  }
  return found;
}

void require_found(const std::vector<tensor_forms::Form>& forms,
                   tensor_parallel::SingleLayers singles = tensor_parallel::SingleLayers::kByOutputs) {
  for (const auto& form : forms) {
    INFO(form.name);
    tensor_forms::Net net(form);
    const auto [x, y] = tensor_forms::Net::batch(3);
    const auto graph = passes::fold_class_loss(passes::fold_selects(passes::fold_linear(
        trace::capture(net, {trace::input_spec(x), trace::input_spec(y)},
                       [&](const Tensors& in) -> Tensors { return {net.forward(in[0], in[1])}; }))));
    CHECK(found_in(graph, singles) == std::vector{form.cut});
  }
}

}  // namespace

TEST_CASE("find_tensor_candidates: each parameter is in one candidate", "[tensor_parallel]") {
  struct Net : TestModel {
    torch::nn::Embedding table{11, 8};
    torch::nn::Linear qkv{8, 24}, out{8, 8}, up{8, 16}, down{16, 8}, alone{8, 8}, head{8, 30};
    Net() {
      nets::register_all(*this, "table", table, "qkv", qkv, "out", out, "up", up, "down", down, "alone", alone, "head",
                         head);
    }
    Tensors run(const Tensors& in) override {
      auto x = table(in[0]);
      auto p = qkv(x).view({x.size(0), 5, 3, 4, 2}).permute({2, 0, 3, 1, 4}).unbind(0);
      x = x + out(at::scaled_dot_product_attention(p[0], p[1], p[2]).transpose(1, 2).flatten(2));
      x = x + down(torch::gelu(up(x)));
      x = torch::softmax(alone(x), -1);
      return {torch::nn::functional::cross_entropy(head(x).flatten(0, 1), in[1].flatten())};
    }
    Tensors arguments(std::int64_t n) override { return {torch::randint(11, {n, 5}), torch::randint(30, {n, 5})}; }
  } net;
  const auto in = net.arguments(2);
  const auto graph =
      passes::fold_linear(trace::capture(net, specs(in), [&](const Tensors& arguments) { return net.run(arguments); }));
  const std::vector<std::string> wanted{"11: table.weight/0", "4: out.weight/1 qkv.bias/0 qkv.weight/0",
                                        "16: down.weight/1 up.bias/0 up.weight/0", "30: head.bias/0 head.weight/0"};
  CHECK((found_in(graph) == wanted));

  std::vector<std::string> with_alone = wanted;
  with_alone.insert(with_alone.end() - 1, "8: alone.weight/1");
  CHECK((found_in(graph, tensor_parallel::SingleLayers::kByInputs) == with_alone));
}

TEST_CASE("find_tensor_candidates: every dim may be 0 or 1", "[tensor_parallel]") {
  struct Net : TestModel {
    std::int64_t tokens, inputs, heads, width, hidden, classes;
    at::Tensor qkv, out, up, down, head;
    Net(std::int64_t t, std::int64_t i, std::int64_t h, std::int64_t w, std::int64_t f, std::int64_t c)
        : tokens(t),
          inputs(i),
          heads(h),
          width(w),
          hidden(f),
          classes(c),
          qkv(register_parameter("qkv", torch::randn({3 * h * w, i}))),
          out(register_parameter("out", torch::randn({i, h * w}))),
          up(register_parameter("up", torch::randn({2 * f, i}))),
          down(register_parameter("down", torch::randn({i, f}))),
          head(register_parameter("head", torch::randn({c, i}))) {}
    Tensors run(const Tensors& in) override {
      auto x = in[0];
      const auto n = x.size(0);
      const auto p = torch::linear(x, qkv).split_with_sizes({heads * width, heads * width, heads * width}, -1);
      const auto of_heads = [&](const at::Tensor& part) {
        return part.view({n, tokens, heads, width}).transpose(1, 2);
      };
      const auto scores = torch::matmul(of_heads(p[0]), of_heads(p[1]).transpose(-2, -1)).softmax(-1);
      const auto mixed = torch::matmul(scores, of_heads(p[2])).transpose(1, 2).reshape({n, tokens, heads * width});
      x = x + torch::linear(mixed, out);
      x = x + torch::linear(torch::glu(torch::linear(x, up), -1), down);
      return {torch::linear(x, head).log_softmax(-1).sum()};
    }
    Tensors arguments(std::int64_t n) override { return {torch::randn({n, tokens, inputs})}; }
  };
  constexpr std::array<std::int64_t, 6> kOrdinary{5, 8, 4, 2, 16, 30};
  int run = 0;
  for (std::size_t dim = 0; dim < kOrdinary.size(); ++dim) {
    for (const std::int64_t size : {0, 1}) {
      auto s = kOrdinary;
      s[dim] = size;
      INFO("dim " << dim << " of " << size);
      Net net(s[0], s[1], s[2], s[3], s[4], s[5]);
      try {
        net.run(net.arguments(2));
      } catch (const c10::Error&) {
        continue;
      }
      ++run;
      const auto graph = passes::fold_class_loss(passes::fold_selects(passes::fold_linear(
          trace::capture(net, specs(net.arguments(2)), [&](const Tensors& in) { return net.run(in); }))));
      for (const auto singles : {tensor_parallel::SingleLayers::kByOutputs, tensor_parallel::SingleLayers::kByInputs}) {
        for (const auto& candidate :
             tensor_parallel::find_tensor_candidates(graph, algebra::analyze_batch(graph), singles)) {
          CHECK(candidate.units > 1);
        }
      }
    }
  }
  CHECK(run == 12);
}

TEST_CASE("find_tensor_candidates: single layers are row-parallel", "[tensor_parallel]") {
  require_found(tensor_forms::single_layers(), tensor_parallel::SingleLayers::kByInputs);
  struct Net : TestModel {
    torch::Tensor scale = register_parameter("scale", torch::ones({9}));
    torch::nn::Linear head;
    explicit Net(std::int64_t classes) : head(register_module("head", torch::nn::Linear(9, classes))) {}
    Tensors run(const Tensors& in) override {
      return {torch::nn::functional::cross_entropy(head(in[0] * scale), in[1])};
    }
    Tensors arguments(std::int64_t n) override { return {torch::randn({n, 9}), torch::zeros({n}, torch::kLong)}; }
  };
  for (const std::int64_t classes : {4, 5}) {
    Net net(classes);
    const auto graph = passes::fold_linear(
        trace::capture(net, specs(net.arguments(2)), [&](const Tensors& arguments) { return net.run(arguments); }));
    const auto found = tensor_parallel::find_tensor_candidates(graph, algebra::analyze_batch(graph),
                                                               tensor_parallel::SingleLayers::kByInputs);
    REQUIRE(found.size() == 1);
    CHECK(found.front().by_inputs == (classes == 4));
    CHECK(found.front().units == (classes == 4 ? 9 : 5));
    CHECK(found.front().spread.size() ==
          (classes == 4 ? 1 : 0));  // of the features, whose gradient is brought together
    CHECK(found.front().copied.size() == (classes == 4 ? 0 : 1));
    const double part = classes == 4 ? 36.0 / (36 + 4 + 9) : 0;
    CHECK(tensor_parallel::share_by_inputs(graph, algebra::analyze_batch(graph)) == part);
    CHECK(found_in(graph) == std::vector{std::to_string(classes) + ": head.bias/0 head.weight/0"});
  }
}

TEST_CASE("find_tensor_candidates: attention in any spelling", "[tensor_parallel]") {
  require_found(tensor_forms::attention());
}

TEST_CASE("find_tensor_candidates: feed-forward, gated and chunked", "[tensor_parallel]") {
  require_found(tensor_forms::feed_forward());
}

TEST_CASE("find_tensor_candidates: class heads of one or two operators", "[tensor_parallel]") {
  require_found(tensor_forms::class_heads());
}

}  // namespace autopar::test
