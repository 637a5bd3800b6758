#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include <autopar/plan/plan.hpp>
#include <autopar/runtime/any_transport.hpp>
#include <autopar/runtime/world.hpp>
#include <autopar/schedule/pipeline.hpp>

#include "torch/deployment/world_sums.hpp"
#include "torch/ranks/ranks.hpp"

namespace autopar::deployment {

/// Where a model runs: the plan, this rank's device, and the transport with the groups and pairs that programs of the
/// model use. All ranks make the same calls in one order; those marked collective wait for one another.
///
///   Deployment deployment(ranks, make_transport);
///   deployment.adopt(plan);
///   deployment.use(device);
///   deployment.start();
///   deployment.connect(program.division.pipeline);
class Deployment {
 public:
  /// @param ranks           outlive this
  /// @param make_transport  as World::make_transport
  Deployment(ranks::Ranks& ranks, MakeTransport make_transport)
      : ranks_(ranks), make_transport_(std::move(make_transport)) {}

  // ---- plan and device

  [[nodiscard]] bool has_plan() const { return plan_.has_value(); }
  /// @pre has_plan()
  [[nodiscard]] const Plan& plan() const { return *plan_; }
  /// What the plan predicts that this rank holds at most.
  [[nodiscard]] Bytes planned_memory() const;
  void adopt(Plan plan) { plan_ = std::move(plan); }
  [[nodiscard]] c10::Device device() const { return device_; }
  void use(c10::Device device) { device_ = device; }

  // ---- transport

  /// One of its own, for the device. Collective.
  [[nodiscard]] AnyTransport new_transport() const;
  /// Makes the transport that programs use. Collective, once.
  void start();
  [[nodiscard]] bool is_started() const { return static_cast<bool>(wire_); }
  /// @pre is_started()
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
  [[nodiscard]] GroupId group_of_all() const { return ranks_.size() == 1 ? GroupId{} : groups_.at(everyone()); }
  /// For the messages of a pipeline. Collective.
  void connect(const Pipeline& pipeline);
  /// Whether `connect` was called for a pipeline whose ranks send messages.
  [[nodiscard]] bool sends_messages() const { return sends_messages_; }
  /// Sums over all ranks. @pre start()
  [[nodiscard]] WorldSums& sums() { return sums_; }
  /// Sums over some. Collective.
  [[nodiscard]] WorldSums sums_over(const std::vector<Rank>& ranks);

 private:
  [[nodiscard]] std::vector<Rank> everyone() const;

  ranks::Ranks& ranks_;
  MakeTransport make_transport_;
  c10::Device device_ = c10::Device(c10::kCPU);
  std::optional<Plan> plan_;
  AnyTransport wire_;
  std::map<std::vector<Rank>, GroupId> groups_, gather_groups_, tensor_groups_;
  WorldSums sums_;
  bool sends_messages_ = false;
};

}  // namespace autopar::deployment
