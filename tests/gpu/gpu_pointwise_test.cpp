#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include <catch_shim.hpp>

#include "unit/torch/fused/pointwise_programs.hpp"

#include "torch/fused/fused_ops.hpp"
#include "torch/fused/pointwise/program.hpp"

// The kernels of joined point-wise operators against libtorch's operators in double precision.
namespace gpu_pointwise_test {

namespace ap = autopar;
using ap::test::InputForm;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

Tensors joined(const Tensors& inputs, const std::string& text) {
  static const auto op =
      ap::fused::fused_operator(ap::fused::kJoinedPointwise).typed<Tensors(at::TensorList, c10::string_view)>();
  return op.call(inputs, text);
}
Tensors apart(const Tensors& inputs, const std::string& text) {
  return run(ap::fused::pointwise::program_of(text), inputs);
}

/// The same numbers in all types.
Tensors inputs_of(const std::vector<InputForm>& forms, std::int64_t samples, int seed, c10::ScalarType type) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  Tensors made;
  for (const auto form : forms)
    made.push_back(input_of(form, samples, at::TensorOptions(type).device(at::kCUDA)).requires_grad_());
  return made;
}

/// Results and the gradients of all inputs, in double precision.
template <class Operators>
Tensors outcome(Operators operators, const Tensors& inputs, const std::string& text) {
  auto results = operators(inputs, text);
  Tensor total = torch::zeros({}, at::TensorOptions(at::kDouble).device(inputs.front().device()));
  for (const auto& result : results) {
    const auto weights = torch::arange(1, result.numel() + 1, total.options()).cos().view(result.sizes());
    total = total + (result.to(at::kDouble) * weights).sum();
  }
  const auto gradients = torch::autograd::grad({total}, inputs, {}, false, false, /*allow_unused=*/true);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    results.push_back(gradients[i].defined() ? gradients[i] : torch::zeros_like(inputs[i]));
  for (auto& result : results) result = result.detach().to(at::kCUDA, at::kDouble);
  return results;
}

/// Where they lie on a GPU, on the CPU: some functions of libtorch on GPUs round constants to single precision.
Tensors on_cpu(const Tensors& inputs) {
  Tensors made;
  for (const auto& input : inputs) made.push_back(input.detach().cpu().requires_grad_());
  return made;
}

double distance(const Tensor& a, const Tensor& b) {
  return a.numel() == 0 ? 0 : ((a - b).norm() / (b.norm() + 1e-30)).item<double>();
}

/// Whether a kernel ran, and not libtorch's operators.
bool ran_as_one(const Tensors& results) {
  const auto history = results.front().grad_fn();
  return history && history->name().find("Pointwise") != std::string::npos;
}

void check(const std::vector<InputForm>& forms, std::int64_t samples, int seed, int steps) {
  const auto program_on = [&](c10::ScalarType type) {
    return text_of(ap::test::RandomProgram(seed, static_cast<int>(forms.size()), steps, type).program);
  };
  const auto exact = outcome(apart, on_cpu(inputs_of(forms, samples, seed, at::kDouble)), program_on(at::kDouble));
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    const auto text = program_on(type);
    INFO(seed << ", " << samples << " samples: " << text);
    const auto inputs = inputs_of(forms, samples, seed, type);
    CHECK(ran_as_one(joined(inputs, text)) == (samples > 0));
    const auto made = outcome(joined, inputs, text), again = outcome(joined, inputs, text),
               libtorch = outcome(apart, inputs, text);
    REQUIRE(made.size() == exact.size());
    for (std::size_t i = 0; i < exact.size(); ++i) {
      INFO("of " << i << ": " << distance(made[i], exact[i]) << ", libtorch " << distance(libtorch[i], exact[i]));
      CHECK(made[i].sizes() == exact[i].sizes());
      CHECK(made[i].equal(again[i]));
      const auto allowed = type == at::kDouble ? 1e-12 : 2e-6;
      CHECK(distance(made[i], exact[i]) <= 1.5 * distance(libtorch[i], exact[i]) + allowed);
    }
  }
}

TEST_CASE("pointwise fusion: kernels equal libtorch", "[gpu][pointwise]") {
  const std::vector<std::vector<InputForm>> forms{
      {InputForm::kFull},
      {InputForm::kFull, InputForm::kFull, InputForm::kRow},
      {InputForm::kChannelsLast, InputForm::kChannelsLast, InputForm::kChannels},
      {InputForm::kFull, InputForm::kTransposed, InputForm::kNumber},
      {InputForm::kEverySecond, InputForm::kColumn, InputForm::kFull, InputForm::kChannels}};
  for (int seed = 0; seed < 30; ++seed)
    check(forms[static_cast<std::size_t>(seed) % forms.size()],
          seed == 7       ? 0
          : seed % 2 == 0 ? 700
                          : 3,
          seed, 1 + seed % 6);
}

TEST_CASE("pointwise fusion: gate, masks and casts run in one kernel", "[gpu][pointwise]") {
  torch::manual_seed(10);
  const at::TensorOptions on(at::kCUDA);
  const auto both = torch::randn({64, 5, 512}, on.dtype(at::kBFloat16));
  const std::string gate = "bf16*,bf16*|aten::silu(%0)bf16|aten::mul.Tensor(%2;%1)bf16|%3";
  const Tensors halves{both.narrow(2, 0, 256).requires_grad_(), both.narrow(2, 256, 256).requires_grad_()};
  const auto made = joined(halves, gate);
  CHECK(ran_as_one(made));
  const auto exact = apart({halves[0].to(at::kDouble), halves[1].to(at::kDouble)}, gate).front();
  const auto libtorch = apart(halves, gate).front();
  CHECK(distance(made.front().to(at::kDouble), exact) <= 1.5 * distance(libtorch.to(at::kDouble), exact));

  const std::string masked =
      "bf16*,bool,f32|aten::to.dtype(%0;i6;b0;b0;n)f32|aten::masked_fill.Scalar(%3;%1;d-2)f32|"
      "aten::mul.Tensor(%4;%2)f32|aten::to.dtype(%5;i15;b0;b0;n)bf16|%5,%6";
  const auto x = torch::randn({33, 40}, on.dtype(at::kBFloat16)).requires_grad_(),
             scale = torch::randn({40}, on).requires_grad_();
  const auto mask = torch::randn({33, 1}, on) > 0;
  const auto one = joined({x, mask, scale}, masked), each = apart({x, mask, scale}, masked);
  CHECK(ran_as_one(one));
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(one[i].scalar_type() == each[i].scalar_type());
    CHECK(one[i].equal(each[i]));
  }
  const auto gradients = torch::autograd::grad({one[0].sum() + one[1].sum()}, {x, scale}),
             wanted = torch::autograd::grad({each[0].sum() + each[1].sum()}, {x, scale});
  for (std::size_t i = 0; i < 2; ++i) CHECK(distance(gradients[i].to(at::kDouble), wanted[i].to(at::kDouble)) < 1e-2);
}

}  // namespace gpu_pointwise_test
