// The modes of a model that the first plan carries, whichever of them is called first.
#include "torch/session/planned_modes.hpp"

#include <algorithm>
#include <exception>

#include "torch/ranks/collective_try.hpp"
#include "torch/session/handshake.hpp"
#include "torch/session/session_impl.hpp"

namespace autopar::session {

void PlannedModes::add(const std::shared_ptr<CapturedProgram>& called, bool gradients) {
  const bool same = gradients && planned != nullptr && planned->captured.hash() == called->captured.hash();
  if (planned == nullptr || same)
    planned = called;
  else
    others.push_back(called);
}

planning::ModelPrograms PlannedModes::programs() const {
  planning::ModelPrograms programs{planned.get(), {}, recorded};
  for (const auto& other : others) programs.others.push_back(other.get());
  return programs;
}

ModeScope::ModeScope(torch::nn::Module& module, bool training, bool gradients) : gradients_(gradients) {
  for (const auto& part : module.modules()) before_.emplace_back(part, part->is_training());
  const auto is_so = [training](const auto& part) { return part.second == training; };
  if (!std::all_of(before_.begin(), before_.end(), is_so)) module.train(training);
}

ModeScope::~ModeScope() {
  for (const auto& [part, training] : before_) {
    if (part->is_training() != training) part->train(training);
  }
}

// A forward may keep what it computes, and in the end that must be of the call's own mode: other modes come first.
PlannedModes Impl::capture_other_modes(const CallArguments& arguments, const ForwardFunction& forward) {
  PlannedModes modes;
  if (options_.inference) return modes;
  const bool training = module_->is_training(), gradients = at::GradMode::is_enabled();
  const auto& tensors = parameters_.tensors();
  const bool trains = std::any_of(tensors.begin(), tensors.end(), [](const parameters::StateTensor& tensor) {
    return tensor.is_parameter && tensor.handle.requires_grad();
  });
  if (trains && !(training && gradients)) {
    modes.planned = capture_in_mode(true, true, arguments, forward);
    if (modes.planned == nullptr && !gradients) modes.planned = capture_in_mode(training, true, arguments, forward);
  }
  if (training && may_have_stages()) {
    if (auto evaluation = capture_in_mode(false, false, arguments, forward))
      modes.others.push_back(std::move(evaluation));
  }
  return modes;
}

bool Impl::may_have_stages() const {
  return world_.size() > 1 || options_.stages > 1 || options_.replicas.size() > 1 || options_.plan_only;
}

std::shared_ptr<CapturedProgram> Impl::capture_in_mode(bool training, bool gradients, const CallArguments& arguments,
                                                       const ForwardFunction& forward) {
  auto program = std::make_shared<CapturedProgram>();
  std::string outcome;
  guarded("capturing the model", [&] {
    try {
      const ModeScope scope(*module_, training, gradients);
      capture_into(*program, arguments, forward);
      outcome = std::to_string(program->captured.hash());
    } catch (const Error& error) {
      program.reset();
      outcome = error.what();
    }
  });
  const auto name = std::string(training ? "training" : "evaluation") + (gradients ? " with gradients" : "");
  const auto outcomes =
      world_.all_gather(ranks::blob_of((program ? "+" : "-") + outcome), "capturing the model's " + name);
  const auto is_as_here = [&](const Blob& other) { return ranks::text_of(other) == "+" + outcome; };
  if (program != nullptr && std::all_of(outcomes.begin(), outcomes.end(), is_as_here)) return program;
  log_.info("the plan does not know the model's " + name +
            ", which cannot be captured with these arguments: " + outcome);
  return nullptr;
}

}  // namespace autopar::session
