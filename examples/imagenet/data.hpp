#pragma once

#include <memory>

#include <torch/types.h>

#include <autopar/runtime/world.hpp>

#include "images/image_loader.hpp"
#include "settings.hpp"

/// The images, and where they go.
struct Data {
  std::unique_ptr<images::ImageLoader> training, validation;  ///< the second is null with --no-validation
  c10::Device device;
  torch::Dtype dtype;

  /// As the network takes it.
  at::Tensor taken(const at::Tensor& tensor) const {
    return tensor.to(device, tensor.is_floating_point() ? dtype : tensor.scalar_type(), /*non_blocking=*/true);
  }
};

/// Of `settings.data`, this rank's share. Collective.
/// @throws InvalidArgument on every rank if they see other files
[[nodiscard]] Data opened(autopar::World& world, const Settings& settings);
