#include "torch/fused/pointwise/pointwise.hpp"

#include <torch/torch.h>

#include <catch_shim.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <autopar/core/error.hpp>

#include "unit/torch/fused/pointwise_programs.hpp"

#include "torch/fused/fused_ops.hpp"
#include "torch/fused/pointwise/code.hpp"
#include "torch/fused/pointwise/lowering.hpp"
#include "torch/fused/pointwise/program.hpp"

namespace autopar::test {
namespace pointwise_kernels {

using Tensors = std::vector<Tensor>;
using Call = std::function<Tensors(const Tensors&, const std::string&)>;

const std::vector<std::vector<InputForm>> kForms{
    {InputForm::kFull},
    {InputForm::kFull, InputForm::kFull, InputForm::kRow},
    {InputForm::kChannelsLast, InputForm::kChannelsLast, InputForm::kChannels},
    {InputForm::kFull, InputForm::kTransposed, InputForm::kNumber},
    {InputForm::kEverySecond, InputForm::kColumn, InputForm::kFull, InputForm::kChannels}};

Tensors inputs_of(const std::vector<InputForm>& forms, std::int64_t samples, c10::ScalarType type) {
  Tensors made;
  for (const auto form : forms) made.push_back(input_of(form, samples, type).requires_grad_());
  return made;
}

Tensors by_operators(const Tensors& inputs, const std::string& text) {
  return run(fused::pointwise::program_of(text), inputs);
}
Tensors by_expressions(const Tensors& inputs, const std::string& text) {
  return fused::pointwise::call_by_expressions(inputs, text);
}
Tensors by_name(const Tensors& inputs, const std::string& text) {
  static const auto op =
      fused::fused_operator(fused::kJoinedPointwise).typed<Tensors(at::TensorList, c10::string_view)>();
  return op.call(inputs, text);
}

/// Results, and the gradients of all inputs; the second result, if there is one, has a gradient where `both`.
Tensors outcome(const Call& call, const Tensors& inputs, const std::string& text, bool both) {
  auto results = call(inputs, text);
  Tensor total = torch::zeros({}, torch::kDouble);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto weights = torch::arange(1, results[i].numel() + 1, torch::kDouble).cos().view(results[i].sizes());
    if (i == 0 || both) total = total + (results[i].to(torch::kDouble) * weights).sum();
  }
  const auto gradients = torch::autograd::grad({total}, inputs, {}, false, false, /*allow_unused=*/true);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    results.push_back(gradients[i].defined() ? gradients[i] : torch::zeros_like(inputs[i]));
  for (auto& result : results) result = result.detach().to(torch::kDouble);
  return results;
}

double distance(const Tensor& a, const Tensor& b) {
  return a.numel() == 0 ? 0 : ((a - b).norm() / (b.norm() + 1e-30)).item<double>();
}

/// Which of inputs ("x0"), results ("y0") and values between ("f32") backward keeps.
std::string kept(const std::string& text, const std::vector<bool>& wanted) {
  std::string names;
  for (const auto& each : fused::pointwise::kept_by(text, wanted)) {
    names += names.empty() ? "" : " ";
    if (each.input >= 0)
      names += "x" + std::to_string(each.input);
    else
      names += each.result >= 0 ? "y" + std::to_string(each.result) : c10::toString(each.value.type);
  }
  return names;
}

}  // namespace pointwise_kernels

TEST_CASE("pointwise: random programs and gradients equal libtorch", "[pointwise]") {
  using namespace pointwise_kernels;
  torch::manual_seed(3);
  for (int seed = 0; seed < 120; ++seed) {
    const auto& forms = kForms[static_cast<std::size_t>(seed) % kForms.size()];
    const auto text =
        text_of(RandomProgram(seed, static_cast<int>(forms.size()), 1 + seed % 7, torch::kDouble).program);
    INFO(seed << ": " << text);
    CHECK(text_of(fused::pointwise::program_of(text)) == text);
    const auto inputs = inputs_of(forms, seed % 11 == 10 ? 0 : 2, torch::kDouble);
    const bool both = seed % 3 != 0;
    const auto want = outcome(by_operators, inputs, text, both), made = outcome(by_expressions, inputs, text, both),
               called = outcome(by_name, inputs, text, both);
    REQUIRE(made.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      INFO(i << ": " << distance(made[i], want[i]));
      CHECK(made[i].sizes() == want[i].sizes());
      CHECK(distance(made[i], want[i]) < 1e-12);
      CHECK(called[i].equal(want[i]));
    }
  }
}

// libtorch's derivative has a sixth in single precision.
TEST_CASE("pointwise: hardsigmoid equals libtorch, also at its bounds", "[pointwise]") {
  using namespace pointwise_kernels;
  const Tensors inputs{torch::arange(-20, 21, torch::kDouble).div(4).requires_grad_()};
  const std::string text = "f64*|aten::hardsigmoid(%0)f64|aten::mul.Scalar(%1;d3)f64|%2";
  const auto want = outcome(by_operators, inputs, text, true), made = outcome(by_expressions, inputs, text, true);
  CHECK(distance(made[0], want[0]) < 1e-12);
  CHECK(distance(made[1], want[1]) < 1e-7);
}

TEST_CASE("pointwise: 16-bit programs round only their results", "[pointwise]") {
  using namespace pointwise_kernels;
  torch::manual_seed(4);
  for (int seed = 0; seed < 20; ++seed) {
    const auto& forms = kForms[static_cast<std::size_t>(seed) % kForms.size()];
    const auto of = [&](c10::ScalarType type) {
      return text_of(RandomProgram(seed, static_cast<int>(forms.size()), 3, type).program);
    };
    const auto inputs = inputs_of(forms, 2, torch::kDouble);
    const auto in = [&](c10::ScalarType type) {
      Tensors made;
      for (const auto& input : inputs) made.push_back(input.detach().to(type).requires_grad_());
      return made;
    };
    for (const auto type : {torch::kBFloat16, torch::kHalf, torch::kFloat}) {
      INFO(seed << ", " << c10::toString(type) << ": " << of(type));
      const auto want = outcome(by_operators, inputs, of(torch::kDouble), true),
                 made = outcome(by_expressions, in(type), of(type), true),
                 libtorch = outcome(by_operators, in(type), of(type), true);
      const auto epsilon = type == torch::kBFloat16 ? 8e-3 : type == torch::kHalf ? 1e-3 : 2e-7;
      for (std::size_t i = 0; i < want.size(); ++i) {
        INFO(i);
        CHECK(distance(made[i], want[i]) <= 1.5 * distance(libtorch[i], want[i]) + epsilon);
      }
    }
  }
}

TEST_CASE("pointwise: backward saves the fewest values needed", "[pointwise]") {
  using namespace pointwise_kernels;
  const std::vector<bool> both{true, true};
  CHECK(kept("bf16*,bf16*|aten::add.Tensor(%0;%1;i1)bf16|aten::relu(%2)bf16|%3", both) == "y0");
  CHECK(kept("bf16*,bf16*|aten::silu(%0)bf16|aten::mul.Tensor(%2;%1)bf16|%3", both) == "x0 x1");
  CHECK(kept("bf16*,bf16*|aten::silu(%0)bf16|aten::mul.Tensor(%2;%1)bf16|%3", {false, true}) == "x0");
  CHECK(kept("bf16*,bf16|aten::add.Tensor(%0;%1;i1)bf16|aten::gelu(%2;snone)bf16|%3", both) == "x0 x1");
  CHECK(kept("bf16*,bf16*|aten::add.Tensor(%0;%1;i1)bf16|aten::silu(%2)bf16|%3", both) == "BFloat16");
  CHECK(kept("bf16*,bf16*|aten::add.Tensor(%0;%1;i1)bf16|aten::silu(%2)bf16|%2,%3", both) == "y0");
  CHECK(kept("f32*,f32*|aten::mul.Scalar(%0;d2)f32|aten::add.Tensor(%2;%1;i1)f32|%3", both).empty());
  CHECK(kept("f32*,bf16|aten::mul.Tensor(%0;%1)f32|aten::to.dtype(%2;i15;b0;b0;n)bf16|%3", both) == "x0 x1");
}

TEST_CASE("pointwise: malformed programs are refused", "[pointwise]") {
  for (const auto* text : {"", "f32*", "f32*|%1", "f32*|aten::relu(%1)f32|%1", "i64|aten::neg(%0)f32|%1",
                           "f32*|aten::relu(%0;%0)f32|%1", "f32*|aten::neg(%0)f32|%1 ", "f32*|aten::neg(%0)f32|"}) {
    INFO(text);
    CHECK_THROWS_AS(fused::pointwise::program_of(text), InvalidArgument);
  }
  const auto rounds = fused::pointwise::program_of("f32*|aten::div.Scalar_mode(%0;d2;sfloor)f32|%1");
  CHECK_FALSE(fused::pointwise::expression_of(rounds).has_value());
}

TEST_CASE("pointwise: threads index strided and broadcast tensors", "[pointwise]") {
  using namespace pointwise_kernels;
  torch::manual_seed(6);
  const std::vector<std::int64_t> sizes{2, 4, 3, 8};
  for (const auto& forms : kForms) {
    for (const int pack : {1, 4, 8}) {
      Tensors tensors;
      for (const auto form : forms) tensors.push_back(input_of(form, 2, torch::kFloat));
      const bool last = forms.front() == InputForm::kChannelsLast;
      tensors.push_back(
          torch::empty(sizes).contiguous(last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous));
      fused::pointwise::Cover made;
      REQUIRE(fused::pointwise::cover(tensors, sizes, pack, made));
      const auto each = made.in_packs ? pack : 1;
      REQUIRE(static_cast<std::int64_t>(made.places.packs) * each == 2 * 4 * 3 * 8);
      auto& result = tensors.back();
      for (std::size_t k = 0; k + 1 < tensors.size(); ++k) {
        result.fill_(-9);
        for (unsigned mine = 0; mine < made.places.packs; ++mine) {
          std::int64_t from = 0, to = 0;
          auto rest = mine;
          for (auto d = static_cast<std::size_t>(made.places.dims); d-- > 0;) {
            const auto above = d > 0 ? rest / made.places.sizes[d] : 0, here = rest - above * made.places.sizes[d];
            from += here * made.places.strides[k][d];
            to += here * made.places.strides[tensors.size() - 1][d];
            rest = above;
          }
          for (int i = 0; i < each; ++i)
            result.data_ptr<float>()[to + i] = tensors[k].data_ptr<float>()[from + i * made.places.inner[k]];
        }
        CHECK(result.equal(tensors[k].expand(sizes)));
      }
    }
  }
  const auto full = torch::randn(sizes), row = torch::randn({8});
  fused::pointwise::Cover made;
  REQUIRE(fused::pointwise::cover({full, row, torch::empty(sizes)}, sizes, 4, made));
  CHECK(made.in_packs);
  CHECK(made.places.dims == 2);
  REQUIRE(fused::pointwise::cover({full, full, torch::empty(sizes)}, sizes, 4, made));
  CHECK(made.places.dims == 1);
}

}  // namespace autopar::test
