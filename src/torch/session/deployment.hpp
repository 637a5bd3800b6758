#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include <c10/core/Device.h>

#include <autopar/plan/plan.hpp>
#include <autopar/runtime/any_transport.hpp>
#include <autopar/runtime/world.hpp>
#include <autopar/schedule/pipeline.hpp>

#include "torch/session/world_sums.hpp"

namespace autopar::session {

/// Where a model runs: the plan, this rank's device, and the transport with the groups and pairs that programs of the
/// model use. All ranks make the same calls in one order; those marked collective wait for one another.
///
///   Deployment deployment(world);
///   deployment.adopt(plan);
///   deployment.start(device);
///   deployment.connect(program.division.pipeline);
class Deployment {
 public:
  /// @param world  outlives this
  explicit Deployment(World& world) : world_(world) {}

  // ---- plan and device

  [[nodiscard]] bool has_plan() const { return plan_.has_value(); }
  /// @pre has_plan()
  [[nodiscard]] const Plan& plan() const { return *plan_; }
  void adopt(Plan plan) { plan_ = std::move(plan); }
  [[nodiscard]] c10::Device device() const { return device_; }
  void use(c10::Device device) { device_ = device; }

  // ---- transport

  /// One of its own, for the device. Collective.
  [[nodiscard]] AnyTransport new_transport() const;
  /// Makes the transport that programs use. Collective, once.
  void start();
  [[nodiscard]] AnyTransport& wire() { return wire_; }
  /// Groups by their ranks, ascending, made at the first call with such. Collective.
  /// @return none for fewer than two ranks
  GroupId group_of(const std::vector<Rank>& ranks);
  /// Of the same ranks, for all-gathers that must not wait behind the group's sums. Collective.
  GroupId gather_group_of(const std::vector<Rank>& ranks);
  /// Of the same ranks, for what tensor shards exchange within compute actions, beside the group's sums. Collective.
  GroupId tensor_group_of(const std::vector<Rank>& ranks);
  /// All groups that `group_of` made.
  [[nodiscard]] const std::map<std::vector<Rank>, GroupId>& groups() const { return groups_; }
  /// Of all ranks. @pre start()
  [[nodiscard]] GroupId group_of_all() const { return world_.size() == 1 ? GroupId{} : groups_.at(everyone()); }
  /// For the messages of a pipeline. Collective.
  void connect(const Pipeline& pipeline);
  /// Sums over all ranks. @pre start()
  [[nodiscard]] WorldSums& sums() { return sums_; }
  /// Sums over some. Collective.
  [[nodiscard]] WorldSums sums_over(const std::vector<Rank>& ranks);

 private:
  [[nodiscard]] std::vector<Rank> everyone() const;

  World& world_;
  c10::Device device_ = c10::Device(c10::kCPU);
  std::optional<Plan> plan_;
  AnyTransport wire_;
  std::map<std::vector<Rank>, GroupId> groups_, gather_groups_, tensor_groups_;
  WorldSums sums_;
};

}  // namespace autopar::session
