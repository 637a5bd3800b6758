#include "torch/interpret/view_parts.hpp"

#include <map>
#include <string>
#include <vector>

#include <ATen/record_function.h>
#include <torch/torch.h>

#include <catch_shim.hpp>

#include "torch/algebra/batch_algebra.hpp"
#include "torch/capture/capture.hpp"
#include "torch/interpret/op_interpreter.hpp"
#include "torch/rewrite/select_fold.hpp"

namespace autopar::test {
namespace view_parts_test {

using Tensors = std::vector<at::Tensor>;

/// Queries, keys and values of one product, as users take them apart.
struct Heads : torch::nn::Module {
  enum class Way { kUnbind, kSelect, kChunk, kOneUnread };
  explicit Heads(Way taken) : way(taken) {
    register_module("product", product);
    product->to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto all = product->forward(x).view({x.size(0), x.size(1), 3, 2, 4}).permute({2, 0, 3, 1, 4});
    if (way == Way::kUnbind) {
      const auto parts = all.unbind(0);
      return torch::scaled_dot_product_attention(parts[0], parts[1], parts[2])
          .transpose(1, 2)
          .reshape({x.size(0), -1})
          .sum(1);
    }
    if (way == Way::kChunk) {
      const auto parts = all.chunk(3, 0);
      return (parts[0] * parts[1].tanh() + parts[2].exp()).sum({0, 2, 3, 4});
    }
    if (way == Way::kOneUnread) {
      const auto parts = all.unbind(0);
      return (parts[0] * parts[1].tanh()).sum({1, 2, 3});
    }
    return torch::scaled_dot_product_attention(all[0], all[1], all[-1]).transpose(1, 2).reshape({x.size(0), -1}).sum(1);
  }
  Way way;
  torch::nn::Linear product{8, 24};
};

/// Operators that run while it lives, by name.
class OperatorCount {
 public:
  OperatorCount() {
    counts().clear();
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function) {
      ++counts()[function.name()];
      return std::unique_ptr<at::ObserverContext>();
    }));
  }
  ~OperatorCount() { at::removeCallback(handle_); }
  int of(const std::string& name) const { return counts()[name]; }

 private:
  static std::map<std::string, int>& counts() {
    static std::map<std::string, int> all;
    return all;
  }
  at::CallbackHandle handle_;
};

OpGraph captured(Heads& net, const at::Tensor& x) {
  return capture(net, {input_spec(x)}, [&](const Tensors& in) -> Tensors { return {net.forward(in[0])}; });
}

/// Gradients of the weight and the argument.
Tensors gradients(Heads& net, const at::Tensor& x, const at::Tensor& result) {
  return torch::autograd::grad({result.sum()}, {net.product->weight, x});
}

struct Run {
  Tensors gradients;
  int clones = 0;  ///< in the backward
};

Run run_graph(Heads& net, const OpGraph& graph, const at::Tensor& x) {
  const auto plan = analyze_batch(graph);
  OpInterpreter runner(graph, plan, all_ops(graph), graph.outputs, at::kCPU);
  auto values = runner.environment();
  bind_state(graph, net, values);
  values[graph.inputs[0].index()] = x;
  std::vector<NormSample> statistics;
  SliceContext slice;
  slice.samples = slice.batch = x.size(0);
  runner.run(values, slice, statistics);
  const OperatorCount count;
  Run out{gradients(net, x, values[graph.outputs[0].index()])};
  out.clones = count.of("aten::clone");
  return out;
}

TEST_CASE("gradients of parts come together where the whole lies, with the same bits and a copy less") {
  for (const auto way : {Heads::Way::kUnbind, Heads::Way::kChunk, Heads::Way::kOneUnread}) {
    CAPTURE(static_cast<int>(way));
    torch::manual_seed(1);
    Heads net(way);
    const auto x = torch::randn({5, 3, 8}, torch::kDouble).requires_grad_();
    Tensors eager;
    int clones = 0;
    {
      const auto result = net.forward(x);
      const OperatorCount count;
      eager = gradients(net, x, result);
      clones = count.of("aten::clone");
    }
    const auto got = run_graph(net, captured(net, x), x);
    for (std::size_t i = 0; i < eager.size(); ++i) CHECK(torch::equal(got.gradients[i], eager[i]));
    CHECK(got.clones < clones);
  }
}

TEST_CASE("selections that take all of a dimension become one unbind") {
  torch::manual_seed(1);
  Heads net(Heads::Way::kSelect);
  const auto x = torch::randn({5, 3, 8}, torch::kDouble).requires_grad_();
  const auto eager = gradients(net, x, net.forward(x));
  const auto graph = captured(net, x);
  const auto folded = fold_selects(graph);
  const auto count = [](const OpGraph& of, const char* name) {
    int found = 0;
    for (std::size_t i = 0; i < of.ops.size(); ++i) found += of.is(OpId::of(i), name) ? 1 : 0;
    return found;
  };
  CHECK(count(graph, "aten::select") == 3);
  CHECK(count(folded, "aten::select") == 0);
  CHECK(count(folded, "aten::unbind") == 1);
  const auto got = run_graph(net, folded, x);
  for (std::size_t i = 0; i < eager.size(); ++i) CHECK(torch::equal(got.gradients[i], eager[i]));
}

/// Selections that must stay: some of a dimension, of the batch, of memory that is written.
struct Stays : torch::nn::Module {
  explicit Stays(int chosen) : which(chosen) { register_module("product", product); }
  at::Tensor forward(const at::Tensor& x) {
    auto all = product->forward(x).view({x.size(0), 3, 4}).tanh();
    if (which == 0) return (all.select(1, 0) * all.select(1, 2)).sum(1);
    if (which == 1) return (all.select(1, 0) + all.select(1, 1) * all.select(1, 2) * all.select(1, 1)).sum(1);
    const auto first = all.select(1, 0) * 1;
    all.mul_(2);
    return (first + all.select(1, 1) + all.select(1, 2)).sum(1);
  }
  int which;
  torch::nn::Linear product{8, 12};
};

TEST_CASE("selections of some elements, twice of one, or of memory that is written stay") {
  for (const int which : {0, 1, 2}) {
    CAPTURE(which);
    Stays net(which);
    const auto graph = capture(net, {input_spec(torch::randn({5, 8}))},
                               [&](const Tensors& in) -> Tensors { return {net.forward(in[0])}; });
    CHECK(fold_selects(graph).hash() == graph.hash());
  }
}

}  // namespace view_parts_test
}  // namespace autopar::test
