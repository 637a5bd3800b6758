#pragma once

#include <c10/core/DeviceType.h>

#include <autopar/core/units.hpp>
#include <autopar/cost/model_profile.hpp>

namespace autopar::cost {

/// Bytes on a rank besides its stages, by its samples (ModelProfile::held_beside): cuBLAS workspaces, and the private
/// memory of CUDA graphs of its steps (session/README.md).
/// @param recorded  whether steps are captured in CUDA graphs
[[nodiscard]] Affine held_beside(const ModelProfile& model, c10::DeviceType device, bool recorded);

}  // namespace autopar::cost
