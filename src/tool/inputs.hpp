#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <autopar/core/cluster.hpp>
#include <autopar/cost/measured.hpp>
#include <autopar/cost/model_profile.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/request.hpp>

namespace autopar::tool {

/// What a command plans, as it was asked for.
struct ProblemArguments {
  std::string profile, cluster;
  std::string costs;                  ///< measured ones; empty = from peak rates
  std::string options_file;           ///< autopar.toml; empty = none
  std::vector<std::string> settings;  ///< key=value, over the file
  std::int64_t devices = 0;           ///< make the cluster so large; 0 = as its file says
  std::int64_t world = 0;             ///< ranks; 0 = all devices
  std::int64_t batch = 0;             ///< samples of a step; 0 = kSamplesOfRank for each rank
  Capabilities runtime = runtime_capabilities();
};
inline constexpr std::int64_t kSamplesOfRank = 32;

/// Model, cluster and request, checked.
struct Problem {
  ModelProfile profile;
  Cluster cluster;
  PlanRequest request;
  MeasuredCosts measured;  ///< empty = from peak rates
  std::vector<std::string> notes;
};

/// Nothing for an empty path. @throws ConfigError if the file is damaged or of another version
[[nodiscard]] MeasuredCosts load_costs(const std::string& path);

/// @throws Error with the file and what is wrong in it, or the options that contradict each other or the world
[[nodiscard]] Problem load_problem(const ProblemArguments& arguments);

/// A profile that is more than well-formed: without cycles, in one piece, with costs that make sense.
/// @throws ConfigError, InvalidArgument naming the atom
[[nodiscard]] ModelProfile load_profile(const std::string& path);

/// The cluster with another number of devices; the outermost link joins those that are added.
[[nodiscard]] Cluster resized(Cluster cluster, int devices);

/// @throws InvalidArgument unless plan, profile and cluster belong together, saying what differs
void require_same(const Plan& plan, const ModelProfile& profile, const Cluster& cluster);

/// @throws InvalidArgument if sizes are so large that sums of them would not be numbers of bytes any more
void require_sane_sizes(const ModelProfile& profile, std::int64_t world, std::int64_t batch, std::int64_t microbatches,
                        double optimizer_state_factor);

}  // namespace autopar::tool
