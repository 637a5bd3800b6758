#include <autopar/torch/optim/fused.hpp>

#include <array>
#include <map>
#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/record_function.h>

#include "torch/fused/update.hpp"
#include "torch/optim/tensor_lists.hpp"
#include "torch/parameters/compute_copy.hpp"
#include "torch/parameters/part_access.hpp"
#include "torch/parameters/part_mark.hpp"

namespace autopar::optim {

namespace {

using detail::ContiguousParameters;
using detail::key_of;
using detail::laid_out_like;
using detail::ListKey;
using detail::state_like;

template <class State>
State& state_made_for(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (state == nullptr) state = std::make_unique<State>();
  return static_cast<State&>(*state);
}

/// The copy of a parameter that must get the new values, too.
/// @param memory  the memory that is updated for the parameter
fused::UpdatedCopy copy_of(const at::Tensor& parameter, const at::Tensor& memory) {
  const auto* copy = parameters::ComputeCopy::of(parameter);
  return copy != nullptr && memory.is_same(parameter) ? copy->to_write(parameter) : fused::UpdatedCopy();
}

/// Marks parameters and copies as equal after both are written; asking for a parameter's memory removed this mark.
void note_written(const std::vector<at::Tensor>& parameters, const std::vector<fused::UpdatedCopy>& copies) {
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (copies[i].memory.defined()) parameters::ComputeCopy::of(parameters[i])->note_written(parameters[i]);
  }
}

/// Runs the step with autopar's kernels if the device has them.
/// @return whether it ran
template <class Update>
bool step_on_device(const Update& update) {
  const auto type = update.parameters.front().device().type();
  return (type == at::kCPU || type == at::kCUDA) && fused::step_in_kernels(update);
}

template <class State>
struct AdamLists {
  std::vector<at::Tensor> parameters, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs;
  std::vector<fused::UpdatedCopy> copies;
  std::vector<State*> states;
};

template <class State>
std::map<ListKey, AdamLists<State>> adam_lists(torch::optim::Optimizer& optimizer,
                                               const std::vector<at::Tensor>& parameters, bool amsgrad,
                                               ContiguousParameters& contiguous) {
  std::map<ListKey, AdamLists<State>> lists;
  for (const auto& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    auto& state = state_made_for<State>(optimizer, parameter);
    auto& list = lists[key_of(parameter, state.step())];
    const auto& memory = list.parameters.emplace_back(contiguous.of(parameter));
    list.copies.push_back(copy_of(parameter, memory));
    list.gradients.push_back(laid_out_like(parameter.grad(), memory));
    list.exp_avgs.push_back(state_like(state.exp_avg(), memory));
    list.exp_avg_sqs.push_back(state_like(state.exp_avg_sq(), memory));
    if (amsgrad) list.max_exp_avg_sqs.push_back(state_like(state.max_exp_avg_sq(), memory));
    list.states.push_back(&state);
  }
  return lists;
}

/// @param kernel  at::_fused_adam_ or at::_fused_adamw_
template <class Options, class State, class Kernel>
void step_adam(torch::optim::Optimizer& optimizer, Kernel kernel) {
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    const auto [beta1, beta2] = options.betas();
    ContiguousParameters contiguous;
    for (auto& [key, list] : adam_lists<State>(optimizer, group.params(), options.amsgrad(), contiguous)) {
      const auto steps = key.steps + 1;
      const fused::AdamUpdate update{list.parameters,
                                     list.gradients,
                                     list.exp_avgs,
                                     list.exp_avg_sqs,
                                     list.copies,
                                     options.lr(),
                                     beta1,
                                     beta2,
                                     options.weight_decay(),
                                     options.eps(),
                                     steps,
                                     std::is_same_v<Options, AdamWOptions>};
      if (options.amsgrad() || !step_on_device(update)) {
        const auto count = at::full({}, steps, list.parameters.front().options().dtype(at::kFloat));
        kernel(list.parameters, list.gradients, list.exp_avgs, list.exp_avg_sqs, list.max_exp_avg_sqs,
               std::vector<at::Tensor>(list.parameters.size(), count), options.lr(), beta1, beta2,
               options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false, std::nullopt,
               std::nullopt);
        fused::write_copies(list.parameters, list.copies);
      }
      note_written(list.parameters, list.copies);
      for (auto* state : list.states) state->step(steps);
    }
    contiguous.write_back();
  }
}

struct SgdLists {
  std::vector<at::Tensor> parameters, gradients, momentum_buffers;
  std::vector<fused::UpdatedCopy> copies;
};

std::map<ListKey, SgdLists> sgd_lists(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters,
                                      bool has_momentum, ContiguousParameters& contiguous) {
  std::map<ListKey, SgdLists> lists;
  for (const auto& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    const auto memory = contiguous.of(parameter);
    auto key = key_of(parameter, 0);
    at::Tensor* buffer = nullptr;
    if (has_momentum) {
      buffer = &state_made_for<torch::optim::SGDParamState>(optimizer, parameter).momentum_buffer();
      if (buffer->defined()) key.steps = 1;
      *buffer = buffer->defined() ? laid_out_like(*buffer, memory) : at::empty_like(memory);
      parameters::mark_like(*buffer, parameter);
    }
    auto& list = lists[key];
    list.parameters.push_back(memory);
    list.copies.push_back(copy_of(parameter, memory));
    list.gradients.push_back(laid_out_like(parameter.grad(), memory));
    if (buffer != nullptr) list.momentum_buffers.push_back(*buffer);
  }
  return lists;
}

}  // namespace

at::Tensor SGD::step(LossClosure closure) {
  auto loss = detail::loss_of(closure);
  RECORD_USER_SCOPE("autopar::optim::SGD.step");  // for timelines
  const at::NoGradGuard no_grad;
  const parameters::PartAccess access;
  detail::require_dense_real(*this, "SGD");
  for (auto& group : param_groups()) {
    const auto& options = static_cast<const SGDOptions&>(group.options());
    ContiguousParameters contiguous;
    for (const auto& [key, list] : sgd_lists(*this, group.params(), options.momentum() != 0, contiguous)) {
      const fused::SgdUpdate update{list.parameters,
                                    list.gradients,
                                    list.momentum_buffers,
                                    list.copies,
                                    options.lr(),
                                    options.weight_decay(),
                                    options.momentum(),
                                    options.dampening(),
                                    options.nesterov(),
                                    /*is_first=*/key.steps == 0};
      if (!step_on_device(update)) {
        at::_fused_sgd_(list.parameters, list.gradients, list.momentum_buffers, update.weight_decay, update.momentum,
                        update.lr, update.dampening, update.is_nesterov, /*maximize=*/false, update.is_first);
        for (const auto& buffer : list.momentum_buffers) {  // their versions count steps
          if (!buffer.is_inference()) buffer.unsafeGetTensorImpl()->bump_version();
        }
        fused::write_copies(list.parameters, list.copies);
      }
      note_written(list.parameters, list.copies);
    }
    contiguous.write_back();
  }
  return loss;
}

at::Tensor Adam::step(LossClosure closure) {
  auto loss = detail::loss_of(closure);
  RECORD_USER_SCOPE("autopar::optim::Adam.step");  // for timelines
  const at::NoGradGuard no_grad;
  const parameters::PartAccess access;
  detail::require_dense_real(*this, "Adam");
  step_adam<AdamOptions, torch::optim::AdamParamState>(*this, [](auto&&... lists) { at::_fused_adam_(lists...); });
  return loss;
}

at::Tensor AdamW::step(LossClosure closure) {
  auto loss = detail::loss_of(closure);
  RECORD_USER_SCOPE("autopar::optim::AdamW.step");  // for timelines
  const at::NoGradGuard no_grad;
  const parameters::PartAccess access;
  detail::require_dense_real(*this, "AdamW");
  step_adam<AdamWOptions, torch::optim::AdamWParamState>(*this, [](auto&&... lists) { at::_fused_adamw_(lists...); });
  return loss;
}

}  // namespace autopar::optim
