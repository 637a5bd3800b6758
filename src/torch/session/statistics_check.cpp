// Whether batch norms of a call have the samples that they need.
#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include <autopar/core/error.hpp>
#include <autopar/schedule/batch_split.hpp>

#include "torch/planning/batch_statistics.hpp"
#include "torch/session/session_impl.hpp"

namespace autopar::session {

// libtorch refuses a statistic of one value, with sizes of a slice that the user has never seen.
void Impl::require_statistics(const Call& call) const {
  const auto& program = *call.program;
  const auto& division = program.division;
  std::optional<BatchSplit> split;
  for (std::size_t s = 0; s < division.stage_ops.size(); ++s) {
    for (const auto op : division.stage_ops[s]) {
      if (!planning::needs_two_samples(program.plan, op)) continue;
      if (!split) split.emplace(division.pipeline, call.layout);
      for (int m = 0; m < call.layout.microbatches; ++m) {
        for (int q = 0; q < division.pipeline.stages[s].replicas(); ++q) {
          if (split->slice(StageId::of(s), q, m).size() != 1) continue;
          throw InvalidArgument(
              "batch norm '" + program.graph.op(op).path +
              "' normalises by the samples of a micro-batch on a replica, and " + "with a batch of " +
              std::to_string(call.batch) + " samples, microbatches = " + std::to_string(call.layout.microbatches) +
              " and " + std::to_string(division.pipeline.stages[s].replicas()) +
              " replicas of its stage some have one sample, of which there is no variance: bring more samples, set "
              "microbatches or replicas to fewer, or set batch_norm = exact, which takes the whole batch");
        }
      }
    }
  }
}

// Of what is run, which the plan need not have been made of; once.
void Impl::warn_of_batch_statistics(const CapturedProgram& program, std::int64_t batch) {
  if (warned_of_batch_statistics_) return;
  std::set<std::int64_t> samples;
  const auto& division = program.division;
  for (std::size_t s = 0; s < division.stage_ops.size(); ++s) {
    const auto& ops = division.stage_ops[s];
    if (std::any_of(ops.begin(), ops.end(), [&](OpId op) { return program.plan.normalises_by_slice(op); }))
      samples.insert(
          planning::samples_of_slice(batch, deployment_.plan().microbatches, division.pipeline.stages[s].replicas()));
  }
  const auto text = planning::describe_batch_statistics(samples, batch);
  if (text.empty()) return;
  warned_of_batch_statistics_ = true;
  if (world_.rank() == 0) log_.warn(text + ", as one process does");
}

}  // namespace autopar::session
