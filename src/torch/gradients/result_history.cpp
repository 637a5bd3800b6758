#include "torch/gradients/result_history.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
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

#include "torch/calls/parameter_hooks.hpp"
#include "torch/device/tf32_scope.hpp"
#include "torch/gradients/gradient_factor.hpp"
#include "torch/ranks/error_message.hpp"

namespace autopar::gradients {

namespace {

using steps::Call;

/// Results whose gradients a call's header has a place for.
constexpr std::size_t kInHeader = 64;

/// A gradient as autograd wants it for an argument.
at::Tensor like_argument(const at::Tensor& gradient, const at::Tensor& argument) {
  return gradient.defined() ? gradient.to(argument.options().requires_grad(false)) : gradient;
}

/// What ranks must agree on.
std::string text_of(const results::GradientRequest& request) {
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

std::vector<bool> defined_in(const std::vector<at::Tensor>& tensors) {
  std::vector<bool> defined;
  for (const auto& tensor : tensors) defined.push_back(tensor.defined());
  return defined;
}

void require_no_single_parameters(const results::GradientRequest& request) {
  if (request.plain || !request.wants_parameters()) return;
  throw InvalidArgument(
      "gradients of named parameters (torch::autograd::grad, backward(inputs = …)) of a call inside no_sync "
      "are not summed over the ranks; make the call outside no_sync, or call backward() without inputs");
}

}  // namespace

// ---------------------------------------------------------------- loss mode

results::History ResultHistory::history_of(Call& call, const std::vector<ValueId>& roots) const {
  call.offered = &call.program->reached(roots);
  results::History history;
  history.arguments = call.arguments.tensors;
  history.own = call.arguments.own();
  history.region = call.region;
  history.parameters = parameter_edges(*call.offered);
  return history;
}

// Parameters of other ranks follow, to be refused by name where torch::autograd::grad asks for them.
torch::autograd::edge_list ResultHistory::parameter_edges(const programs::ReachedParameters& offered) const {
  torch::autograd::edge_list edges;
  const auto add = [&](const at::Tensor& handle) { edges.push_back(torch::autograd::impl::gradient_edge(handle)); };
  for (const auto& handle : offered.handles) add(handle);
  for (const auto& tensor : parts_.parameters.tensors()) {
    if (tensor.is_parameter && !parts_.parameters.holds(tensor)) add(tensor.handle);
  }
  return edges;
}

void ResultHistory::attach(const std::shared_ptr<const void>& owner, const std::shared_ptr<Call>& call,
                           std::vector<at::Tensor>& results) {
  if (call->loss_mode)
    attach_to_loss(owner, *call, results);
  else
    attach_to_outputs(owner, call, results);
}

void ResultHistory::attach_to_loss(const std::shared_ptr<const void>& owner, Call& call,
                                   std::vector<at::Tensor>& results) {
  const auto& plan = call.program->plan;
  const auto loss = static_cast<std::size_t>(plan.loss);
  const std::vector<ValueId> roots{plan.outputs[loss].value};
  auto history = history_of(call, roots);
  auto gradients = parts_.runner.gradients(call, roots);
  auto of_arguments = parts_.runner.argument_gradients(call);
  const auto outcome = std::make_shared<StepOutcome>(parts_.applier.unscale(call, gradients, of_arguments));
  history.common = {true};
  history.gradients = [this, owner, gradients = std::move(gradients), of_arguments = std::move(of_arguments),
                       arguments = call.arguments.tensors, accumulate = call.accumulate,
                       outcome](const torch::autograd::variable_list& given, const results::GradientRequest& request) {
    const at::NoGradGuard no_grad;
    torch::autograd::variable_list out(arguments.size() + request.parameters.size());
    if (!given[0].defined()) return out;
    const auto inside = parts_.ranks->enter("backward");
    if (request.plain) {
      calls::require_no_hooks(parts_.parameters);
      parts_.validator.note_loss_gradient(given[0]);
    }
    require_here(absent_parameter(request, gradients.offered->handles.size()), parts_.ranks->rank().index());
    if (accumulate) require_no_single_parameters(request);
    parts_.applier.hand_over(gradients, request, given[0], accumulate, *outcome, out);
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (of_arguments[i].defined() && request.arguments[i]) {
        out[i] = like_argument(multiplied(of_arguments[i], given[0]), arguments[i]);
      }
    }
    return out;
  };
  std::vector<at::Tensor> attached{results[loss]};
  results::attach_history(parts_.ranks, attached, std::move(history));
  results[loss] = attached[0];
}

// ---------------------------------------------------------------- output mode

void ResultHistory::attach_to_outputs(const std::shared_ptr<const void>& owner, const std::shared_ptr<Call>& call,
                                      std::vector<at::Tensor>& results) {
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
  history.gradients = [this, owner, call, outputs](const torch::autograd::variable_list& given,
                                                   const results::GradientRequest& request) {
    const auto inside = parts_.ranks->enter("backward");
    parts_.runner.trace().enter(/*inside_autograd=*/true);
    return gradients_behind(*call, outputs, given, request);
  };
  results::attach_history(parts_.ranks, roots, std::move(history));
  for (std::size_t k = 0; k < outputs.size(); ++k) results[outputs[k]] = roots[k];
}

// What all ranks must agree on comes first: where they do not, each of them throws, and nothing was begun.
std::vector<at::Tensor> ResultHistory::gradients_behind(Call& call, const std::vector<std::size_t>& outputs,
                                                        const std::vector<at::Tensor>& of_results,
                                                        const results::GradientRequest& request) {
  const at::NoGradGuard no_grad;
  const devices::Tf32Scope tf32(parts_.options.precision == Precision::kTf32, parts_.deployment.device());
  const auto agreed = agree(call, of_results, request);
  const auto common = common_gradients(call, outputs, of_results, agreed.defined);
  if (parts_.ranks->size() > 1 && !request.completed && !request.from_user) warn_of_own_loss(call, outputs, of_results);
  return ranks::or_fail(*parts_.ranks, "backward",
                        [&] { return run(call, outputs, of_results, common, agreed, request); });
}

ResultHistory::Agreed ResultHistory::agree(const Call& call, const std::vector<at::Tensor>& of_results,
                                           const results::GradientRequest& request) {
  const auto asked = defined_in(of_results);
  Agreed agreed{asked, std::vector<bool>(asked.size(), false)};
  auto header = parts_.validator.header(calls::CallKind::kBackward);
  header.accumulates = call.accumulate;
  header.absent = absent_parameter(request, call.offered->handles.size());
  for (std::size_t k = 0; k < std::min(of_results.size(), kInHeader); ++k) header.word |= asked[k] ? 1ULL << k : 0;
  header.obstacles = parts_.graphed.obstacles_behind(call, asked, request.plain);
  std::exception_ptr error;
  try {
    if (request.plain) calls::require_no_hooks(parts_.parameters);
    parts_.graphed.require_same_parameters(call);
  } catch (const InvalidArgument&) {
    error = std::current_exception();
  }
  const auto headers = parts_.validator.agree(header, text_of(request), error);
  for (std::size_t r = 0; r < headers.size(); ++r) {
    require_here(headers[r].absent, r);
    for (std::size_t k = 0; k < std::min(of_results.size(), kInHeader); ++k) {
      agreed.defined[k] = agreed.defined[k] || ((headers[r].word >> k) & 1) != 0;
    }
    agreed.pending = agreed.pending || headers[r].has_pending;
    agreed.obstacles |= headers[r].obstacles;
  }
  if (of_results.size() > kInHeader) {  // all ranks have as many
    Blob mine(of_results.size(), std::byte{0});
    for (std::size_t k = 0; k < of_results.size(); ++k) mine[k] = std::byte{asked[k]};
    for (const auto& theirs : parts_.ranks->all_gather(mine, "agreeing on gradients")) {
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

std::vector<at::Tensor> ResultHistory::run(Call& call, const std::vector<std::size_t>& outputs,
                                           const std::vector<at::Tensor>& of_results,
                                           const std::map<ValueId, at::Tensor>& common, const Agreed& agreed,
                                           const results::GradientRequest& request) {
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
    } else if (of_results[k].defined()) {
      given[k] = scaled(of_results[k].to(parts_.deployment.device()));
    }
  }
  auto of_stages = parts_.graphed.backward(call, {outputs, given, roots, agreed.asked, agreed.obstacles});
  if (agreed.pending && !call.accumulate) parts_.applier.reduce_accumulated();
  auto of_arguments = parts_.runner.argument_gradients(call);
  auto outcome = parts_.applier.unscale(call, of_stages, of_arguments);
  std::vector<at::Tensor> out(of_arguments.size() + request.parameters.size());
  parts_.applier.hand_over(of_stages, request,
                           at::ones({}, at::TensorOptions().dtype(at::kDouble).device(parts_.deployment.device())),
                           call.accumulate, outcome, out);
  for (std::size_t i = 0; i < of_arguments.size(); ++i) {
    if (request.arguments[i]) out[i] = like_argument(of_arguments[i], call.arguments.tensors[i]);
  }
  call.state.engine.reset();
  parts_.runner.trace().leave("backward", true);
  return out;
}

// A result that all ranks hold is one value of the concatenated program, however many copies of it there are: its
// gradient is the mean of theirs, which are the same but for rounding.
std::map<ValueId, at::Tensor> ResultHistory::common_gradients(const Call& call, const std::vector<std::size_t>& outputs,
                                                              const std::vector<at::Tensor>& of_results,
                                                              const std::vector<bool>& defined) {
  std::vector<std::size_t> common;
  std::vector<at::Tensor> addends;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const auto& output = call.program->plan.outputs[outputs[k]];
    if (!defined[k] || output.kind == algebra::OutputKind::kBatched) continue;
    const auto& info = call.program->graph.value(output.value);
    const auto options = at::TensorOptions().dtype(info.dtype).device(parts_.deployment.device());
    const auto gradient = of_results[k].defined() ? of_results[k].to(parts_.deployment.device())
                                                  : at::zeros(ir::sizes_at(info, call.batch), options);
    const auto wide = gradient.abs().to(at::kDouble);
    addends.push_back(gradient);
    addends.push_back(wide.mul(wide));
    addends.push_back(at::full({}, of_results[k].defined() ? 1 : 0,
                               at::TensorOptions().dtype(at::kDouble).device(parts_.deployment.device())));
    common.push_back(k);
  }
  std::map<ValueId, at::Tensor> means;
  if (common.empty()) return means;
  const auto totals = parts_.deployment.sums().sum(addends);
  for (std::size_t c = 0; c < common.size(); ++c) {
    const auto k = common[c];
    auto mean = totals[3 * c].div(totals[3 * c + 2].to(totals[3 * c].scalar_type()));
    if (parts_.ranks->size() > 1)
      require_same(of_results[k], mean, totals[3 * c + 1].div(totals[3 * c + 2]), outputs[k]);
    auto& sum = means[call.program->plan.outputs[outputs[k]].value];  // which may be several results
    sum = sum.defined() ? sum.add(mean) : std::move(mean);
  }
  return means;
}

/// @param squares  mean of the squares of the ranks' gradients
void ResultHistory::require_same(const at::Tensor& mine, const at::Tensor& mean, const at::Tensor& squares,
                                 std::size_t result) {
  constexpr double kRounding = 1e-5;
  if (mean.numel() == 0) return;
  const auto of_mean = mean.abs().to(at::kDouble);
  const auto spread = squares.sub(of_mean.mul(of_mean)).clamp_min(0).max().item<double>();
  if (!(spread > kRounding * kRounding * squares.max().item<double>())) return;
  const double own = mine.defined() ? mine.abs().to(at::kDouble).sum().item<double>() : 0;
  std::vector<double> sums;
  for (const auto& blob : parts_.ranks->all_gather(std::as_bytes(std::span(&own, 1)), "comparing gradients")) {
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

parameters::StateId ResultHistory::absent_parameter(const results::GradientRequest& request,
                                                    std::size_t offered) const {
  if (request.plain) return {};
  std::size_t k = offered;
  for (const auto& tensor : parts_.parameters.tensors()) {
    if (!tensor.is_parameter || parts_.parameters.holds(tensor)) continue;
    if (request.returned[k++]) return tensor.id;
  }
  return {};
}

void ResultHistory::require_here(parameters::StateId absent, std::size_t rank) const {
  if (!absent.valid()) return;
  const auto& tensor = parts_.parameters.at(absent);
  throw InvalidArgument(
      "torch::autograd::grad on rank " + std::to_string(rank) + " asks for the gradient of parameter '" +
      tensor.name() + "', which has no data there but on rank " + std::to_string(tensor.holders.front().value()) +
      "; ask for those of model->owned_parameters(), or call " + "backward() and read .grad of these");
}

// Sums are a choice of their own, which cannot be told from means: it is said once.
void ResultHistory::warn_of_own_loss(const Call& call, const std::vector<std::size_t>& outputs,
                                     const std::vector<at::Tensor>& of_results) {
  bool own = false;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    own = own ||
          (of_results[k].defined() && call.program->plan.outputs[outputs[k]].kind == algebra::OutputKind::kBatched);
  }
  if (!own || std::exchange(warned_of_own_loss_, true) || !parts_.ranks->is_first()) return;
  const auto ranks = std::to_string(parts_.ranks->size());
  parts_.ranks->logger(LogModule::kSession)
      .warn(
          "backward of a loss that is computed outside the model, from this rank's results alone: gradients are summed "
          "over " +
          ranks + " ranks, so of a mean they are " + ranks +
          " x those of one process. Let the model compute it, "
          "model->train_step(loss_function, inputs, targets), or complete it, ap::global_mean(world, loss * n, n) with "
          "n "
          "samples on this rank. Of a sum over samples they are right");
}

}  // namespace autopar::gradients
