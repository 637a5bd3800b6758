#pragma once

#include <cstdint>

namespace autopar {

/// What becomes of a thing that a checkpoint lacks.
enum class Missing : std::uint8_t {
  kRefused,  ///< CheckpointError, and nothing is changed
  kAllowed,  ///< it stays as it is
};

/// How a checkpoint is loaded: `model->load(folder, optimizer, {.optimizer = ap::Missing::kAllowed})`.
struct LoadOptions {
  Missing optimizer = Missing::kRefused;  ///< state and hyper-parameters of an optimizer, as in files of weights alone
};

}  // namespace autopar
