#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torch/session/state_registry.hpp"

namespace autopar {

/// While it lives, handles that refer to shares have the sizes of their parameters and no data: a capture sees the model as
/// the user wrote it.
class WholeHandles {
 public:
  explicit WholeHandles(const StateRegistry& registry);
  ~WholeHandles();
  WholeHandles(const WholeHandles&) = delete;
  WholeHandles& operator=(const WholeHandles&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;  // handle, data
};

}  // namespace autopar
