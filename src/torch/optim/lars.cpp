#include <autopar/torch/optim/lars.hpp>

#include <cstdint>
#include <map>
#include <memory>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/record_function.h>

#include "torch/optim/tensor_lists.hpp"
#include "torch/parameters/part_access.hpp"

namespace autopar::optim {

namespace {

/// Parameters of one group, device and element type.
struct LarsLists {
  std::vector<at::Tensor> parameters, gradients, buffers;
  std::vector<at::Tensor> parameter_norms, gradient_norms;  ///< 0-dim
};

LARSParamState& lars_state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (state == nullptr) state = std::make_unique<LARSParamState>();
  return static_cast<LARSParamState&>(*state);
}

/// lr * trust of each parameter.
std::vector<at::Tensor> rates(const LarsLists& list, const LARSOptions& options) {
  const auto sizes = at::stack(list.parameter_norms), slopes = at::stack(list.gradient_norms);
  const auto trust = sizes * options.trust_coefficient() / (slopes + sizes * options.weight_decay() + options.eps());
  const auto counts = at::logical_and(sizes > 0, slopes > 0);
  return at::where(counts, trust, at::ones_like(trust)).mul_(options.lr()).unbind(0);
}

void move(const LarsLists& list, const LARSOptions& options) {
  auto along = options.weight_decay() == 0 ? at::_foreach_mul(list.gradients, rates(list, options))
                                           : at::_foreach_add(list.gradients, list.parameters, options.weight_decay());
  if (options.weight_decay() != 0) at::_foreach_mul_(along, rates(list, options));
  if (!list.buffers.empty()) {
    at::_foreach_mul_(list.buffers, options.momentum());
    at::_foreach_add_(list.buffers, along);
  }
  at::_foreach_sub_(list.parameters, list.buffers.empty() ? along : list.buffers);
}

}  // namespace

// ---------------------------------------------------------------- options and state

LARSOptions::LARSOptions(double lr) : lr_(lr) {}
double LARSOptions::get_lr() const { return lr(); }
void LARSOptions::set_lr(const double lr) { this->lr(lr); }

bool operator==(const LARSOptions& a, const LARSOptions& b) {
  return a.lr() == b.lr() && a.momentum() == b.momentum() && a.weight_decay() == b.weight_decay() &&
         a.trust_coefficient() == b.trust_coefficient() && a.eps() == b.eps();
}

void LARSOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(momentum);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(trust_coefficient);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
}

void LARSOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, momentum);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, trust_coefficient);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
}

void LARSParamState::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(momentum_buffer);
}

void LARSParamState::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(torch::Tensor, momentum_buffer);
}

// ---------------------------------------------------------------- LARS

LARS::LARS(const std::vector<torch::optim::OptimizerParamGroup>& groups, LARSOptions defaults)
    : Optimizer(groups, std::make_unique<LARSOptions>(defaults)) {
  TORCH_CHECK(defaults.lr() >= 0, "Invalid learning rate: ", defaults.lr());
  TORCH_CHECK(defaults.momentum() >= 0, "Invalid momentum value: ", defaults.momentum());
  TORCH_CHECK(defaults.weight_decay() >= 0, "Invalid weight_decay value: ", defaults.weight_decay());
  TORCH_CHECK(defaults.trust_coefficient() >= 0, "Invalid trust_coefficient value: ", defaults.trust_coefficient());
  TORCH_CHECK(defaults.eps() >= 0, "Invalid epsilon value: ", defaults.eps());
}

const OptimizerDescriptor& LARS::descriptor() const {
  using Range = OptimizerDescriptor::Range;
  static const OptimizerDescriptor kDescriptor =
      describe_optimizer<LARS, LARSOptions, LARSParamState>("LARS", StepNeeds::kNorms)
          .tensor("momentum_buffer", &LARSParamState::momentum_buffer,
                  [](const LARSOptions& options) { return options.momentum() != 0; })
          .option("lr", &LARSOptions::lr, Range::kNotNegative)
          .option("momentum", &LARSOptions::momentum, Range::kNotNegative)
          .option("weight_decay", &LARSOptions::weight_decay, Range::kNotNegative)
          .option("trust_coefficient", &LARSOptions::trust_coefficient, Range::kNotNegative)
          .option("eps", &LARSOptions::eps, Range::kNotNegative)
          .temporaries(1);
  return kDescriptor;
}

at::Tensor LARS::step(LossClosure closure) {
  auto loss = detail::loss_of(closure);
  RECORD_USER_SCOPE("autopar::optim::LARS.step");  // for timelines
  const at::NoGradGuard no_grad;
  const parameters::PartAccess access;
  detail::require_dense_real(*this, "LARS");
  std::vector<at::Tensor> all, handles, values;
  for (const auto& group : param_groups()) all.insert(all.end(), group.params().begin(), group.params().end());
  for (const bool of_gradients : {false, true}) {
    for (const auto& parameter : all) {
      handles.push_back(parameter);
      const bool steps = parameter.grad().defined();
      values.push_back(!steps ? at::Tensor() : of_gradients ? parameter.grad() : parameter);
    }
  }
  const auto norms = collectives().norms(handles, values);
  std::int64_t row = 0;
  for (const auto& group : param_groups()) {
    const auto& options = static_cast<const LARSOptions&>(group.options());
    std::map<detail::ListKey, LarsLists> lists;
    detail::ContiguousParameters contiguous;
    for (const auto& parameter : group.params()) {
      const auto own = row++;
      if (!parameter.grad().defined()) continue;
      auto& list = lists[detail::key_of(parameter, 0)];
      const auto& memory = list.parameters.emplace_back(contiguous.of(parameter));
      list.gradients.push_back(detail::laid_out_like(parameter.grad(), memory));
      if (options.momentum() != 0)
        list.buffers.push_back(detail::state_like(lars_state_of(*this, parameter).momentum_buffer(), memory));
      list.parameter_norms.push_back(norms.select(0, own).to(memory.device()));
      list.gradient_norms.push_back(norms.select(0, own + static_cast<std::int64_t>(all.size())).to(memory.device()));
    }
    for (const auto& [key, list] : lists) move(list, options);
    contiguous.write_back();
  }
  return loss;
}

void LARS::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<LARSParamState, LARSOptions>(archive, *this);
}
void LARS::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<LARSParamState, LARSOptions>(archive, *this);
}

}  // namespace autopar::optim
