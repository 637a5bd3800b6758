#include "torch/planning/batch_statistics.hpp"

#include <algorithm>
#include <cstddef>

namespace autopar::planning {

bool needs_two_samples(const algebra::BatchSemantics& semantics, OpId op) {
  const auto norm = semantics.handling(op).batch_norm;
  return norm >= 0 && semantics.normalises_by_slice(op) &&
         semantics.batch_norms[static_cast<std::size_t>(norm)].samples.at(1) < 2;
}

std::int64_t samples_of_slice(std::int64_t batch, int microbatches, int replicas) {
  return std::max<std::int64_t>(1, batch / microbatches / replicas);
}

bool starves_statistics(const Plan& plan, const algebra::BatchSemantics& semantics, std::int64_t batch) {
  return std::any_of(plan.stages.begin(), plan.stages.end(), [&](const StagePlan& stage) {
    const auto needs_two = [&](auto op) {
      return needs_two_samples(semantics, OpId::of(static_cast<std::size_t>(op)));
    };
    return std::any_of(stage.ops.begin(), stage.ops.end(), needs_two) &&
           samples_of_slice(batch, plan.microbatches, stage.mesh.replicas()) < 2;
  });
}

void leave_two_samples(const OpGraph& graph, const algebra::BatchSemantics& semantics, PlanRequest& request) {
  bool needed = false;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) needed = needed || needs_two_samples(semantics, OpId::of(i));
  if (!needed) return;
  auto& options = request.options;
  const auto most =
      static_cast<int>(std::min<std::int64_t>(options.max_microbatches, request.batch / request.world / 2));
  options.max_microbatches = std::max(options.min_microbatches, most);
}

std::string describe_batch_statistics(const std::set<std::int64_t>& samples, std::int64_t batch) {
  if (samples.empty() || *samples.begin() == batch) return {};
  std::string counts;
  for (const auto count : samples) counts += (counts.empty() ? "" : ", ") + std::to_string(count);
  return "batch norm: each statistic is of " + counts + " of the " + std::to_string(batch) +
         " samples (a micro-batch of a replica); batch_norm = exact takes the whole batch";
}

void note_batch_statistics(Plan& plan, const algebra::BatchSemantics& semantics, std::int64_t batch) {
  std::set<std::int64_t> samples;
  for (const auto& stage : plan.stages) {
    const auto normalises = [&](auto op) {
      return semantics.normalises_by_slice(OpId::of(static_cast<std::size_t>(op)));
    };
    if (std::any_of(stage.ops.begin(), stage.ops.end(), normalises))
      samples.insert(samples_of_slice(batch, plan.microbatches, stage.mesh.replicas()));
  }
  if (const auto note = describe_batch_statistics(samples, batch); !note.empty()) plan.notes.push_back(note);
}

}  // namespace autopar::planning
