#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <autopar/io/safetensors.hpp>
#include <autopar/torch/load_options.hpp>

namespace autopar::checkpoint {

/// The tensors that a load asks for.
struct ModelNames {
  /// A parameter or buffer, or one tensor of an optimizer's state for a parameter.
  struct Item {
    std::size_t tensor = 0;    ///< index in `tensors`
    std::string state{};       ///< name of the state; empty: the parameter or buffer
    TensorEntry entry{};       ///< the type and sizes that it must have, and its name in messages
    bool is_optional = false;  ///< state that may be missing although the parameter has other state
  };

  std::vector<std::vector<std::string>> tensors;  ///< by parameter or buffer its names, several if it is tied
  std::vector<Item> items{};
};

/// The tensors of a file.
struct FileNames {
  struct Tensor {
    std::string name;   ///< as the module that was saved names it: "layer.weight", of state "layer.weight.exp_avg"
    TensorEntry entry;  ///< as it is on disk
  };

  std::vector<Tensor> model;
  std::vector<Tensor> state{};  ///< empty if no optimizer is loaded
};

/// Which tensor of a file each item is loaded from.
struct NameMatches {
  std::vector<std::string> names;  ///< by item its name on disk; empty: it is not loaded
  LoadReport report;
};

/// Applies the rules of LoadOptions. Knows names alone, no files. State follows its parameter: it is loaded where the
/// parameter is, from the name that the parameter has in the file.
/// @throws CheckpointError with the name or the option that breaks a rule
[[nodiscard]] NameMatches match_names(const ModelNames& model, const FileNames& file, const LoadOptions& options);

/// The number of parameters and buffers in a file that the model has under their new names.
[[nodiscard]] std::size_t count_matches(const ModelNames& model, const FileNames& file, const LoadOptions& options);

}  // namespace autopar::checkpoint
