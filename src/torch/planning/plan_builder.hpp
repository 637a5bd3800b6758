#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include <c10/core/Device.h>

#include <autopar/plan/options.hpp>
#include <autopar/plan/outcome.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/request.hpp>

#include "torch/cost/profile.hpp"
#include "torch/planning/cost_source.hpp"
#include "torch/planning/model_program.hpp"
#include "torch/planning/plan_files.hpp"
#include "torch/ranks/ranks.hpp"

namespace autopar::planning {

/// Who steps the model, as far as plans depend on it.
struct Optimizers {
  bool attached = false;
  double state_factor = 0;  ///< bytes of state for each byte of a parameter, the largest of all; @pre attached
};

/// The type of device that a plan is made for.
/// @param device  of this rank
[[nodiscard]] c10::DeviceType planned_device(const Options& options, c10::Device device);

/// Plans a captured model with the other ranks: measures, searches on rank 0, and agrees on the plan.
///
///   PlanBuilder builder(ranks, options, device, try_plan_with_defaults, costs, files);
///   const Plan plan = builder.build(programs, profile, batch, {}, trace, std::nullopt);
class PlanBuilder {
 public:
  /// @pre what is referred to outlives this
  PlanBuilder(ranks::Ranks& ranks, const Options& options, c10::Device device, const PlanFunction& planner,
              CostSource& costs, const PlanFiles& files)
      : ranks_(ranks), options_(options), device_(device), planner_(planner), costs_(costs), files_(files) {}

  /// The plan, equal on all ranks, written where options say. Collective.
  /// @param programs  become those that the plan divides: with logits in chunks, if it says so
  /// @param profile   of `programs`; becomes the profile of what the plan divides
  /// @param batch     samples of a step, all ranks together
  /// @param trace     the trace file of this rank; empty: none
  /// @param given     a plan of the user's own, in place of a search
  /// @throws InfeasiblePlan, InvalidArgument, CaptureError on all ranks, as the planner; ConfigError of files
  [[nodiscard]] Plan build(ModelPrograms& programs, cost::GraphProfile& profile, std::int64_t batch,
                           const Optimizers& optimizers, const std::filesystem::path& trace,
                           const std::optional<Plan>& given);

 private:
  [[nodiscard]] bool is_elsewhere() const;
  /// Measures, and asks for everything that the search needs: the cluster, the request with its variants, the costs; on
  /// rank 0. Collective.
  [[nodiscard]] std::optional<ProfiledCost> prepare(const ModelPrograms& programs, const cost::GraphProfile& profile,
                                                    std::int64_t batch, const Optimizers& optimizers, Cluster& cluster,
                                                    PlanRequest& request);
  [[nodiscard]] PlanRequest request_of(const ModelProgram& program, const Cluster& cluster, std::int64_t batch,
                                       const Optimizers& optimizers) const;
  [[nodiscard]] MeasuredCosts costs_of(const ModelPrograms& programs, const cost::GraphProfile& profile,
                                       std::int64_t batch, const Cluster& cluster, const PlanRequest& request);
  /// With logits of class heads in chunks; rank 0's. Collective.
  [[nodiscard]] std::optional<ProgramVariant> chunked_variant(const ModelPrograms& programs, std::int64_t batch,
                                                              const Cluster& cluster, const PlanRequest& request);
  /// With row-parallel single linear layers.
  [[nodiscard]] std::optional<ProgramVariant> row_parallel_variant(const ModelPrograms& programs,
                                                                   const MeasuredCosts& costs, const Cluster& cluster,
                                                                   bool may_slice) const;
  /// The programs and the profile that a plan divides.
  void follow(const Plan& plan, ModelPrograms& programs, cost::GraphProfile& profile) const;
  void require_plan_of(const cost::GraphProfile& profile, const Plan& plan) const;

  ranks::Ranks& ranks_;
  const Options& options_;
  c10::Device device_;
  const PlanFunction& planner_;
  CostSource& costs_;
  const PlanFiles& files_;
};

}  // namespace autopar::planning
