#include "torch/autograd/view_parts.hpp"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/record_function.h>
#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "capture/trace/capture.hpp"
#include "torch/autograd/like_in_place.hpp"
#include "torch/interpret/op_interpreter.hpp"
#include "torch/passes/linear_fold.hpp"
#include "torch/passes/select_fold.hpp"

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
  return trace::capture(net, {trace::input_spec(x)},
                        [&](const Tensors& in) -> Tensors { return {net.forward(in[0])}; });
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
  const auto plan = algebra::analyze_batch(graph);
  interpret::OpInterpreter runner(graph, plan, replay::all_ops(graph), graph.outputs, at::kCPU);
  auto values = runner.environment();
  replay::bind_state(graph, net, values);
  values[graph.inputs[0].index()] = x;
  std::vector<interpret::NormSample> statistics;
  interpret::SliceContext slice;
  slice.samples = slice.batch = x.size(0);
  runner.run(values, slice, statistics);
  const OperatorCount count;
  Run out{gradients(net, x, values[graph.outputs[0].index()])};
  out.clones = count.of("aten::clone");
  return out;
}

TEST_CASE("view_parts: gradients of parts are joined with one copy less") {
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

/// Parts of a linear layer whose backward is in two parts: it computes in double precision on casts of its parameters.
struct Layer {
  using Read = std::function<at::Tensor(const at::Tensor& product)>;
  explicit Layer(Read of_product) : read(std::move(of_product)) {
    graph = passes::fold_linear(
        trace::capture(net, {trace::input_spec(x)}, [&](const Tensors& in) -> Tensors { return {forward(in[0])}; }));
    plan = algebra::analyze_batch(graph);
  }
  at::Tensor forward(const at::Tensor& in) const {
    const auto wide = [](const at::Tensor& tensor) { return tensor.to(torch::kDouble); };
    return read(torch::nn::functional::linear(wide(in), wide(net.layers[0]->weight), wide(net.layers[0]->bias)));
  }
  Tensors gradients(const at::Tensor& result) const {
    return torch::autograd::grad({result.sum()}, {net.layers[0]->weight, net.layers[0]->bias, x});
  }
  /// The operator that takes the product, or a view of it, apart.
  OpId taking_apart() const {
    for (const auto op : replay::all_ops(graph))
      if (autograd::takes_apart(graph, op)) return op;
    FAIL("nothing is taken apart");
    return OpId::none();
  }
  /// The values of a run.
  replay::Environment run(const std::vector<ValueId>& keep) const {
    runners.push_back(std::make_unique<interpret::OpInterpreter>(graph, plan, replay::all_ops(graph), keep, at::kCPU));
    auto values = runners.back()->environment();
    replay::bind_state(graph, net, values);
    values[graph.inputs[0].index()] = x;
    std::vector<interpret::NormSample> statistics;
    interpret::SliceContext slice;
    slice.samples = slice.batch = x.size(0);
    runners.back()->run(values, slice, statistics);
    return values;
  }
  /// Gradients of weight, bias and argument, and the name of the history that gradients of parts lead to.
  std::pair<Tensors, std::string> run() const {
    const auto part = graph.op(taking_apart()).outputs.at(0).values.at(0);
    const auto values = run({graph.outputs[0], part});
    return {gradients(values[graph.outputs[0].index()]), values[part.index()].grad_fn()->next_edge(0).function->name()};
  }

  nets::Linears net{8, {{"layer", 24}}};
  at::Tensor x = torch::randn({5, 3, 8}).requires_grad_();
  Read read;
  OpGraph graph;
  algebra::BatchSemantics plan;
  mutable std::vector<std::unique_ptr<interpret::OpInterpreter>> runners;  ///< histories refer to them
};

at::Tensor heads_of(const at::Tensor& product) {
  return product.view({product.size(0), 3, 3, 2, 4}).permute({2, 0, 3, 1, 4});
}
at::Tensor attention_of(const Tensors& parts) {
  return torch::scaled_dot_product_attention(parts[0], parts[1], parts[2]).flatten(1).sum(1);
}

TEST_CASE("view_parts: gradients go straight to the linear layer") {
  const std::vector<Layer::Read> ways{
      [](const at::Tensor& all) { return attention_of(heads_of(all).unbind(0)); },
      [](const at::Tensor& all) {
        return attention_of(all.view({all.size(0), 3, 2, 12}).transpose(1, 2).chunk(3, -1));
      },
      [](const at::Tensor& all) {  // one twice as wide
        const auto parts = all.unflatten(-1, {4, 6}).transpose(1, 2).split(std::vector<std::int64_t>{1, 2, 1}, 1);
        return (parts[0] * parts[1].tanh() + parts[2].exp()).flatten(1).sum(1);
      },
      [](const at::Tensor& all) {  // one read twice
        const auto parts = heads_of(all).unbind(0);
        return (parts[0] * parts[1].tanh() + parts[2].exp() * parts[1]).flatten(1).sum(1);
      },
      [](const at::Tensor& all) {  // two without a gradient
        const auto parts = heads_of(all).unbind(0);
        return (parts[0] + parts[1].detach()).flatten(1).sum(1);
      },
  };
  torch::manual_seed(2);
  for (std::size_t way = 0; way < ways.size(); ++way) {
    CAPTURE(way);
    const Layer layer(ways[way]);
    const auto [made, leads_to] = layer.run();
    CHECK(leads_to == "SplitBackward");
    const auto eager = layer.gradients(layer.forward(layer.x));
    CHECK(torch::equal(made[0], eager[0]));
    CHECK(torch::allclose(made[1], eager[1], 1e-6, 1e-7));  // its rows are added in another order
    CHECK(torch::equal(made[2], eager[2]));
  }
}

TEST_CASE("view_parts: other readers of a view, and non-views") {
  const std::vector<Layer::Read> ways{
      [](const at::Tensor& all) {
        const auto heads = heads_of(all);
        return attention_of(heads.unbind(0)) + heads.sum({0, 2, 3, 4});
      },
      [](const at::Tensor& all) {
        return attention_of(heads_of(all).unbind(0)) + all.sum({1, 2});
      },
      [](const at::Tensor& all) { return attention_of(heads_of(all * 2).unbind(0)); },
      [](const at::Tensor& all) { return attention_of(heads_of(all.mul_(2)).unbind(0)); },
      [](const at::Tensor& all) {  // not all of it
        const auto parts = all.narrow(2, 0, 16).view({all.size(0), 3, 2, 8}).permute({2, 0, 1, 3}).unbind(0);
        return (parts[0] * parts[1].tanh()).flatten(1).sum(1);
      },
  };
  torch::manual_seed(3);
  for (std::size_t way = 0; way < ways.size(); ++way) {
    CAPTURE(way);
    const Layer layer(ways[way]);
    const auto [made, leads_to] = layer.run();
    CHECK(leads_to != "SplitBackward");
    const auto eager = layer.gradients(layer.forward(layer.x));
    CHECK(torch::equal(made[0], eager[0]));
    CHECK(torch::allclose(made[1], eager[1], 1e-6, 1e-7));  // its rows are added in another order
    CHECK(torch::equal(made[2], eager[2]));
  }
}

/// Returns what it is given, a view with the memory's owner behind it; no libtorch's view.
struct Doubling : torch::autograd::Function<Doubling> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& given) { return given; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * 2};
  }
};

TEST_CASE("view_parts: a custom autograd function in between stays") {
  torch::manual_seed(4);
  const Layer layer([](const at::Tensor& all) { return attention_of(heads_of(all).unbind(0)); });
  const auto op = layer.taking_apart();
  const auto view = layer.graph.input(op, 0);
  Tensors of_x;
  for (const bool doubles : {false, true}) {
    const auto values = layer.run({view});
    const auto heads = values[view.index()];
    replay::Environment none;
    torch::jit::Stack stack{doubles ? Doubling::apply(heads) : heads, 0};
    replay::ReplayCall call{op, layer.graph.op(op), {5, 5}, stack, none};
    autograd::run_parts_of_linear(call);
    const auto parts = stack.at(0).toTensorVector();
    const auto leads_to = parts[0].grad_fn()->next_edge(0).function->name();
    CHECK((leads_to == "SplitBackward") == !doubles);
    of_x.push_back(torch::autograd::grad({attention_of(parts).sum()}, {layer.x})[0]);
  }
  CHECK(torch::equal(of_x[1], of_x[0] * 2));
}

/// Views of three parts, as attention reads them.
using Seen = std::function<Tensors(const Tensors& parts)>;

TEST_CASE("view_parts: gradients laid out as the base are not copied") {
  const std::vector<std::pair<Layer::Read, Seen>> ways{
      {[](const at::Tensor& all) { return attention_of(heads_of(all).unbind(0)); },
       [](const Tensors& parts) { return parts; }},
      {[](const at::Tensor& all) { return attention_of(heads_of(all).unbind(0)); },
       [](const Tensors& parts) {
         Tensors seen;
         for (const auto& part : parts)
           seen.push_back(part.transpose(1, 2).view({part.size(0), 3, 1, 2, 4}).squeeze(2));
         return seen;
       }},
      {[](const at::Tensor& all) {
         return attention_of(all.view({all.size(0), 3, 2, 12}).transpose(1, 2).chunk(3, -1));
       },
       [](const Tensors& parts) {
         return Tensors{parts[2].transpose(0, 1), parts[0], parts[1]};
       }},
  };
  torch::manual_seed(5);
  for (std::size_t way = 0; way < ways.size(); ++way) {
    CAPTURE(way);
    const Layer layer(ways[way].first);
    const auto op = layer.taking_apart();
    const auto whole = layer.graph.input(op, 0);
    std::vector<ValueId> keep{whole};
    for (const auto part : layer.graph.op(op).outputs.at(0).values) keep.push_back(part);
    const auto values = layer.run(keep);
    Tensors parts;
    for (std::size_t i = 1; i < keep.size(); ++i) parts.push_back(values[keep[i].index()]);
    const auto seen = ways[way].second(parts);
    const auto form = autograd::joined_form_of(seen);
    REQUIRE(form);
    auto made = form->made(), apart = made;
    for (std::size_t i = 0; i < made.size(); ++i) {
      CHECK(made[i].sizes() == seen[i].sizes());
      CHECK(made[i].strides() == seen[i].strides());
      apart[i] = made[i].normal_().clone();
    }
    const auto gradient_of_product = [&](const Tensors& given) {
      const at::Tensor product = whole.valid() && values[whole.index()].is_view()
                                     ? at::Tensor(values[whole.index()]._base())
                                     : values[whole.index()];
      return torch::autograd::grad(seen, {product}, given, /*retain_graph=*/true).at(0);
    };
    const auto joined = gradient_of_product(made), copied = gradient_of_product(apart);
    CHECK(torch::equal(joined, copied));
    CHECK(joined.is_alias_of(made[0]));
    CHECK_FALSE(copied.is_alias_of(apart[0]));
    CHECK_FALSE(autograd::joined_form_of({seen[0], seen[1]}));
    CHECK_FALSE(autograd::joined_form_of({seen[0], seen[1], seen[1]}));
    CHECK_FALSE(autograd::joined_form_of({seen[0], seen[1], seen[2].clone()}));
    CHECK_FALSE(autograd::joined_form_of({seen[0], seen[1], seen[2].narrow(2, 0, 1)}));
    CHECK_FALSE(autograd::joined_form_of({seen[0], seen[1], seen[2].detach()}));
    std::swap(made[1], made[2]);  // of the same form, elsewhere
    CHECK_FALSE(gradient_of_product(made).is_alias_of(made[0]));
  }
}

TEST_CASE("with_place_for_like: empty_like returns the given memory") {
  const auto x = torch::randn({2, 3, 4}).transpose(0, 1), memory = torch::zeros({3, 5, 4}).slice(1, 0, 2);
  const auto told = autograd::with_place_for_like(x, memory);
  CHECK(at::empty_like(told).is_same(memory));
  CHECK(torch::equal(told, x));
  CHECK_FALSE(at::empty_like(told, at::kDouble).is_alias_of(memory));
  CHECK(at::empty_like(told, at::kDouble).scalar_type() == at::kDouble);
  CHECK_FALSE(at::empty_like(x).is_alias_of(memory));
  CHECK_FALSE(at::empty_like(told + 1).is_alias_of(memory));
  CHECK_FALSE(at::empty_like(told.transpose(0, 2)).is_alias_of(memory));
}

TEST_CASE("fold_selects: selects of all indices become one unbind") {
  torch::manual_seed(1);
  Heads net(Heads::Way::kSelect);
  const auto x = torch::randn({5, 3, 8}, torch::kDouble).requires_grad_();
  const auto eager = gradients(net, x, net.forward(x));
  const auto graph = captured(net, x);
  const auto folded = passes::fold_selects(graph);
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

TEST_CASE("fold_selects: partial, repeated, written selects stay") {
  for (const int which : {0, 1, 2}) {
    CAPTURE(which);
    Stays net(which);
    const auto graph = trace::capture(net, {trace::input_spec(torch::randn({5, 8}))},
                                      [&](const Tensors& in) -> Tensors { return {net.forward(in[0])}; });
    CHECK(passes::fold_selects(graph).hash() == graph.hash());
  }
}

}  // namespace view_parts_test
}  // namespace autopar::test
