#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch/checkpoint/checkpoint.hpp"
#include "torch/parameters/hyper_parameters.hpp"

namespace autopar::checkpoint {

/// A parameter group as a checkpoint describes it.
struct SavedGroup {
  std::int64_t parameters = 0;
  parameters::HyperParameters values{};
};

struct SavedOptimizer {
  std::string kind;  ///< OptimizerDescriptor::name
  std::vector<SavedGroup> groups{};
};

/// What a checkpoint says besides tensors.
struct SavedInfo {
  CheckpointInfo info{};
  std::vector<SavedOptimizer> optimizers{};
};

/// @throws CheckpointError where options have a value that could not be loaded
[[nodiscard]] SavedOptimizer describe(const torch::optim::Optimizer& optimizer);

/// As metadata of the file, under keys that begin with `autopar.`, and back; nothing if no key does: of another writer.
[[nodiscard]] std::map<std::string, std::string> to_metadata(const SavedInfo& saved);
/// @throws CheckpointError naming the key that is missing, unknown or has a value that cannot be
[[nodiscard]] std::optional<SavedInfo> from_metadata(const std::map<std::string, std::string>& metadata);

/// The options that `saved` gives this optimizer.
/// @throws CheckpointError if it is of another kind, has other groups, or a value cannot be
[[nodiscard]] std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> saved_options(
    const SavedOptimizer& saved, const torch::optim::Optimizer& optimizer);

}  // namespace autopar::checkpoint
