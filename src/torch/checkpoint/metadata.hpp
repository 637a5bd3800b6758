#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch/checkpoint/checkpoint.hpp"
#include "torch/checkpoint/kept_text.hpp"
#include "torch/parameters/hyper_parameters.hpp"

namespace autopar::checkpoint {

/// A parameter group in a checkpoint.
struct SavedGroup {
  std::int64_t parameters = 0;
  parameters::HyperParameters values{};
};

struct SavedOptimizer {
  std::string kind;  ///< OptimizerDescriptor::name
  std::vector<SavedGroup> groups{};
};

/// The contents of a checkpoint besides tensors.
struct SavedInfo {
  CheckpointInfo info{};
  std::vector<SavedOptimizer> optimizers{};
  std::map<std::string, KeptValue> kept{};  ///< by name
};

/// @throws CheckpointError if options have a value that could not be loaded
[[nodiscard]] SavedOptimizer describe(const torch::optim::Optimizer& optimizer);

/// Converts to metadata of the file, under keys that begin with `autopar.`. from_metadata() converts back, and returns
/// nothing if there is no such key: another program wrote the file.
[[nodiscard]] std::map<std::string, std::string> to_metadata(const SavedInfo& saved);
/// @throws CheckpointError with the key, if it is missing or unknown or its value is invalid
[[nodiscard]] std::optional<SavedInfo> from_metadata(const std::map<std::string, std::string>& metadata);

/// The parameters in a group of an optimizer, in a checkpoint and here.
enum class GroupSizes : std::uint8_t {
  kEqual,     ///< other numbers are refused
  kMayDiffer  ///< for loads that leave out parameters
};

/// The options for this optimizer in `saved`.
/// @throws CheckpointError if `saved` is of another kind or has other groups, or a value is invalid
[[nodiscard]] std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> saved_options(
    const SavedOptimizer& saved, const torch::optim::Optimizer& optimizer, GroupSizes sizes = GroupSizes::kEqual);

}  // namespace autopar::checkpoint
