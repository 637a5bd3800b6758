// What a call's results have behind them in autograd's graph, and their backward.
#include "torch/session/session_impl.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/variable.h>

#include <autopar/core/error.hpp>

#include "torch/device/tf32_scope.hpp"
#include "torch/session/result_node.hpp"

namespace autopar::session {

namespace {

/// Results whose gradients a call's header has a place for.
constexpr std::size_t kInHeader = 64;

at::Tensor multiplied(const at::Tensor& gradient, const at::Tensor& factor) {
  return gradient.mul(factor.reshape({}).to(gradient.options()));
}

/// A gradient as autograd wants it for an argument.
at::Tensor like_argument(const at::Tensor& gradient, const at::Tensor& argument) {
  return gradient.defined() ? gradient.to(argument.options().requires_grad(false)) : gradient;
}

/// What ranks must agree on.
std::string text_of(const BackwardRequest& request) {
  std::string text(request.retain ? "keeping the graph, " : "");
  if (request.plain) return text + "gradients of everything";
  text += "gradients of the inputs that were named: arguments";
  for (std::size_t i = 0; i < request.arguments.size(); ++i)
    text += request.arguments[i] ? " " + std::to_string(i) : "";
  bool adds = false;  // torch::autograd::grad leaves .grad as it is, and a rank may own none to ask for
  for (std::size_t k = 0; k < request.parameters.size(); ++k)
    adds = adds || (request.parameters[k] && !request.returned[k]);
  return text + (adds ? ", and .grad of parameters" : "");
}

}  // namespace

// ---------------------------------------------------------------- loss mode

History Impl::history_of(Call& call, const std::vector<ValueId>& roots) {
  call.offered = &call.program->reached(roots);
  History history;
  history.arguments = call.arguments.tensors;
  history.own = call.arguments.own();
  history.region = call.region;
  history.parameters = parameter_edges(*call.program, *call.offered);
  return history;
}

// Parameters of other ranks follow, to be refused by name where torch::autograd::grad asks for them.
torch::autograd::edge_list Impl::parameter_edges(const CapturedProgram& program,
                                                 const std::vector<ValueId>& offered) const {
  torch::autograd::edge_list edges;
  const auto add = [&](const at::Tensor& handle) { edges.push_back(torch::autograd::impl::gradient_edge(handle)); };
  for (const auto parameter : offered) add(program.runtime->handle(parameter));
  for (const auto& tensor : parameters_.tensors()) {
    if (tensor.is_parameter && !parameters_.holds(tensor)) add(tensor.handle);
  }
  return edges;
}

void Impl::attach_loss_history(Call& call, std::vector<at::Tensor>& results) {
  const auto& plan = call.program->plan;
  const auto loss = static_cast<std::size_t>(plan.loss);
  const std::vector<ValueId> roots{plan.outputs[loss].value};
  auto history = history_of(call, roots);
  auto gradients = gradients_of(call, roots);
  auto of_inputs = input_gradients(call);
  const auto outcome = std::make_shared<StepOutcome>(unscale(call, gradients, of_inputs));
  history.common = {true};
  history.backward = [self = shared_from_this(), gradients = std::move(gradients), of_inputs = std::move(of_inputs),
                      arguments = call.arguments.tensors, accumulate = call.accumulate,
                      outcome](const torch::autograd::variable_list& given, const BackwardRequest& request) {
    const at::NoGradGuard no_grad;
    torch::autograd::variable_list out(arguments.size() + request.parameters.size());
    if (!given[0].defined()) return out;
    const auto inside = self->world_.enter("backward");
    self->note_loss_backward(request, given[0]);
    self->require_here(self->absent_parameter(request, gradients.offered->size()), self->world_.rank_id().index());
    if (accumulate) self->require_no_single_parameters(request);
    self->hand_over(gradients, request, given[0], accumulate, *outcome, out);
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (of_inputs[i].defined() && request.arguments[i]) {
        out[i] = like_argument(multiplied(of_inputs[i], given[0]), arguments[i]);
      }
    }
    return out;
  };
  std::vector<at::Tensor> attached{results[loss]};
  attach_history(world_, attached, std::move(history));
  results[loss] = attached[0];
}

// Nothing is sent here: the next call compares what the ranks did.
void Impl::note_loss_backward(const BackwardRequest& request, const at::Tensor& factor) {
  if (!request.plain) return;
  ++loss_backwards_;
  if (factor.is_cpu()) loss_factors_ += factor.item<double>();
}

std::vector<at::Tensor> Impl::input_gradients(Call& call) {
  std::vector<at::Tensor> gradients(call.arguments.tensors.size());
  std::vector<std::size_t> shared;
  std::vector<at::Tensor> addends;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!call.program->inputs[i].requires_grad) continue;
    gradients[i] = call.engine->take_input_gradient(i);
    if (call.program->inputs[i].batch_dim) continue;
    shared.push_back(i);
    addends.push_back(gradients[i]);
  }
  if (shared.empty()) return gradients;
  const auto totals = deployment_.sums().sum(addends);
  for (std::size_t k = 0; k < shared.size(); ++k) gradients[shared[k]] = totals[k];
  return gradients;
}

// ---------------------------------------------------------------- output mode

void Impl::attach_output_history(const std::shared_ptr<Call>& call, std::vector<at::Tensor>& results) {
  std::vector<std::size_t> outputs;
  std::vector<at::Tensor> roots;
  std::vector<ValueId> values;
  std::vector<bool> common;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto& output = call->program->plan.outputs[i];
    if (!output.differentiable || output.kind == algebra::OutputKind::kInput ||
        output.kind == algebra::OutputKind::kPrologue)
      continue;
    outputs.push_back(i);
    roots.push_back(results[i]);
    values.push_back(output.value);
    common.push_back(output.kind != algebra::OutputKind::kBatched);
  }
  if (roots.empty()) return;
  auto history = history_of(*call, values);
  history.common = common;
  history.backward = [self = shared_from_this(), call, outputs](const torch::autograd::variable_list& given,
                                                                const BackwardRequest& request) {
    const auto inside = self->world_.enter("backward");
    return self->backward_of_outputs(*call, outputs, given, request);
  };
  attach_history(world_, roots, std::move(history));
  for (std::size_t k = 0; k < outputs.size(); ++k) results[outputs[k]] = roots[k];
}

// What all ranks must agree on comes first: where they do not, each of them throws, and nothing was begun.
std::vector<at::Tensor> Impl::backward_of_outputs(Call& call, const std::vector<std::size_t>& outputs,
                                                  const std::vector<at::Tensor>& gradients,
                                                  const BackwardRequest& request) {
  const at::NoGradGuard no_grad;
  const devices::Tf32Scope tf32(options_.precision == "tf32", deployment_.device());
  const auto agreed = agree_on_backward(call, gradients, request);
  if (!call.versions.empty()) require_same_parameters(call);
  const auto common = common_gradients(call, outputs, gradients, agreed.defined);
  if (world_.size() > 1 && !request.completed && !request.from_user) warn_of_own_loss(call, outputs, gradients);
  return guarded("backward", [&] { return run_backward(call, outputs, gradients, common, agreed, request); });
}

Impl::AgreedBackward Impl::agree_on_backward(const Call& call, const std::vector<at::Tensor>& gradients,
                                             const BackwardRequest& request) {
  auto header = next_header(CallKind::kBackward);
  header.accumulates = call.accumulate;
  header.absent = absent_parameter(request, call.offered->size());
  for (std::size_t k = 0; k < std::min(gradients.size(), kInHeader); ++k)
    header.word |= gradients[k].defined() ? 1ULL << k : 0;
  const auto headers = exchange(world_, header, text_of(request));
  AgreedBackward agreed{std::vector<bool>(gradients.size(), false)};
  for (std::size_t r = 0; r < headers.size(); ++r) {
    require_here(headers[r].absent, r);
    for (std::size_t k = 0; k < std::min(gradients.size(), kInHeader); ++k) {
      agreed.defined[k] = agreed.defined[k] || ((headers[r].word >> k) & 1) != 0;
    }
    agreed.pending = agreed.pending || headers[r].has_pending;
  }
  if (gradients.size() > kInHeader) {  // all ranks have as many
    Blob mine(gradients.size(), std::byte{0});
    for (std::size_t k = 0; k < gradients.size(); ++k) mine[k] = std::byte{gradients[k].defined()};
    for (const auto& theirs : world_.all_gather(mine, "agreeing on gradients")) {
      for (std::size_t k = 0; k < theirs.size(); ++k)
        agreed.defined[k] = agreed.defined[k] || theirs[k] != std::byte{0};
    }
  }
  if (request.retain) {
    throw InvalidArgument(
        "backward(retain_graph = true) through results of an AutoParallel model is supported for a single loss only, "
        "because the activations of other results are freed while they are used; add up the losses and call backward "
        "once");
  }
  if (call.accumulate) require_no_single_parameters(request);
  return agreed;
}

std::vector<at::Tensor> Impl::run_backward(Call& call, const std::vector<std::size_t>& outputs,
                                           const std::vector<at::Tensor>& gradients,
                                           const std::map<ValueId, at::Tensor>& common, const AgreedBackward& agreed,
                                           const BackwardRequest& request) {
  const auto& plan = call.program->plan;
  const auto scaled = [&](const at::Tensor& gradient) {
    return call.loss_scale != 1 && gradient.defined() ? gradient.mul(call.loss_scale) : gradient;
  };
  std::vector<ValueId> roots;
  std::set<ValueId> seeded;
  std::vector<at::Tensor> given(outputs.size());
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (!agreed.defined[k]) continue;
    const auto& output = plan.outputs[outputs[k]];
    roots.push_back(output.value);
    if (output.kind != algebra::OutputKind::kBatched) {
      if (seeded.insert(output.value).second) given[k] = scaled(common.at(output.value));
    } else if (gradients[k].defined()) {
      given[k] = scaled(gradients[k].to(deployment_.device()));
    }
  }
  auto of_stages = make_gradients(call, outputs, given, roots, request);
  if (agreed.pending && !call.accumulate) reduce_accumulated();
  auto of_inputs = input_gradients(call);
  auto outcome = unscale(call, of_stages, of_inputs);
  std::vector<at::Tensor> out(of_inputs.size() + request.parameters.size());
  hand_over(of_stages, request, at::ones({}, at::TensorOptions().dtype(at::kDouble).device(deployment_.device())),
            call.accumulate, outcome, out);
  for (std::size_t i = 0; i < of_inputs.size(); ++i) {
    if (request.arguments[i]) out[i] = like_argument(of_inputs[i], call.arguments.tensors[i]);
  }
  call.engine.reset();
  return out;
}

StageGradients Impl::gradients_by_stages(Call& call, const std::vector<std::size_t>& outputs,
                                         const std::vector<at::Tensor>& given, const std::vector<ValueId>& roots) {
  call.engine->start_gradients();
  std::map<ValueId, at::Tensor> of_tail;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (!given[k].defined()) continue;
    const auto& output = call.program->plan.outputs[outputs[k]];
    if (output.kind == algebra::OutputKind::kEpilogue)
      of_tail[output.value] = given[k];
    else if (output.kind == algebra::OutputKind::kBatched)
      call.engine->add_result_gradient(output.value, given[k]);
    else
      call.engine->add_sum_gradient(output.value, given[k]);
  }
  if (!of_tail.empty()) {
    for (auto& [value, gradient] : Epilogue::gradients(*call.tail, of_tail, false)) {
      call.engine->add_sum_gradient(value, gradient);
    }
  }
  execute(call, Phase::kBackward);
  return gradients_of(call, roots);
}

// A result that all ranks hold is one value of the concatenated program, however many copies of it there are: its
// gradient is the mean of theirs, which are the same but for rounding.
std::map<ValueId, at::Tensor> Impl::common_gradients(const Call& call, const std::vector<std::size_t>& outputs,
                                                     const std::vector<at::Tensor>& gradients,
                                                     const std::vector<bool>& defined) {
  std::vector<std::size_t> common;
  std::vector<at::Tensor> addends;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const auto& output = call.program->plan.outputs[outputs[k]];
    if (!defined[k] || output.kind == algebra::OutputKind::kBatched) continue;
    const auto& info = call.program->graph.value(output.value);
    const auto options = at::TensorOptions().dtype(info.dtype).device(deployment_.device());
    const auto gradient = gradients[k].defined() ? gradients[k].to(deployment_.device())
                                                 : at::zeros(ir::sizes_at(info, call.batch), options);
    const auto wide = gradient.abs().to(at::kDouble);
    addends.push_back(gradient);
    addends.push_back(wide.mul(wide));
    addends.push_back(at::full({}, gradients[k].defined() ? 1 : 0,
                               at::TensorOptions().dtype(at::kDouble).device(deployment_.device())));
    common.push_back(k);
  }
  std::map<ValueId, at::Tensor> means;
  if (common.empty()) return means;
  const auto totals = deployment_.sums().sum(addends);
  for (std::size_t c = 0; c < common.size(); ++c) {
    const auto k = common[c];
    auto mean = totals[3 * c].div(totals[3 * c + 2].to(totals[3 * c].scalar_type()));
    if (world_.size() > 1) require_same(gradients[k], mean, totals[3 * c + 1].div(totals[3 * c + 2]), outputs[k]);
    auto& sum = means[call.program->plan.outputs[outputs[k]].value];  // which may be several results
    sum = sum.defined() ? sum.add(mean) : std::move(mean);
  }
  return means;
}

/// @param squares  mean of the squares of the ranks' gradients
void Impl::require_same(const at::Tensor& mine, const at::Tensor& mean, const at::Tensor& squares, std::size_t result) {
  constexpr double kRounding = 1e-5;
  if (mean.numel() == 0) return;
  const auto of_mean = mean.abs().to(at::kDouble);
  const auto spread = squares.sub(of_mean.mul(of_mean)).clamp_min(0).max().item<double>();
  if (!(spread > kRounding * kRounding * squares.max().item<double>())) return;
  const double own = mine.defined() ? mine.abs().to(at::kDouble).sum().item<double>() : 0;
  std::vector<double> sums;
  for (const auto& blob : world_.all_gather(std::as_bytes(std::span(&own, 1)), "comparing gradients")) {
    std::memcpy(&sums.emplace_back(), blob.data(), sizeof(double));
  }
  const auto [least, most] = std::ranges::minmax_element(sums);
  std::ostringstream text;
  text << "result " << result
       << " of an AutoParallel model is the same on all ranks, so its gradient must be, too, but its "
       << "absolute values add up to " << *least << " on rank " << least - sums.begin() << " and " << *most
       << " on rank " << most - sums.begin() << ", as a loss of each rank's own samples uses it; end that loss with "
       << "ap::global_mean(world, sum, count), or compute it in forward or model->train_step";
  throw InvalidArgument(text.str());
}

// ---------------------------------------------------------------- what a backward asks for

int Impl::absent_parameter(const BackwardRequest& request, std::size_t offered) const {
  if (request.plain) return -1;
  std::size_t k = offered;
  for (std::size_t t = 0; t < parameters_.tensors().size(); ++t) {
    const auto& tensor = parameters_.tensors()[t];
    if (!tensor.is_parameter || parameters_.holds(tensor)) continue;
    if (request.returned[k++]) return static_cast<int>(t);
  }
  return -1;
}

void Impl::require_here(int absent, std::size_t rank) const {
  if (absent < 0) return;
  const auto& tensor = parameters_.tensors()[static_cast<std::size_t>(absent)];
  throw InvalidArgument(
      "torch::autograd::grad on rank " + std::to_string(rank) + " asks for the gradient of parameter '" +
      tensor.name() + "', which has no data there but on rank " + std::to_string(tensor.holders.front().value()) +
      "; ask for those of model->owned_parameters(), or call " + "backward() and read .grad of these");
}

void Impl::require_no_single_parameters(const BackwardRequest& request) const {
  if (request.plain || !request.wants_parameters()) return;
  throw InvalidArgument(
      "gradients of named parameters (torch::autograd::grad, backward(inputs = …)) of a call inside no_sync "
      "are not summed over the ranks; make the call outside no_sync, or call backward() without inputs");
}

/// `.grad` of the parameters that are asked for, or their gradients behind those of the arguments in `out`.
void Impl::hand_over(const StageGradients& gradients, const BackwardRequest& request, const at::Tensor& factor,
                     bool accumulate, StepOutcome& outcome, std::vector<at::Tensor>& out) {
  if (request.plain) {
    if (accumulate || !skips(outcome)) apply(gradients, factor, request.retain, accumulate);
    return;
  }
  bool adds = false;
  for (std::size_t k = 0; k < request.parameters.size(); ++k)
    adds = adds || (request.parameters[k] && !request.returned[k]);
  const bool skipped = adds && skips(outcome);
  if (adds && !skipped) flush_reduced();
  const auto first = out.size() - request.parameters.size();
  const auto& runtime = *gradients.program->runtime;
  for (std::size_t k = 0; k < gradients.offered->size(); ++k) {
    if (!request.parameters[k] || (skipped && !request.returned[k])) continue;
    const auto parameter = (*gradients.offered)[k];
    const auto& gradient = gradients.by_position[runtime.position_of(parameter)];
    if (!gradient.defined()) continue;
    const auto& handle = runtime.handle(parameter);
    out[first + k] = multiplied(gradient, factor).to(handle.device());
    parameters::mark_like(out[first + k], handle);
  }
}

// Sums are a choice of their own, which cannot be told from means: it is said once.
void Impl::warn_of_own_loss(const Call& call, const std::vector<std::size_t>& outputs,
                            const std::vector<at::Tensor>& gradients) {
  bool own = false;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    own =
        own || (gradients[k].defined() && call.program->plan.outputs[outputs[k]].kind == algebra::OutputKind::kBatched);
  }
  if (!own || std::exchange(warned_of_own_loss_, true) || world_.rank() != 0) return;
  const auto ranks = std::to_string(world_.size());
  log_.warn(
      "backward of a loss that is computed outside the model, from this rank's results alone: gradients are summed "
      "over " +
      ranks + " ranks, so of a mean they are " + ranks +
      " x those of one process. Let the model compute it, "
      "model->train_step(loss_function, inputs, targets), or complete it, ap::global_mean(world, loss * n, n) with n "
      "samples on this rank. Of a sum over samples they are right");
}

}  // namespace autopar::session
