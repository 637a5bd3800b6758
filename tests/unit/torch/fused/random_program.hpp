#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include "torch/fused/pointwise/gradient.hpp"
#include "torch/fused/pointwise/lowering.hpp"
#include "torch/fused/pointwise/program.hpp"

namespace autopar::test {

/// Programs of random operators, each result of the first input's sizes; values stay near 1.
class RandomProgram {
 public:
  RandomProgram(int seed, int inputs, int steps, c10::ScalarType type) : draw_(seed), type_(type) {
    for (int i = 0; i < inputs; ++i) program.inputs.push_back({type, i == 0});
    last_ = step("aten::mul.Tensor(%0;%" + std::to_string(pick(inputs)) + ")");
    for (int i = 0; i < steps; ++i) add();
    program.results = {last_};
    const auto also = inputs + pick(static_cast<int>(program.steps.size()));
    if (also != last_) program.results.push_back(also);
  }

  fused::pointwise::Program program;

 private:
  int pick(int count) { return static_cast<int>(draw_() % static_cast<unsigned>(count)); }

  std::int32_t step(const std::string& call) {
    const auto inputs = program.inputs.size();
    auto text = text_of(program);
    text = text.substr(0, text.rfind('|')) + "|" + call + type_name() + "|%0";
    program = fused::pointwise::program_of(text);
    return static_cast<std::int32_t>(inputs + program.steps.size()) - 1;
  }
  [[nodiscard]] std::string type_name() const {
    return type_ == at::kDouble ? "f64" : type_ == at::kFloat ? "f32" : type_ == at::kHalf ? "f16" : "bf16";
  }

  void add() {
    static const std::vector<std::string> kAnywhere{"add.Tensor(%x;%y;i1)",
                                                    "add.Tensor(%x;%y;d0.5)",
                                                    "add.Scalar(%x;d0.25;i2)",
                                                    "sub.Tensor(%x;%y;i1)",
                                                    "rsub.Scalar(%x;d1.5;i1)",
                                                    "rsub.Tensor(%x;%y;i1)",
                                                    "mul.Tensor(%x;%y)",
                                                    "mul.Scalar(%x;d-0.75)",
                                                    "neg(%x)",
                                                    "abs(%x)",
                                                    "square(%x)",
                                                    "pow.Tensor_Scalar(%x;i3)",
                                                    "tanh(%x)",
                                                    "sigmoid(%x)",
                                                    "relu(%x)",
                                                    "gelu(%x;snone)",
                                                    "gelu(%x;stanh)",
                                                    "silu(%x)",
                                                    "erf(%x)",
                                                    "mish(%x)",
                                                    "clamp(%x;d-0.5;d0.75)",
                                                    "clamp(%x;n;d0.5)",
                                                    "clamp_min(%x;d-0.25)",
                                                    "clamp_max(%x;d0.25)",
                                                    "maximum(%x;%y)",
                                                    "minimum(%x;%y)",
                                                    "leaky_relu(%x;d0.1)",
                                                    "hardtanh(%x;d-1;d1)",
                                                    "hardswish(%x)",
                                                    "softplus(%x;d1;d20)",
                                                    "softplus(%x;d2;d1)",
                                                    "elu(%x;d1;d1;d1)",
                                                    "elu(%x;d0.5;d1.25;d2)",
                                                    "lerp.Scalar(%x;%y;d0.25)",
                                                    "lerp.Tensor(%x;%y;%z)",
                                                    "addcmul(%x;%y;%z;d0.5)",
                                                    "div.Scalar(%x;d3)"};
    static const std::vector<std::string> kOfPositive{"log(%x)",
                                                      "log1p(%x)",
                                                      "sqrt(%x)",
                                                      "rsqrt(%x)",
                                                      "reciprocal(%x)",
                                                      "pow.Tensor_Scalar(%x;d1.7)",
                                                      "pow.Tensor_Scalar(%x;d-2)",
                                                      "div.Tensor(%y;%x)",
                                                      "addcdiv(%y;%z;%x;d0.5)"};
    static const std::vector<std::string> kOfSmall{"exp(%x)", "expm1(%x)"};
    const auto any = [&] { return pick(static_cast<int>(program.inputs.size() + program.steps.size())); };
    auto x = pick(2) == 0 ? last_ : any();
    if (x > 0 && x < static_cast<int>(program.inputs.size())) x = 0;  // every step is of all sizes
    const auto y = any(), z = any();
    const auto kind = pick(8);
    const auto& calls = kind == 0 ? kOfSmall : kind < 3 ? kOfPositive : kAnywhere;
    if (kind == 0) x = step("aten::tanh(%" + std::to_string(x) + ")");
    if (kind == 1 || kind == 2) {
      const auto size = step("aten::abs(%" + std::to_string(x) + ")");
      x = step("aten::add.Scalar(%" + std::to_string(size) + ";d0.5;i1)");
    }
    auto call = calls[static_cast<std::size_t>(pick(static_cast<int>(calls.size())))];
    for (const auto& [name, value] : {std::pair{"%x", x}, std::pair{"%y", y}, std::pair{"%z", z}}) {
      if (const auto at = call.find(name); at != std::string::npos) call.replace(at, 2, "%" + std::to_string(value));
    }
    const auto made = step("aten::" + call);
    last_ = step("aten::add.Tensor(%" + std::to_string(last_) + ";%" + std::to_string(made) + ";i1)");
  }

  std::mt19937 draw_;
  c10::ScalarType type_;
  std::int32_t last_ = 0;
};

/// Expressions whose kernels are built into the tests: of random programs of three inputs, the last two of which may be
/// smaller than the results, and of their gradients. The same in each program.
inline std::vector<fused::pointwise::Expression> expressions_of_kernels() {
  constexpr int kInputs = 3;
  std::vector<fused::pointwise::Expression> all;
  int seed = 1000;
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (int i = 0; i < 3; ++i, ++seed) {
      const auto expression = *fused::pointwise::expression_of(RandomProgram(seed, kInputs, 2 + i, type).program);
      const std::vector<bool> wanted(kInputs, true), given(expression.results.size(), true), full{true, false, false};
      all.push_back(expression);
      all.push_back(gradient_of(expression, values_to_keep(expression, wanted, full), wanted, given));
    }
  }
  return all;
}

}  // namespace autopar::test
