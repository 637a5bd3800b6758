// Whether class heads make their logits whole or piece by piece.
#include <algorithm>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/plan/text.hpp>

#include "torch/fused/fused_ops.hpp"
#include "torch/fused/linear_cross_entropy.hpp"
#include "torch/session/session_impl.hpp"

namespace autopar::session {

/// Of programs that are captured now.
bool Impl::chunks_heads() const {
  return deployment_.has_plan() ? deployment_.plan().chunked_heads : options_.class_head == "chunked";
}

void Impl::chunk_heads(PlannedModes& modes, cost::GraphProfile& profile) const {
  auto programs = modes.others;
  programs.push_back(modes.planned);
  for (const auto& program : programs) {
    program->graph = fused::linear_cross_entropy().pattern(std::move(program->graph));
    program->plan = algebra::analyze_batch(program->graph, algebra_options());
  }
  profile = modes.profile(planned_device());
}

/// The same on every rank.
bool Impl::may_chunk_heads(const CapturedProgram& program) const {
  return options_.class_head == "auto" && fused::bytes_of_chunked_logits(program.graph, 1) > 0;
}

/// Rank 0's. Chunks take more time, and pay where memory is what a faster plan lacks.
bool Impl::gains_from_chunks(const CapturedProgram& program, const std::optional<Plan>& whole,
                             std::int64_t batch) const {
  if (given_plan_ || reads_plan()) return false;
  const double logits = fused::bytes_of_chunked_logits(
      program.graph, std::max<std::int64_t>(1, batch / world_.size()));  // of a rank's samples
  constexpr double kOfManyChunks = 4 * fused::kLeastLogitsChunk * sizeof(float);
  if (logits < kOfManyChunks) return false;
  if (!whole) return true;
  constexpr double kLargeLogits = 1.0 / 32;  // of a device's memory
  const auto memory = static_cast<double>(whole->device_memory.value());
  if (logits < kLargeLogits * memory) return false;
  return std::any_of(whole->stages.begin(), whole->stages.end(), [&](const StagePlan& stage) {
    return static_cast<double>(stage.peak_memory.value()) > memory / 2 || !stage.recomputed.empty();
  });
}

void Impl::try_chunked_heads(PlannedModes& modes, cost::GraphProfile& profile, std::int64_t batch,
                             std::optional<Plan>& whole, const std::exception_ptr& refused) {
  std::string decision;
  if (world_.rank() == 0 && gains_from_chunks(*modes.planned, whole, batch)) decision = "chunks";
  decision = text_of(world_.broadcast(blob_of(decision), Rank(0), "choosing class heads"));
  if (decision.empty()) return;

  std::vector<std::pair<std::shared_ptr<CapturedProgram>, std::pair<OpGraph, algebra::BatchSemantics>>> as_before;
  for (const auto& program : modes.others) as_before.emplace_back(program, std::pair(program->graph, program->plan));
  as_before.emplace_back(modes.planned, std::pair(modes.planned->graph, modes.planned->plan));
  auto with_chunks = profile;
  together(world_, "profiling the model", [&] { chunk_heads(modes, with_chunks); });
  auto costs = measured_costs(*modes.planned, with_chunks, batch, modes.recorded);
  decision.clear();
  together(world_, "planning", [&] {
    if (world_.rank() != 0) return;
    try {
      auto chunked = search_plan(*modes.planned, with_chunks, batch, std::move(costs));
      const bool is_faster = !whole || chunked.step < whole->step;
      const auto cost = [](const Plan& plan) { return readable(plan.step); };
      if (is_faster) {
        chunked.notes.push_back("logits of class heads are made in chunks; whole " +
                                (whole ? "they would take " + cost(*whole) + " a step" : "they do not fit"));
        whole = std::move(chunked);
        decision = "chunks";
      } else {
        whole->notes.push_back("class_head = chunked would take " + cost(chunked) + " a step");
      }
    } catch (const InfeasiblePlan& chunked) {
      if (!whole) std::rethrow_exception(needing_less(refused, chunked));
    }
  });
  decision = text_of(world_.broadcast(blob_of(decision), Rank(0), "choosing class heads"));
  if (!decision.empty()) {
    profile = std::move(with_chunks);
    return;
  }
  for (auto& [program, before] : as_before) std::tie(program->graph, program->plan) = std::move(before);
}

}  // namespace autopar::session
