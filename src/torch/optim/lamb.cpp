#include <autopar/torch/optim/lamb.hpp>

#include <algorithm>
#include <cmath>
#include <map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include "torch/optim/reductions.hpp"
#include "torch/optim/tensor_lists.hpp"
#include "torch/parameters/part_access.hpp"

namespace autopar::optim {

namespace {

/// Directions are computed together for parameters of at most this many bytes, or the size of the largest parameter if
/// that is less. A larger parameter is processed alone. Directions then take as much memory as other optimizers'
/// temporaries (`update_memory` of the planner).
constexpr std::int64_t kDirectionBytes = 64 << 20;

/// Parameters of one group, device, element type and number of steps.
struct LambLists {
  const LAMBOptions* options = nullptr;
  std::int64_t steps = 0;  ///< including this step
  std::int64_t bytes = 0;
  std::vector<at::Tensor> parameters, gradients, exp_avgs, exp_avg_sqs;
  std::vector<LAMBParamState*> states;
  std::vector<std::int64_t> rows;  ///< indices among all parameters of the optimizer
};

class LambStep {
 public:
  explicit LambStep(torch::optim::Optimizer& optimizer) {
    for (const auto& group : optimizer.param_groups()) {
      for (const auto& parameter : group.params()) {
        if (parameter.grad().defined()) largest_ = std::max(largest_, static_cast<std::int64_t>(parameter.nbytes()));
      }
    }
    for (auto& group : optimizer.param_groups()) {
      const auto& options = static_cast<const LAMBOptions&>(group.options());
      std::map<detail::ListKey, std::size_t> open;
      for (const auto& parameter : group.params()) {
        all_.push_back(parameter);
        if (parameter.grad().defined()) add(optimizer, parameter, options, open);
      }
    }
  }

  [[nodiscard]] const std::vector<at::Tensor>& all() const { return all_; }
  [[nodiscard]] const std::vector<LambLists>& lists() const { return lists_; }

  /// Zeros on the device of this rank's parameters.
  [[nodiscard]] at::Tensor no_squares() const {
    const auto device = lists_.empty() ? at::kCPU : lists_.front().parameters.front().device();
    return at::zeros({static_cast<std::int64_t>(all_.size()), 2}, at::dtype(at::kDouble).device(device));
  }
  void write_back() const { contiguous_.write_back(); }

 private:
  void add(torch::optim::Optimizer& optimizer, const at::Tensor& parameter, const LAMBOptions& options,
           std::map<detail::ListKey, std::size_t>& open) {
    auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
    if (state == nullptr) state = std::make_unique<LAMBParamState>();
    auto& lamb = static_cast<LAMBParamState&>(*state);
    const auto bytes = static_cast<std::int64_t>(parameter.nbytes());
    const auto [at, is_new] = open.try_emplace(detail::key_of(parameter, lamb.step()), lists_.size());
    if (!is_new && lists_[at->second].bytes + bytes > std::min(largest_, kDirectionBytes)) at->second = lists_.size();
    if (at->second == lists_.size()) {
      lists_.emplace_back().options = &options;
      lists_.back().steps = lamb.step() + 1;
    }
    auto& list = lists_[at->second];
    list.bytes += bytes;
    const auto& memory = list.parameters.emplace_back(contiguous_.of(parameter));
    list.gradients.push_back(detail::laid_out_like(parameter.grad(), memory));
    list.exp_avgs.push_back(detail::state_like(lamb.exp_avg(), memory));
    list.exp_avg_sqs.push_back(detail::state_like(lamb.exp_avg_sq(), memory));
    list.states.push_back(&lamb);
    list.rows.push_back(static_cast<std::int64_t>(all_.size()) - 1);
  }

  std::int64_t largest_ = 0;  // bytes of a parameter
  std::vector<at::Tensor> all_;
  std::vector<LambLists> lists_;
  detail::ContiguousParameters contiguous_;
};

void advance_averages(const LambLists& list) {
  const auto [beta1, beta2] = list.options->betas();
  at::_foreach_mul_(list.exp_avgs, beta1);
  at::_foreach_add_(list.exp_avgs, list.gradients, 1 - beta1);
  at::_foreach_mul_(list.exp_avg_sqs, beta2);
  at::_foreach_addcmul_(list.exp_avg_sqs, list.gradients, list.gradients, 1 - beta2);
  for (auto* state : list.states) state->step(list.steps);
}

/// r + decay * x of each parameter x.
std::vector<at::Tensor> directions(const LambLists& list) {
  const auto [beta1, beta2] = list.options->betas();
  const auto steps = static_cast<double>(list.steps);
  auto denominators = at::_foreach_sqrt(list.exp_avg_sqs);
  at::_foreach_div_(denominators, std::sqrt(1 - std::pow(beta2, steps)));
  at::_foreach_add_(denominators, list.options->eps());
  auto found = at::_foreach_div(list.exp_avgs, 1 - std::pow(beta1, steps));
  at::_foreach_div_(found, denominators);
  if (list.options->weight_decay() != 0) at::_foreach_add_(found, list.parameters, list.options->weight_decay());
  return found;
}

/// [parameters, 2] sums of squares: of parameters and of directions.
at::Tensor squares_of(const LambLists& list, const std::vector<at::Tensor>& along) {
  return at::stack({detail::norms_of(list.parameters, 2), detail::norms_of(along, 2)}, 1).square();
}

void move_along(const LambLists& list, const std::vector<at::Tensor>& along, const at::Tensor& squares) {
  const auto norms = squares.sqrt();
  const auto ratio = norms.select(1, 0) / norms.select(1, 1);
  const auto trust = at::where((squares > 0).all(1), ratio, at::ones_like(ratio));
  at::_foreach_mul_(along, trust.unbind(0));
  at::_foreach_add_(list.parameters, along, -list.options->lr());
}

}  // namespace

// ---------------------------------------------------------------- options and state

LAMBOptions::LAMBOptions(double lr) : lr_(lr) {}
double LAMBOptions::get_lr() const { return lr(); }
void LAMBOptions::set_lr(const double lr) { this->lr(lr); }

bool operator==(const LAMBOptions& a, const LAMBOptions& b) {
  return a.lr() == b.lr() && a.betas() == b.betas() && a.eps() == b.eps() && a.weight_decay() == b.weight_decay();
}

void LAMBOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(betas);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
}

void LAMBOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(betas_t, betas);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
}

void LAMBParamState::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(exp_avg);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(exp_avg_sq);
}

void LAMBParamState::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(std::int64_t, step);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(torch::Tensor, exp_avg);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(torch::Tensor, exp_avg_sq);
}

// ---------------------------------------------------------------- LAMB

const OptimizerDescriptor& LAMB::descriptor() const {
  using Range = OptimizerDescriptor::Range;
  static const OptimizerDescriptor kDescriptor =
      describe_optimizer<LAMB, LAMBOptions, LAMBParamState>("LAMB", StepNeeds::kNorms)
          .counter("step", &LAMBParamState::step)
          .tensor("exp_avg", &LAMBParamState::exp_avg)
          .tensor("exp_avg_sq", &LAMBParamState::exp_avg_sq)
          .option("lr", &LAMBOptions::lr, Range::kNotNegative)
          .option(
              "beta1", [](LAMBOptions& options) -> double& { return std::get<0>(options.betas()); }, Range::kBelowOne)
          .option(
              "beta2", [](LAMBOptions& options) -> double& { return std::get<1>(options.betas()); }, Range::kBelowOne)
          .option("eps", &LAMBOptions::eps, Range::kNotNegative)
          .option("weight_decay", &LAMBOptions::weight_decay, Range::kNotNegative);
  return kDescriptor;
}

LAMB::LAMB(const std::vector<torch::optim::OptimizerParamGroup>& groups, LAMBOptions defaults)
    : Optimizer(groups, std::make_unique<LAMBOptions>(defaults)) {
  const auto [beta1, beta2] = defaults.betas();
  TORCH_CHECK(defaults.lr() >= 0, "Invalid learning rate: ", defaults.lr());
  TORCH_CHECK(defaults.eps() >= 0, "Invalid epsilon value: ", defaults.eps());
  TORCH_CHECK(0 <= beta1 && beta1 < 1, "Invalid beta parameter at index 0: ", beta1);
  TORCH_CHECK(0 <= beta2 && beta2 < 1, "Invalid beta parameter at index 1: ", beta2);
  TORCH_CHECK(defaults.weight_decay() >= 0, "Invalid weight_decay value: ", defaults.weight_decay());
}

// With shards, norms are known only after a sum over ranks. Directions are then computed twice instead of kept.
at::Tensor LAMB::step(LossClosure closure) {
  auto loss = detail::loss_of(closure);
  RECORD_USER_SCOPE("autopar::optim::LAMB.step");  // for timelines
  const at::NoGradGuard no_grad;
  const parameters::PartAccess access;
  detail::require_dense_real(*this, "LAMB");
  const LambStep step(*this);
  auto squares = step.no_squares();
  for (const auto& list : step.lists()) {
    advance_averages(list);
    const auto along = directions(list);
    const auto own = squares_of(list, along);
    if (!is_attached()) {
      move_along(list, along, own);
      continue;
    }
    for (std::size_t i = 0; i < list.rows.size(); ++i) {
      squares.select(0, list.rows[i]).copy_(own.select(0, static_cast<std::int64_t>(i)));
    }
  }
  if (is_attached()) {
    squares = collectives().sum(step.all(), squares);
    for (const auto& list : step.lists()) {
      std::vector<at::Tensor> own;
      for (const auto row : list.rows) own.push_back(squares.select(0, row).to(list.parameters.front().device()));
      move_along(list, directions(list), at::stack(own));
    }
  }
  step.write_back();
  return loss;
}

void LAMB::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<LAMBParamState, LAMBOptions>(archive, *this);
}
void LAMB::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<LAMBParamState, LAMBOptions>(archive, *this);
}

}  // namespace autopar::optim
