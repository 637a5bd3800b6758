#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace autopar {

/// What to do where names of a checkpoint and of the model, or its optimizers, do not meet.
enum class Missing : std::uint8_t {
  kRefused,  ///< throw CheckpointError; nothing is changed
  kAllowed,  ///< leave it unchanged
};

/// How to load a checkpoint: `model->load(folder, optimizer, {.optimizer = ap::Missing::kAllowed})`.
///
/// Fine-tuning begins with the weights of another model:
///
///     model->load("bert.safetensors", {.missing = ap::Missing::kAllowed,         // a head that the file lacks
///                                      .rename = {{"bert.", "encoder."}},        // as the file, as the model calls it
///                                      .skip = {"encoder.pooler."}});            // keeps its initialisation
///
/// Names are those of the module, as in named_parameters() and named_buffers(). A prefix need not end at a dot.
/// Sizes and types must be equal: tensors where they differ can only be skipped. If an optimizer is loaded, it has no
/// state afterwards for parameters that are missing or skipped, as a new one.
struct LoadOptions {
  Missing optimizer = Missing::kRefused;   ///< state and hyper-parameters, which files of weights lack
  Missing missing = Missing::kRefused;     ///< names of the model that the file lacks, and kept values
  Missing unexpected = Missing::kRefused;  ///< names of the file that the model lacks
  /// Prefixes of names in the file, and what replaces them. The longest that matches is replaced, once. Each must
  /// replace something, and no two names of the file may become one of the model.
  std::vector<std::pair<std::string, std::string>> rename{};
  /// Prefixes of names after renaming, which are not loaded. Each must match a name of the model or the file. A tied
  /// tensor is skipped if one of its names is.
  std::vector<std::string> skip{};
};

/// What a load did, by names of parameters and buffers; equal on all ranks. A tied tensor has its first name.
struct LoadReport {
  std::vector<std::string> loaded;      ///< in the order of the model
  std::vector<std::string> missing;     ///< of the model, in its order: the file lacks them
  std::vector<std::string> unexpected;  ///< of the file, before renaming: the model lacks them
  std::vector<std::string> skipped;     ///< of the model, in its order, then those that only the file has, renamed
};

}  // namespace autopar
