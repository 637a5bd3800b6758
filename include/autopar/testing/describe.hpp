#pragma once

#include <string>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/plan/model/staging.hpp>
#include <autopar/plan/model/workload.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/schedule/pipeline.hpp>
#include <autopar/schedule/traits.hpp>

/// Descriptions of inputs and of policies' results for LawBroken.
namespace autopar::testing {

/// "0 1 1"
template <class Values>
[[nodiscard]] std::string listed(const Values& values) {
  std::string out;
  for (const auto& value : values) out += (out.empty() ? "" : " ") + std::to_string(value);
  return out;
}

/// "3 nodes, edges 0>1 1>2"
[[nodiscard]] inline std::string described(const Workload& work) {
  std::string edges;
  for (const EdgeId edge : work.graph.edges()) {
    edges +=
        " " + std::to_string(work.graph.source(edge).value()) + ">" + std::to_string(work.graph.target(edge).value());
  }
  return std::to_string(work.graph.node_count()) + " nodes, edges" + (edges.empty() ? " none" : edges);
}

/// "4 devices of 1000 bytes, batch 8, stages any, replicas 2 2, micro-batches 1 2, schedules gpipe"
[[nodiscard]] inline std::string described(const Constraints& constraints) {
  const auto any = [](bool is_any, const std::string& fixed) { return is_any ? "any" : fixed; };
  std::string schedules;
  for (const ScheduleKind schedule : constraints.schedules) schedules += " " + std::string(to_string(schedule));
  return std::to_string(constraints.world) + " devices of " + std::to_string(constraints.memory.value()) +
         " bytes, batch " + std::to_string(constraints.batch) + ", stages " +
         any(constraints.stages == 0, std::to_string(constraints.stages)) + ", replicas " +
         any(!constraints.replicas_are_fixed(), constraints.replicas_of_each > 0
                                                    ? std::to_string(constraints.replicas_of_each) + " each"
                                                    : listed(constraints.replicas)) +
         ", micro-batches " + listed(constraints.microbatches) + ", schedules" + schedules;
}

/// "stages 0 0 1 of the nodes, replicas 1 2, 4 micro-batches, 1f1b"
[[nodiscard]] inline std::string described(const Staging& staging) {
  return "stages " + listed(staging.stage_of) + " of the nodes, replicas " + listed(staging.replicas) + ", " +
         std::to_string(staging.microbatches) + " micro-batches, " + std::string(to_string(staging.schedule));
}

/// "stages on ranks [0 1] [2], 4 micro-batches"
[[nodiscard]] inline std::string described(const Pipeline& pipeline, int microbatches) {
  std::string out = "stages on ranks";
  for (const Mesh& mesh : pipeline.stages) {
    std::vector<int> ranks;
    for (const Rank rank : mesh.ranks()) ranks.push_back(rank.value());
    out += " [" + listed(ranks) + "]";
  }
  return out + ", " + std::to_string(microbatches) + " micro-batches";
}

}  // namespace autopar::testing
