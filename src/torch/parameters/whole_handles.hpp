#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "torch/parameters/state_registry.hpp"

namespace autopar::parameters {

/// `set_data` that keeps the handle's autograd metadata.
void give_data(const at::Tensor& handle, const at::Tensor& data);

/// While it lives, handles that refer to shards have the unsharded sizes and neither data nor gradient. A capture thus
/// sees the model as the user wrote it.
class WholeHandles {
 public:
  explicit WholeHandles(const StateRegistry& registry);
  ~WholeHandles();
  WholeHandles(const WholeHandles&) = delete;
  WholeHandles& operator=(const WholeHandles&) = delete;

 private:
  struct Kept {
    at::Tensor handle, data, gradient;
  };
  std::vector<Kept> kept_;
};

}  // namespace autopar::parameters
