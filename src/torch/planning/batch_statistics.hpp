#pragma once

#include <cstdint>
#include <set>
#include <string>

#include <autopar/capture/op_graph.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/request.hpp>

#include "capture/algebra/batch_algebra.hpp"

namespace autopar::planning {

/// Whether the operator is a batch norm to which a sample brings one value of each channel: it needs two samples.
[[nodiscard]] bool needs_two_samples(const algebra::BatchSemantics& semantics, OpId op);

/// Samples of a micro-batch on a replica, at least 1.
[[nodiscard]] std::int64_t samples_of_slice(std::int64_t batch, int microbatches, int replicas);

/// Whether a plan leaves some batch norm a single value of each channel.
[[nodiscard]] bool starves_statistics(const Plan& plan, const algebra::BatchSemantics& semantics, std::int64_t batch);

/// Lowers `max_microbatches` so that each slice of a rank's part of the batch has two samples, if batch norms need two.
void leave_two_samples(const OpGraph& graph, const algebra::BatchSemantics& semantics, PlanRequest& request);

/// What a user should know if batch norms normalise by less than the batch (DESIGN §5); empty if they do not.
/// @param samples  of a statistic, of each stage that has some
[[nodiscard]] std::string describe_batch_statistics(const std::set<std::int64_t>& samples, std::int64_t batch);

/// Adds it to the notes of a plan.
void note_batch_statistics(Plan& plan, const algebra::BatchSemantics& semantics, std::int64_t batch);

}  // namespace autopar::planning
