#pragma once

#include <cstdint>

namespace autopar {

/// What to do with something that a checkpoint lacks.
enum class Missing : std::uint8_t {
  kRefused,  ///< throw CheckpointError; nothing is changed
  kAllowed,  ///< leave it unchanged
};

/// How to load a checkpoint: `model->load(folder, optimizer, {.optimizer = ap::Missing::kAllowed})`.
struct LoadOptions {
  Missing optimizer = Missing::kRefused;  ///< state and hyper-parameters, which files of weights lack
};

}  // namespace autopar
