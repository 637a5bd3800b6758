#include "torch/programs/planned_modes.hpp"

#include <algorithm>

namespace autopar::programs {

void PlannedModes::add(const std::shared_ptr<CapturedProgram>& called, bool gradients) {
  const bool same = gradients && planned != nullptr && planned->captured.hash() == called->captured.hash();
  if (planned == nullptr || same)
    planned = called;
  else
    others.push_back(called);
}

planning::ModelPrograms PlannedModes::programs() const {
  planning::ModelPrograms programs{planned.get(), {}, recorded, in_8_bits};
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

}  // namespace autopar::programs
