#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torch/device/host_copies.hpp"
#include "torch/parameters/step_count.hpp"

namespace torch::optim {
class Optimizer;
}

namespace autopar::calls {

/// What the attached optimizers did since the last call, for ranks to compare: libtorch's optimizers tell nobody when
/// they step.
///
/// State counts steps, see StepMark. Where an optimizer keeps none, a few elements of a parameter are looked at before
/// and after, and the update is replayed. On devices these are copied to the host meanwhile and counted a look later.
class OptimizerWatch {
 public:
  static constexpr std::size_t kCompared = 4;  ///< optimizers, the first ones attached

  /// In place of a number of steps.
  static constexpr std::int64_t kUnknown = -1;
  static constexpr std::int64_t kSome = -2;  ///< parameters changed in another way than by steps with their gradients
  static constexpr std::int64_t kNone = -3;  ///< no steps, or no gradients when there were some: a loop took them away

  /// Of one optimizer. Plain bytes: ranks send it to one another.
  struct Steps {
    std::int64_t count = kUnknown;
    std::uint64_t parameters = 0;  ///< hash of which had gradients; others' say nothing about kSome and kNone
    std::int64_t look = 0;         ///< in which the steps ended; 0 = nothing is known
  };
  /// Of one optimizer. Plain bytes as well.
  struct Seen {
    std::uint64_t parameters = 0;        ///< hash of which had gradients; 0 = none had, and nothing was read
    std::uint64_t hyper_parameters = 0;  ///< hash
    Steps steps;
  };

  /// It must live as long as calls make gradients for its parameters, or until another one for some of them is watched.
  void watch(torch::optim::Optimizer& optimizer);
  /// A parameter has got a gradient that its optimizer may step with.
  /// @param is_whole  the rank has all of it
  void note_gradient(const at::Tensor& handle, bool is_whole);
  /// Gradients are about to be zeroed, or dropped, after all steps.
  void note_zeroing();
  /// State or parameters were replaced: nothing is known of steps until the next gradients.
  void forget();

  /// Since the last time it was asked, by optimizer. Nothing is read of those whose parameters had no gradients
  /// meanwhile.
  [[nodiscard]] std::array<Seen, kCompared> look();
  /// "AdamW, lr 0.1, …" of an optimizer that was read in the latest look.
  [[nodiscard]] std::string describe(std::size_t optimizer) const;

 private:
  struct Place {
    std::size_t number;  ///< among the optimizer's parameters
    std::size_t group;
  };
  /// Some elements of a parameter that is stepped without state.
  struct Sample {
    at::Tensor places, before;
    parameters::PlainUpdate update;  ///< then: a schedule may change it before the look, or after the step
  };
  /// A parameter that is asked what became of it.
  struct Asked {
    at::Tensor handle;
    at::Tensor gradient;  ///< its `.grad`, kept alive: what zeroes it leaves a trace
    bool is_whole = true;
    bool leaves_trace = false;  ///< torch::optim::Optimizer::zero_grad does
    bool zeroed = false;        ///< by the model's
    parameters::StepMark mark;
    Sample sample;  ///< without state
  };
  /// Elements on their way to the host.
  struct Leaving {
    at::Tensor elements;  ///< before, after and gradient by element
    devices::DeviceEvent copied;
    parameters::PlainUpdate before, after;
    double epsilon = 0;
    bool had_gradient = false;
    bool is_whole = true;
  };
  struct Watched {
    torch::optim::Optimizer* optimizer;
    std::unordered_map<const void*, Place> parameters;  ///< by addresses, which outlive it
    std::uint64_t noted = 0;                            ///< hash of those with gradients; 0 = none
    std::vector<Asked> asked{};                         ///< a few of them: with state, if any has some
    bool has_state = false;                             ///< those asked
    std::vector<Leaving> leaving{};
    Steps later{};  ///< what `leaving` is of
  };
  [[nodiscard]] static bool kept_gradient(const Asked& asked);
  [[nodiscard]] static std::int64_t steps_by_state(const Watched& watched, const Asked& asked);
  static void take_sample(const Watched& watched, const Place& place, Asked& asked);
  [[nodiscard]] static Leaving leave(const Watched& watched, const Asked& asked);
  [[nodiscard]] static std::int64_t steps_by_elements(Leaving& leaving);
  [[nodiscard]] Steps steps_of(Watched& watched, std::uint64_t noted) const;

  std::vector<Watched> watched_;
  std::int64_t looks_ = 0;
};

}  // namespace autopar::calls
