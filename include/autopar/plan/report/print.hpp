#pragma once

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include <autopar/plan/memory/optimizations.hpp>
#include <autopar/plan/memory/stage_memory.hpp>
#include <autopar/plan/model/staging.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/text.hpp>

namespace autopar {

namespace detail {

/// The share of the stage's atoms that are recomputed.
[[nodiscard]] inline std::string describe_recomputed(const StagePlan& stage) {
  std::size_t atoms = 0;
  for (const auto& segment : stage.recomputed) atoms += segment.size();
  return percent(stage.atoms.empty() ? 0 : static_cast<double>(atoms) / static_cast<double>(stage.atoms.size()));
}

[[nodiscard]] inline std::vector<std::string> cells(const StagePlan& stage, std::size_t index, Bytes available) {
  std::vector<int> ranks;
  for (const Rank rank : stage.mesh.ranks()) ranks.push_back(rank.value());
  std::sort(ranks.begin(), ranks.end());
  // A graph that was not captured has atoms only, and bytes of parameters.
  const auto operators = stage.ops.empty() ? stage.atoms.size() : stage.ops.size();
  const auto elements = stage.parameter_elements;
  const std::string shards = stage.mesh.tensor() == 1 ? "" : " x " + std::to_string(stage.mesh.tensor());
  const double share = available > Bytes(0) ? stage.peak_memory / available : 0;
  return {std::to_string(index),
          std::to_string(operators),
          elements > 0 ? readable_count(elements) : readable(stage.parameter_bytes),
          std::to_string(stage.mesh.replicas()) + shards,
          short_ranges(ranks),
          readable(stage.forward),
          readable(stage.backward),
          readable(stage.communication),
          readable(stage.reduction),
          readable(stage.peak_memory),
          percent(share)};
}

/// One line on the bound; empty if there is none.
[[nodiscard]] inline std::string proof_of(const Plan& plan) {
  const Certificate& certificate = plan.certificate;
  if (certificate.lower_bound <= Seconds{}) return "";
  const auto least = std::min_element(certificate.cases.begin(), certificate.cases.end(),
                                      [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  const bool work = least != certificate.cases.end() && least->kind == BoundKind::kWork;
  return "certificate: no plan takes less than " + readable(certificate.lower_bound) + " (" +
         (work ? "all the work, evenly on all ranks" : "one micro-batch down and up the longest chain") + "); gap " +
         gap_percent(certificate.gap) + "\n";
}

}  // namespace detail

/// A plan as a table for people: what runs where, what it costs, what limits it, and what was almost as good. Control
/// characters are escaped, so a terminal only shows it.
[[nodiscard]] inline std::string to_text(const Plan& plan) {
  if (plan.stages.empty()) return "empty plan\n";
  std::string text =
      "plan: " + describe(plan) + describe(memory_optimizations_of(plan)) +
      (plan.precision == Precision::kModule ? "" : ", " + std::string(to_string(plan.precision))) +
      (plan.world == 1 || plan.buckets.reduce_dtype == ReduceDtype::kFp32 ? "" : ", gradients sent in bf16") + "; " +
      std::to_string(plan.world) + (plan.world == 1 ? " rank" : " ranks") + " of " + printable_line(plan.device) +
      ", batch " + std::to_string(plan.batch) + "\n";
  text += "predicted: step " + readable(plan.step);
  if (plan.step > Seconds(0)) {
    text += " (" + detail::formatted("%.4g", static_cast<double>(plan.batch) / plan.step.value()) + " samples/s)";
  }
  text += ", bound by " + name_of(plan.binding) + ", bubble " + percent(plan.bubble) + "\n";
  const Bytes most = peak_of_ranks(meshes_of(plan), [&](std::size_t stage) { return plan.stages[stage].peak_memory; });
  text += "memory: " + readable(most) + " used of " + readable(plan.device_memory) +
          " available a rank (margin taken off), optimizer state " +
          detail::formatted("%g", plan.optimizer_state_factor) + " x parameters\n";
  if (plan.host_memory > Bytes(0)) {
    const Bytes offloaded =
        peak_of_ranks(meshes_of(plan), [&](std::size_t stage) { return plan.stages[stage].host_memory; });
    text += "host memory: " + readable(offloaded) + " used of " + readable(plan.host_memory) +
            " available a rank (margin taken off): gradients, optimizer state and the parameters that it steps\n";
  }
  std::vector<std::vector<std::string>> rows{{"stage", "ops", "params", "replicas", "ranks", "forward", "backward",
                                              "messages", "gradient\nsums", "peak\nmemory", "used"}};
  const bool recomputes = memory_optimizations_of(plan).recomputes();
  if (recomputes) rows.front().push_back("recom-\nputed");
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    rows.push_back(detail::cells(plan.stages[s], s, plan.device_memory));
    if (recomputes) rows.back().push_back(detail::describe_recomputed(plan.stages[s]));
  }
  text += aligned_table(rows);
  text += "forward, backward and messages: one micro-batch of one replica; gradient sums: once a step\n";
  text += detail::proof_of(plan);
  for (const auto& other : plan.runners_up) {
    text += "runner-up: " + printable_line(other.summary) + ": " + readable(other.step) + ", " +
            printable_line(other.reason) + "\n";
  }
  for (const auto& note : plan.notes) text += "note: " + printable_line(note) + "\n";
  return text;
}

/// Writes `to_text`.
inline std::ostream& operator<<(std::ostream& out, const Plan& plan) { return out << to_text(plan); }

}  // namespace autopar
