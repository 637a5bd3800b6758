#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include <autopar/core/error.hpp>
#include <catch_shim.hpp>

#include "unit/torch/capture/models.hpp"

#include "capture/trace/capture.hpp"
#include "capture/trace/polymorphism.hpp"

namespace autopar::test {
namespace {

using at::Tensor;
using Catch::Matchers::Contains;
using torch::indexing::Slice;

struct Refusal {
  std::string op, path, reason;
};

template <class Function>
Refusal refusal(Function function) {
  auto model = model_of(function);
  try {
    (void)capture_model(*model);
  } catch (const CaptureError& error) {
    return {error.op(), error.path(), error.reason()};
  }
  FAIL("captured what it should refuse");
  return {};
}

struct Square : torch::autograd::Function<Square> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x * x; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list g) {
    return {g[0] * 100};
  }
};

/// Branches on a flag that is a buffer, or the way out of its refusal.
struct Flagged : TestModel {
  explicit Flagged(bool reads_buffer) : in_buffer(reads_buffer) {
    register_module("a", a);
    flag = register_buffer("initialized", torch::ones({}, torch::kBool));
  }
  std::vector<Tensor> run(const std::vector<Tensor>& in) override {
    return {(in_buffer ? flag.item<bool>() : initialized) ? a(in[0]).sum() : a(in[0]).mean()};
  }
  std::vector<Tensor> arguments(std::int64_t n) override { return {torch::randn({n, 4})}; }
  torch::nn::Linear a{4, 8};
  Tensor flag;
  bool in_buffer, initialized = true;
};

}  // namespace

TEST_CASE("capture: reading data is refused with a way out", "[refusal]") {
  SECTION("item on a buffer: the way out is a plain member") {
    Flagged buffer(true), plain(false);
    try {
      (void)capture_model(buffer);
      FAIL("captured what it should refuse");
    } catch (const CaptureError& error) {
      REQUIRE(error.op() == "aten::item");
      REQUIRE(error.path() == "initialized");
      REQUIRE_THAT(error.reason(), Contains("plain member of the module (bool"));
    }
    REQUIRE_NOTHROW((void)capture_model(plain));
  }
  SECTION("item") {
    const auto r = refusal([](Tensor y, Tensor) { return y.sum().item<float>() > 0 ? y.sum() : -y.sum(); });
    REQUIRE(r.op == "aten::item");
    REQUIRE(r.path == "a.bias");
    REQUIRE_THAT(r.reason, Contains("torch::where"));
  }
  SECTION("a tensor as condition") {
    const auto r = refusal([](Tensor y, Tensor) { return (y.sum() > 0).is_nonzero() ? y.sum() : -y.sum(); });
    REQUIRE(r.op == "aten::is_nonzero");
  }
  SECTION("allclose") {
    REQUIRE(refusal([](Tensor y, Tensor x) { return torch::allclose(y, x) ? y.sum() : -y.sum(); }).op ==
            "aten::allclose");
  }
  SECTION("nonzero") {
    REQUIRE(refusal([](Tensor y, Tensor) { return y.nonzero().sum(); }).op == "aten::nonzero");
  }
  SECTION("where with one argument") {
    REQUIRE(refusal([](Tensor y, Tensor) { return torch::where(y > 0)[0].sum(); }).op == "aten::where");
  }
  SECTION("index with a mask") {
    REQUIRE(refusal([](Tensor y, Tensor) { return y.index({y > 0}).sum(); }).op == "aten::index");
  }
  SECTION("masked_select") {
    REQUIRE(refusal([](Tensor y, Tensor) { return y.masked_select(y > 0).sum(); }).op == "aten::masked_select");
  }
  SECTION("unique") {
    REQUIRE(refusal([](Tensor y, Tensor) { return std::get<0>(at::_unique2(y)).sum(); }).op == "aten::_unique2");
  }
  SECTION("repeat_interleave with counts") {
    REQUIRE(refusal([](Tensor y, Tensor) { return y.repeat_interleave(y.argmax(1), 0).sum(); }).op ==
            "aten::repeat_interleave");
  }
  SECTION("one_hot without classes") {
    REQUIRE(refusal([](Tensor y, Tensor) { return torch::one_hot(y.argmax(1)).sum(); }).op == "aten::one_hot");
  }
  SECTION("a data pointer") {
    REQUIRE_THAT(refusal([](Tensor y, Tensor) { return y * y.data_ptr<float>()[0]; }).reason,
                 Contains("no data to read"));
  }
}

TEST_CASE("capture: a constant of the model may be read", "[refusal]") {
  const auto scale = torch::tensor(3.0f);
  auto model = model_of([scale](Tensor y, Tensor) { return (y * scale.item<float>()).sum(); });
  REQUIRE_NOTHROW(capture_model(*model));
}

TEST_CASE("capture: what cannot be replayed is refused by name", "[refusal]") {
  SECTION("custom autograd Function") {
    const auto r = refusal([](Tensor y, Tensor) { return Square::apply(y).sum(); });
    REQUIRE_THAT(r.op, Contains("Square"));
    REQUIRE_THAT(r.reason, Contains("autograd::Function"));
  }
  SECTION("custom autograd Function as the result") {
    REQUIRE_THAT(refusal([](Tensor y, Tensor) { return Square::apply(y); }).op, Contains("Square"));
  }
  SECTION("hook on a value") {
    REQUIRE(refusal([](Tensor y, Tensor) {
              y.register_hook([](Tensor g) { return g * 2; });
              return y.sum();
            }).op == "register_hook");
  }
  SECTION("backward inside") {
    REQUIRE(refusal([](Tensor y, Tensor) {
              y.sum().backward();
              return y.sum();
            }).op == "backward");
  }
  SECTION("requires_grad_") {
    REQUIRE(refusal([](Tensor y, Tensor) { return y.detach().requires_grad_(true).sum(); }).op == "requires_grad_");
  }
  SECTION("writing the argument") {
    const auto r = refusal([](Tensor y, Tensor x) { return (x.mul_(2.0) + y).sum(); });
    REQUIRE(r.op == "aten::mul_");
    REQUIRE_THAT(r.reason, Contains("clone"));
  }
  SECTION("writing a view of the argument") {
    REQUIRE(refusal([](Tensor y, Tensor x) {
              x.select(1, 0).zero_();
              return (x + y).sum();
            }).op == "aten::zero_");
  }
  SECTION("writing a tensor that is no buffer") {
    const auto counter = torch::zeros({1});
    const auto r = refusal([counter](Tensor y, Tensor) {
      at::Tensor(counter).add_(1.0);
      return y.sum();
    });
    REQUIRE_THAT(r.reason, Contains("register_buffer"));
    REQUIRE(counter.item<float>() == 0);
  }
  SECTION("operators that write without returning") {
    REQUIRE(refusal([](Tensor y, Tensor) {
              std::vector<Tensor> list{y.clone()};
              at::_foreach_add_(list, 1.0);
              return list[0].sum();
            }).op == "aten::_foreach_add_");
  }
  SECTION("CUDA autocast") {
    REQUIRE(refusal([](Tensor y, Tensor) {
              at::autocast::set_autocast_enabled(at::kCUDA, true);
              struct Off {
                ~Off() { at::autocast::set_autocast_enabled(at::kCUDA, false); }
              } off;
              return y.sum();
            }).op == "autocast");
  }
  SECTION("a tensor of an earlier forward") {
    auto kept = std::make_shared<Tensor>();
    REQUIRE_THAT(refusal([kept](Tensor y, Tensor) {
                   auto previous = kept->defined() ? *kept : torch::zeros({8});
                   *kept = y.sum(0);
                   return (y * previous).sum();
                 }).reason,
                 Contains("earlier forward"));
  }
  SECTION("lengths of sequences") {
    REQUIRE(refusal([](Tensor y, Tensor) {
              const auto lengths = torch::full({y.size(0)}, y.size(1), torch::kLong);
              return std::get<0>(torch::_pack_padded_sequence(y.unsqueeze(-1), lengths, true)).sum();
            }).op == "aten::_pack_padded_sequence");
  }
  SECTION("a gradient within the forward") {
    REQUIRE_THAT(refusal([](Tensor y, Tensor) {
                   return y + torch::autograd::grad({y.pow(2).sum()}, {y}, {}, true, true)[0];
                 }).reason,
                 Contains("inside the forward"));
  }
  SECTION("libtorch's own error") {
    const auto r = refusal([](Tensor y, Tensor) { return y.mm(torch::ones({3, 3})); });
    REQUIRE(r.op == "aten::mm");
    REQUIRE_THAT(r.reason, Contains("mat1 and mat2"));
  }
}

TEST_CASE("capture: hooks on parameters are refused", "[refusal]") {
  Mlp model;
  model.a->weight.register_hook([](Tensor g) { return g; });
  REQUIRE_THROWS_WITH(capture_model(model), Contains("register_hook") && Contains("a.weight"));
}

TEST_CASE("capture: sizes not affine in the batch are refused", "[refusal][polymorphism]") {
  const auto n = [](const Tensor& x) { return x.size(0); };
  SECTION("half the batch") {
    const auto r = refusal([n](Tensor y, Tensor x) { return y.index({Slice(0, n(x) / 2)}).sum(); });
    REQUIRE(r.op == "aten::slice");
    REQUIRE_THAT(r.reason, Contains("'end'"));
  }
  SECTION("one over the root of the batch") {
    const auto r = refusal([n](Tensor y, Tensor x) { return y.sum() * (1.0 / std::sqrt(static_cast<double>(n(x)))); });
    REQUIRE(r.op == "aten::mul");
    REQUIRE_THAT(r.reason, Contains("t.sum() / t.size(0)"));
  }
  SECTION("a square of the batch that is no product of two numbers of it") {
    REQUIRE(refusal([n](Tensor y, Tensor x) { return y.sum() / (n(x) * n(x) + 1); }).op == "aten::div");
  }
  SECTION("a loop over samples") {
    (void)refusal([n](Tensor y, Tensor x) {
      auto sum = y[0].sum();
      for (std::int64_t i = 1; i < n(x); ++i) sum = sum + y[i].sum();
      return sum;
    });
  }
  SECTION("a loop over samples, with something behind it") {
    const auto r = refusal([n](Tensor y, Tensor x) {
      auto sum = y[0].sum();
      for (std::int64_t i = 1; i < n(x); ++i) sum = sum + y[i].sum();
      return (sum * 2).relu();
    });
    REQUIRE(r.op == "aten::select");  // of the loop, not what follows
    REQUIRE_THAT(r.reason, Contains("loop") && !Contains("12") && !Contains("batch 7"));
  }
  SECTION("unbind") {
    REQUIRE(refusal([](Tensor y, Tensor) { return torch::stack(y.unbind(0)).sum(); }).op == "aten::unbind");
  }
  SECTION("halves") {
    (void)refusal([](Tensor y, Tensor) {
      auto halves = y.chunk(2, 0);
      return (halves[0] * halves[0]).sum() + halves[1].sum();
    });
  }
  SECTION("a branch") {
    (void)refusal([n](Tensor y, Tensor x) { return n(x) > 8 ? y.relu().sum() : y.tanh().sum(); });
  }
  SECTION("a slice that the batch outgrows") {
    (void)refusal([](Tensor y, Tensor) { return y.index({Slice(0, 10)}).sum(); });
  }
  SECTION("a correction of the batch") {
    const auto r = refusal(
        [n](Tensor y, Tensor x) { return y.sum() * (static_cast<double>(n(x)) / static_cast<double>(n(x) - 1)); });
    REQUIRE(r.op == "aten::mul");
    REQUIRE_THAT(r.reason, Contains("k / (a * batch + c)"));
  }
  SECTION("a probability made of the batch") {
    REQUIRE(refusal([n](Tensor y, Tensor x) {
              return torch::dropout(y, 1.0 / static_cast<double>(n(x)), true).sum();
            }).op == "aten::dropout");
  }
}

TEST_CASE("capture: the batch size as a float is the global batch", "[polymorphism]") {
  for (const bool in_tensor : {false, true}) {
    auto model = model_of([in_tensor](Tensor y, Tensor x) {
      const auto n = static_cast<double>(x.size(0));
      return in_tensor ? y.sum() / torch::tensor({n, 1.0})[0] : y.sum() / (2 * n);
    });
    const auto graph =
        trace::capture(*model, specs(model->arguments(4)), [&](const Tensors& in) { return model->run(in); });
    std::vector<SizeExpr> found;
    for (const auto& op : graph.ops) {
      for (const auto& integer : op.integers) {
        if (integer.role == IntegerRole::kArithmetic) found.push_back(integer.expr);
      }
    }
    REQUIRE(found.size() == 1);
    REQUIRE((found.front() == SizeExpr{in_tensor ? 1 : 2, 0}));
  }
}

TEST_CASE("verify_capture: a copy omitted at batch one is equal", "[polymorphism]") {
  auto model = model_of([](Tensor y, Tensor) { return y.t().contiguous().view({-1}).tanh().sum(); });
  const auto forward = [&](const Tensors& in) { return model->run(in); };
  const auto inputs = specs(model->arguments(4));
  const auto graph = trace::capture(*model, inputs, forward);
  const std::vector<std::int64_t> one{1};
  REQUIRE_NOTHROW(trace::verify_capture(graph, *model, inputs, forward, one));
}

TEST_CASE("verify_capture: a branch is found at the plan's batch sizes", "[polymorphism]") {
  auto model = model_of([](Tensor y, Tensor x) { return x.size(0) < 5 ? y.relu().sum() : y.tanh().sum(); });
  const auto forward = [&](const Tensors& in) { return model->run(in); };
  const auto inputs = specs(model->arguments(4));
  const auto graph = trace::capture(*model, inputs, forward);
  const std::vector<std::int64_t> good{5, 6, 100}, bad{6, 4};
  REQUIRE_NOTHROW(trace::verify_capture(graph, *model, inputs, forward, good));
  REQUIRE_THROWS_WITH(trace::verify_capture(graph, *model, inputs, forward, bad),
                      Contains("batch 4") && Contains("aten::tanh"));
}

TEST_CASE("verify_capture: state cached by batch size is found", "[polymorphism]") {
  auto state = std::make_shared<Tensor>();
  for (const bool reads : {false, true}) {
    auto model = model_of([state, reads](Tensor y, Tensor) {
      const bool made = state->defined() && state->size(0) == y.size(0);
      auto h = y + (made && reads ? *state : torch::zeros_like(y));
      *state = h.detach();
      return h.sum();
    });
    const auto forward = [&](const Tensors& in) { return model->run(in); };
    const auto inputs = specs(model->arguments(4));
    const auto graph = trace::capture(*model, inputs, forward);
    const std::vector<std::int64_t> sizes{5};
    if (reads)
      REQUIRE_THROWS_WITH(trace::verify_capture(graph, *model, inputs, forward, sizes), Contains("earlier forward"));
    else
      REQUIRE_NOTHROW(trace::verify_capture(graph, *model, inputs, forward, sizes));
  }
}

TEST_CASE("verify_capture: batch-independent models pass at any size", "[polymorphism]") {
  const auto require = [](auto model) {
    const auto forward = [&](const Tensors& in) { return model->run(in); };
    const auto inputs = specs(model->arguments(4));
    const auto graph = trace::capture(*model, inputs, forward);
    const std::vector<std::int64_t> sizes{1, 2, 3, 5, 64};
    REQUIRE_NOTHROW(trace::verify_capture(graph, *model, inputs, forward, sizes));
  };
  require(std::make_shared<Mlp>());
  require(std::make_shared<ResNet>());
  require(std::make_shared<Transformer>());
  require(std::make_shared<Lstm>());
  require(std::make_shared<Embedded>());
}

TEST_CASE("verify_capture: a written view that may be a copy is refused", "[polymorphism]") {
  // reshape of a transpose: a copy, but a view when the transposed dimension has one element
  const auto make = [](bool writes) {
    return model_of([writes](Tensor y, Tensor) {
      auto base = y + 1.0;
      auto flat = base.t().reshape({-1});
      if (writes) flat.mul_(2.0);
      return flat.sum() + base.sum();
    });
  };
  const std::vector<std::int64_t> one{1};
  for (const bool writes : {false, true}) {
    auto model = make(writes);
    const auto forward = [&](const Tensors& in) { return model->run(in); };
    const auto inputs = specs(model->arguments(4));
    const auto graph = trace::capture(*model, inputs, forward);
    if (writes)
      REQUIRE_THROWS_WITH(trace::verify_capture(graph, *model, inputs, forward, one), Contains("shares memory"));
    else
      REQUIRE_NOTHROW(trace::verify_capture(graph, *model, inputs, forward, one));
  }
}

TEST_CASE("solve_affine: finds integers or nothing", "[polymorphism]") {
  REQUIRE(trace::solve_affine({7, 12, 18}, {7, 12, 18}) == SizeExpr{1, 0});
  REQUIRE(trace::solve_affine({7, 12, 18}, {20, 35, 53}) == SizeExpr{3, -1});
  REQUIRE(trace::solve_affine({7, 12, 18}, {4, 4, 4}) == SizeExpr{0, 4});
  REQUIRE_FALSE(trace::solve_affine({7, 12, 18}, {3, 6, 9}));
  REQUIRE_FALSE(trace::solve_affine({7, 12, 18}, {49, 144, 324}));
}

TEST_CASE("input_spec: takes negative dims, refuses missing ones", "[capture]") {
  const auto x = torch::zeros({2, 3, 4});
  REQUIRE(trace::input_spec(x, -1).batch_dim == 2);
  REQUIRE_FALSE(trace::input_spec(x, std::nullopt).batch_dim);
  REQUIRE_THROWS_AS(trace::input_spec(x, 3), InvalidArgument);
  REQUIRE_THROWS_AS(trace::input_spec(torch::tensor(1.0), 0), InvalidArgument);
}

}  // namespace autopar::test
