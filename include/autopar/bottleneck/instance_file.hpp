#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <autopar/bottleneck/tables.hpp>
#include <autopar/bottleneck/variants.hpp>
#include <autopar/graph/graph.hpp>

namespace autopar {

/// The target of a planning instance; unset members are taken from the file.
struct InstanceTarget {
  std::optional<int> devices;
  std::optional<double> memory;     ///< bytes of each device
  std::optional<double> bandwidth;  ///< bytes a second
};

/// The costs of an instance: models `VariantCostModel` for its own graph. A micro-batch crosses an edge twice, forward
/// and backward. d replicas all-reduce their 4-byte gradients in a ring, once for each batch.
class InstanceCosts {
 public:
  [[nodiscard]] const std::vector<int>& tensor_degrees() const { return degrees_; }
  /// The divisors of the number of micro-batches.
  [[nodiscard]] std::vector<int> replicas(int devices) const;
  [[nodiscard]] int most_replicas() const { return microbatches_; }
  [[nodiscard]] std::vector<NodeVariant> variants(const Graph<std::int64_t, char>& graph, NodeId node,
                                                  int degree) const;
  [[nodiscard]] double work_share(int replicas) const { return 1.0 / replicas; }
  [[nodiscard]] double border_cost(int replicas) const { return 1.0 / replicas / bandwidth_; }
  [[nodiscard]] double parameter_cost(int replicas) const {
    return 4.0 * (replicas - 1) / replicas / microbatches_ / bandwidth_;
  }

 private:
  friend class InstanceReader;
  std::vector<int> degrees_;
  std::vector<std::vector<std::vector<NodeVariant>>> variants_;  // [node][index of the degree]
  int microbatches_ = 1;
  double bandwidth_ = 1;
};

/// A planning instance: the input of `Planner<SlowestStage>`.
struct PlanningInstance {
  Graph<std::int64_t, char> graph;  ///< nodes hold the file's ids
  InstanceCosts costs;
  DeviceLimits limits;
};

/// Reads the format of msr-fiddle/piper: costs of each node at each tensor degree and variant, bytes of edges.
/// @throws ConfigError for invalid text: truncated, unknown ids, missing, negative or infinite numbers
/// @throws InvalidArgument if the target has no device, memory or bandwidth, or the graph a cycle
[[nodiscard]] PlanningInstance parse_instance(std::string_view json, const std::string& file,
                                              const InstanceTarget& target = {});

/// The stages in the plan format of msr-fiddle/piper.
/// @pre the stages are of this instance
[[nodiscard]] std::string to_json(const PlanningInstance& instance, const std::vector<VariantStage>& stages);

/// Reads the stages of a plan. `check_certificate` checks whether they are a valid plan.
/// @throws ConfigError for invalid text: truncated, unknown nodes, degrees or variants
[[nodiscard]] std::vector<VariantStage> parse_stages(std::string_view json, const std::string& file,
                                                     const VariantTables& tables);

}  // namespace autopar
