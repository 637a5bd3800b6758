#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "torch/ranks/ranks.hpp"

#include "torch/device/host_copies.hpp"
#include "torch/parameters/parameter_store.hpp"
#include "torch/results/outside_terms.hpp"

namespace autopar::calls {

/// Gradients that backwards of the user's bring to a model's parameters from outside of the model, which are summed
/// over no ranks. Hooks on the handles that this rank holds see them. The model's own gradients go beside autograd, or
/// along edges of its results' nodes.
///
/// A backward through a forward of the unwrapped module is refused where it comes by (see OutsideTerms). What cannot be
/// told there is compared: ranks that hold all of a parameter must have given it the same gradients since the last
/// call.
class OutsideGradients {
 public:
  /// Of one parameter since the last look. Plain bytes: ranks send it to one another.
  struct Fingerprint {
    parameters::StateId parameter;
    double weighted = 0;  ///< sum of elements with weights of their places
    double absolute = 0;  ///< sum of absolute values
  };

  OutsideGradients() = default;
  ~OutsideGradients();
  OutsideGradients(const OutsideGradients&) = delete;
  OutsideGradients& operator=(const OutsideGradients&) = delete;

  /// From now on. Once, when it is known who holds what.
  /// @param device  of the rank: on others than the CPU a look gives what came before the look before it, which the
  ///                host need not wait for
  void watch(const parameters::ParameterStore& parameters, c10::Device device);
  /// Since the last look; empty where there was no such backward.
  [[nodiscard]] std::vector<Fingerprint> look();

 private:
  struct Watched {
    at::Tensor handle;
    unsigned hook = 0;
    std::string name;
    bool is_compared = false;
  };
  struct Leaving {
    std::vector<parameters::StateId> parameters;
    at::Tensor sums;  ///< host memory, when the device has done what is queued
    devices::DeviceEvent copied;
  };
  void note(parameters::StateId parameter, const at::Tensor& gradient);
  /// The backward that runs. @throws InvalidArgument if it goes through a forward of the unwrapped module
  [[nodiscard]] const results::OutsideTerms* terms_of_backward();
  [[nodiscard]] Leaving leave();

  std::mutex mutex_;  ///< devices have threads of autograd of their own
  std::map<parameters::StateId, Watched> watched_;
  std::unordered_map<const void*, parameters::StateId> by_leaf_;
  std::map<parameters::StateId, at::Tensor> sums_;  ///< weighted and absolute, by parameter
  int task_ = -1;                                   ///< autograd's number of the latest backward
  std::optional<results::OutsideTerms> terms_;      ///< of it
  c10::Device device_ = c10::Device(c10::kCPU);
  std::optional<Leaving> leaving_;
};

/// Gradients from outside of the model must be the same on all ranks that hold a parameter. Collective.
/// @param mine  this rank's
/// @throws InvalidArgument on every rank, naming the parameter, two ranks and both values where they differ
void require_same_outside_gradients(ranks::Ranks& ranks, const parameters::ParameterStore& parameters,
                                    const std::vector<OutsideGradients::Fingerprint>& mine);

}  // namespace autopar::calls
