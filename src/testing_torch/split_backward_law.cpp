#include <exception>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>

#include "testing_torch/laws.hpp"
#include "torch/autograd/split_backward.hpp"

namespace autopar::testing::op_laws {

namespace {

constexpr auto kSplitLaw = "the formulas of a split backward give autograd's gradients";

/// Compares autograd's gradients of one call with the formulas'.
class TwoBackwards {
 public:
  TwoBackwards(const CapturedExample& example, const RecordedCall& call, autograd::SplitBackward split)
      : example_(example), call_(call), split_(std::move(split)) {}

  void check() {
    require_operands();
    run_autograd();
    try {
      const at::AutoDispatchBelowADInplaceOrView no_history;  // as the library calls all of them
      require_equal(results(), {result_.detach()}, {"result 0 below autograd"});
      check_input();
      check_weights();
      check_sums();
    } catch (const c10::Error& error) {
      broken(error.what_without_backtrace());
    } catch (const OperatorError& error) {
      broken(std::string("below autograd, ") + error.what());
    }
  }

 private:
  [[nodiscard]] at::Tensor operand(std::int32_t position) const {
    const auto value = position < 0 ? ValueId::none() : example_.graph().input(call_.id, position);
    return value.valid() ? values_[value.index()] : at::Tensor();
  }
  [[nodiscard]] bool with_bias() const { return operand(split_.bias_at).defined(); }

  void require_operands() {
    values_.resize(example_.graph().values.size());
    for (const auto& [value, tensor] : call_.operands)
      values_[value.index()] = tensor.detach().set_requires_grad(tensor.is_floating_point());
    if (!operand(split_.x_at).defined()) broken("x_at is " + std::to_string(split_.x_at) + ", which is no tensor");
    if (call_.results.size() != 1)
      broken("it has " + std::to_string(call_.results.size()) + " results, and formulas are given one gradient");
    if (!split_.weights) broken("`weights` is empty");
    if (!split_.input && operand(split_.x_at).is_floating_point()) broken("`input` is empty, and x has a gradient");
  }

  [[nodiscard]] Tensors results() const { return run_alone(example_.graph(), call_.id, values_, example_.batch()); }

  void run_autograd() {
    result_ = results().front();
    Tensors arguments{operand(split_.weight_at)};
    if (with_bias()) arguments.push_back(operand(split_.bias_at));
    if (split_.input) arguments.push_back(operand(split_.x_at));
    gradient_ = cotangents_of({result_}).front();
    if (!gradient_.defined()) broken("its result has no gradient");
    of_parameters_ = gradients_of({result_}, {gradient_}, arguments);
    if (!split_.input) return;
    of_x_ = of_parameters_.back();
    of_parameters_.pop_back();
  }

  void check_input() const {
    if (!split_.input) return;
    require_equal({split_.input(gradient_, x(), weight())}, {of_x_}, {"the gradient of x that `input` gives"});
  }

  void check_weights() const {
    require_equal(split_.weights(gradient_, x(), weight(), with_bias()), of_parameters_,
                  {"the gradient of the weight that `weights` gives", "the gradient of the bias that `weights` gives"});
  }

  void check_sums() const {
    if (!split_.add_weights) return;
    Tensors sums, wanted;
    for (const auto& gradient : of_parameters_) {
      sums.push_back(at::ones_like(gradient));
      wanted.push_back(gradient + 1);
    }
    split_.add_weights(gradient_, x(), weight(), sums);
    require_equal(sums, wanted, {"one and what `add_weights` adds for the weight", "the same for the bias"});
  }

  void require_equal(const Tensors& given, const Tensors& wanted, const std::vector<std::string>& what) const {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const auto found = i < given.size() ? difference(given[i], wanted[i]) : "there is none";
      if (!found.empty()) broken(what[i] + ": " + found);
    }
  }

  [[nodiscard]] at::Tensor x() const { return operand(split_.x_at).detach(); }
  [[nodiscard]] at::Tensor weight() const { return operand(split_.weight_at).detach(); }

  [[noreturn]] void broken(const std::string& why) const { example_.broken(kSplitLaw, why); }

  const CapturedExample& example_;
  const RecordedCall& call_;
  autograd::SplitBackward split_;
  replay::Environment values_;
  at::Tensor result_, gradient_, of_x_;
  Tensors of_parameters_;
};

}  // namespace

bool check_split_backward(const CapturedExample& example, const RecordedCall& call) {
  auto split = autograd::split_backward_of(example.graph(), example.plan(), call.id);
  if (split) TwoBackwards(example, call, std::move(*split)).check();
  return split.has_value();
}

}  // namespace autopar::testing::op_laws
