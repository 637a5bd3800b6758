#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}

namespace autopar {

/// What the attached optimizers did since the last call, which must be the same on all ranks: libtorch's optimizers tell
/// nobody when they step.
class OptimizerWatch {
 public:
  static constexpr std::size_t kCompared = 4;  ///< optimizers, the first ones attached

  /// Of one optimizer. Plain bytes: ranks send it to one another.
  struct Seen {
    std::int64_t had_gradients = 0;     ///< else nothing is known
    std::int64_t steps = -1;            ///< -1: not known, as it keeps no state
    std::uint64_t hyper_parameters = 0; ///< hash
  };

  /// It must live as long as calls make gradients for its parameters, or until another one for some of them is watched.
  void watch(torch::optim::Optimizer& optimizer);
  /// A parameter got a gradient that its optimizer may step with.
  void note_gradient(const at::Tensor& handle);

  /// Since the last time it was asked, by optimizer. Nothing is read of those whose parameters had no gradients meanwhile.
  [[nodiscard]] std::array<Seen, kCompared> look();
  /// "AdamW, lr 0.1, …" of an optimizer that was read in the latest look.
  [[nodiscard]] std::string describe(std::size_t optimizer) const;

 private:
  struct Watched {
    torch::optim::Optimizer* optimizer = nullptr;
    std::unordered_set<const void*> parameters{};  ///< their addresses, which outlive it
    std::int64_t counted = 0;
    bool had_gradients = false;
  };
  std::vector<Watched> watched_;
};

}  // namespace autopar
