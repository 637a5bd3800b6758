#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include "torch/planning/model_program.hpp"
#include "torch/programs/captured_program.hpp"

namespace autopar::programs {

/// What the first plan is made of: a program that is planned, as a rule the model's training whatever is called first,
/// and programs in other modes, which must run on the same placement.
struct PlannedModes {
  std::shared_ptr<CapturedProgram> planned;
  std::vector<std::shared_ptr<CapturedProgram>> others;
  bool recorded = false;               ///< whether steps of what is planned are recorded where they repeat
  std::vector<std::string> in_8_bits;  ///< weights of layers whose products run in 8 bits

  /// The program that is called: planned if nothing else is, or if that is the same.
  void add(const std::shared_ptr<CapturedProgram>& called, bool gradients);
  /// As planning takes them. @pre this outlives them
  [[nodiscard]] planning::ModelPrograms programs() const;
};

/// While it lives, a module is in another mode, and gradients are on or off.
class ModeScope {
 public:
  ModeScope(torch::nn::Module& module, bool training, bool gradients);
  ~ModeScope();
  ModeScope(const ModeScope&) = delete;
  ModeScope& operator=(const ModeScope&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> before_;  ///< parents before their children
  const at::AutoGradMode gradients_;
};

/// What is made while it lives may be trained, also where a call is made in libtorch's inference mode.
class NormalModeScope {
 public:
  NormalModeScope() : gradients_(at::GradMode::is_enabled()), normal_(false), as_before_(gradients_) {}
  NormalModeScope(const NormalModeScope&) = delete;
  NormalModeScope& operator=(const NormalModeScope&) = delete;

 private:
  const bool gradients_;
  const c10::InferenceMode normal_;
  const at::AutoGradMode as_before_;
};

}  // namespace autopar::programs
