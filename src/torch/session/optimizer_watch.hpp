#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}

namespace autopar {

/// What the attached optimizers did since the last call, for ranks to compare: libtorch's optimizers tell nobody when
/// they step.
class OptimizerWatch {
 public:
  static constexpr std::size_t kCompared = 4;  ///< optimizers, the first ones attached

  /// Whether the state changed of parameters that had gradients; where an optimizer keeps none, whether the parameters
  /// themselves did, if they are whole and in the host's memory. Else it is not known.
  enum class Stepped : std::int64_t { kUnknown, kNo, kYes };

  /// Of one optimizer. Plain bytes: ranks send it to one another.
  struct Seen {
    std::uint64_t parameters = 0;  ///< hash of which had gradients; 0 = none had, and nothing is known
    Stepped stepped = Stepped::kUnknown;
    std::int64_t has_state = 0;          ///< else others' parameters say nothing about it: their gradients may be 0
    std::uint64_t hyper_parameters = 0;  ///< hash
  };

  /// It must live as long as calls make gradients for its parameters, or until another one for some of them is watched.
  void watch(torch::optim::Optimizer& optimizer);
  /// A parameter got a gradient that its optimizer may step with.
  /// @param is_whole  it is no shard
  void note_gradient(const at::Tensor& handle, bool is_whole);

  /// Since the last time it was asked, by optimizer. Nothing is read of those whose parameters had no gradients
  /// meanwhile.
  [[nodiscard]] std::array<Seen, kCompared> look();
  /// "AdamW, lr 0.1, …" of an optimizer that was read in the latest look.
  [[nodiscard]] std::string describe(std::size_t optimizer) const;

 private:
  struct Place {
    std::size_t number;  ///< among the optimizer's parameters
    bool has_state;      ///< once it was stepped
  };
  struct Asked {
    at::Tensor parameter;
    std::uint64_t before;  ///< version of its state, or hash of values, when it got the gradient
  };
  struct Watched {
    torch::optim::Optimizer* optimizer;
    std::unordered_map<const void*, Place> parameters;  ///< by addresses, which outlive it
    std::uint64_t noted = 0;                            ///< hash of those with gradients; 0 = none
    /// A few of them that have state once they were stepped; if none has, of which values tell
    std::vector<Asked> asked{};
    bool has_state = false;  ///< those asked
  };
  [[nodiscard]] static std::uint64_t look_at(const Watched& watched, const at::Tensor& parameter);
  std::vector<Watched> watched_;
};

}  // namespace autopar
