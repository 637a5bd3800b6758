#pragma once

#include <c10/core/DeviceType.h>

#include <autopar/core/units.hpp>
#include <autopar/cost/model_profile.hpp>

namespace autopar::cost {

/// What a rank holds beside its stages, by its samples (ModelProfile::held_beside): what cuBLAS works in, and what a
/// recording of its steps has of its own (session/README.md).
/// @param recorded  whether steps are recorded
[[nodiscard]] Affine held_beside(const ModelProfile& model, c10::DeviceType device, bool recorded);

}  // namespace autopar::cost
