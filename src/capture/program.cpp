#include <cstddef>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include <autopar/capture/capture.hpp>
#include <autopar/core/error.hpp>

#include "capture/replay/replay.hpp"
#include "capture/trace/capture.hpp"

namespace autopar::detail {

struct FlatProgram::State {
  std::shared_ptr<torch::nn::Module> module;
  std::string structure;
  std::vector<bool> defined;             ///< by argument
  std::vector<trace::InputSpec> inputs;  ///< of those that are defined
  std::vector<bool> made;                ///< by result: whether forward gives a tensor there
  OpGraph graph;
};

namespace {

/// Samples of the arguments. @throws InvalidArgument if they disagree
std::int64_t samples_of(const std::vector<at::Tensor>& tensors) {
  std::optional<std::int64_t> samples;
  for (const auto& tensor : tensors) {
    if (!tensor.defined() || tensor.dim() == 0) continue;
    if (samples && *samples != tensor.size(0)) {
      throw InvalidArgument("dim 0 of each tensor argument is the batch, but one has " + std::to_string(*samples) +
                            " samples and one has " + std::to_string(tensor.size(0)));
    }
    samples = tensor.size(0);
  }
  return samples.value_or(1);
}

trace::InputSpec spec_of(const at::Tensor& tensor) {
  return trace::input_spec(tensor, tensor.dim() == 0 ? std::nullopt : std::optional<std::int64_t>(0));
}

/// Whether the argument is like the captured one but for its samples, and whether it has a gradient.
bool is_like(const at::Tensor& tensor, const trace::InputSpec& captured) {
  if (tensor.scalar_type() != captured.dtype || static_cast<std::size_t>(tensor.dim()) != captured.sizes.size())
    return false;
  for (std::size_t d = captured.batch_dim ? 1 : 0; d < captured.sizes.size(); ++d) {
    if (tensor.size(static_cast<std::int64_t>(d)) != captured.sizes[d]) return false;
  }
  return true;
}

c10::Device device_of(const torch::nn::Module& module, const std::vector<at::Tensor>& tensors) {
  for (const auto& parameter : module.parameters()) return parameter.device();
  for (const auto& tensor : tensors)
    if (tensor.defined()) return tensor.device();
  return at::kCPU;
}

}  // namespace

FlatProgram::FlatProgram(std::shared_ptr<torch::nn::Module> module, const Flattened& arguments,
                         const Forward& forward) {
  auto state = std::make_shared<State>();
  state->module = std::move(module);
  state->structure = arguments.structure;
  static_cast<void>(samples_of(arguments.tensors));
  for (const auto& tensor : arguments.tensors) {
    state->defined.push_back(tensor.defined());
    if (tensor.defined()) state->inputs.push_back(spec_of(tensor));
  }
  const auto flat_forward = [&](const std::vector<at::Tensor>& given) {
    std::vector<at::Tensor> all;
    std::size_t next = 0;
    for (const bool is_defined : state->defined) all.push_back(is_defined ? given[next++] : at::Tensor());
    std::vector<at::Tensor> results;
    state->made.clear();
    for (auto& result : forward(all)) {
      state->made.push_back(result.defined());
      if (result.defined()) results.push_back(std::move(result));
    }
    return results;
  };
  state->graph = autopar::trace::capture(*state->module, state->inputs, flat_forward, trace::CaptureOptions{});
  state_ = std::move(state);
}

const OpGraph& FlatProgram::graph() const { return state_->graph; }

std::vector<at::Tensor> FlatProgram::run(const Flattened& arguments) const {
  if (arguments.structure != state_->structure)
    throw InvalidArgument("replay takes arguments with the containers and constants of the capture's");
  const auto samples = samples_of(arguments.tensors);
  std::vector<at::Tensor> given;
  for (std::size_t i = 0; i < arguments.tensors.size(); ++i) {
    const auto& tensor = arguments.tensors[i];
    const auto place = "tensor argument " + std::to_string(i);
    if (tensor.defined() != state_->defined[i])
      throw InvalidArgument(place + " was " + (state_->defined[i] ? "defined" : "undefined") + " in the capture");
    if (!tensor.defined()) continue;
    if (!is_like(tensor, state_->inputs[given.size()])) {
      std::ostringstream sizes;
      sizes << tensor.sizes() << " of " << tensor.scalar_type();
      throw InvalidArgument(place + " has sizes " + sizes.str() +
                            ": only the number of samples may be another than in the capture. Capture once more");
    }
    given.push_back(tensor);
  }
  const auto& graph = state_->graph;
  replay::Replayer replayer(graph, replay::all_ops(graph), graph.outputs, device_of(*state_->module, given));
  auto environment = replayer.environment();
  replay::bind_state(graph, *state_->module, environment);
  for (std::size_t i = 0; i < given.size(); ++i) environment[graph.inputs[i].index()] = given[i];
  replayer.run(environment, {samples, samples});
  std::vector<at::Tensor> results;
  std::size_t next = 0;
  for (const bool is_made : state_->made)
    results.push_back(is_made ? environment[graph.outputs[next++].index()] : at::Tensor());
  return results;
}

}  // namespace autopar::detail
