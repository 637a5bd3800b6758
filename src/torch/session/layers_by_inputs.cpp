// Whether tensor shards cut linear layers that are no part of a pair by inputs.
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/plan/text.hpp>

#include "torch/session/session_impl.hpp"
#include "torch/tensor_parallel/tensor_candidates.hpp"

namespace autopar::session {

/// The same on every rank. Where such layers are a small part of the model, a second plan is not worth its search.
bool Impl::may_cut_by_inputs(const CapturedProgram& program) const {
  const bool elsewhere = options_.plan_only && !options_.cluster_file.empty();
  if (options_.tensor_parallel == 1 || (world_.size() == 1 && !elsewhere)) return false;
  if (options_.tensor_parallel == 0 && !may_slice()) return false;
  constexpr double kLargePart = 1.0 / 8;  // of the parameters
  return tensor_parallel::share_by_inputs(program.graph, program.plan) >= kLargePart;
}

void Impl::try_layers_by_inputs(const PlannedModes& modes, cost::GraphProfile& profile, std::int64_t batch,
                                const MeasuredCosts& costs, std::optional<Plan>& plan, std::exception_ptr& refused) {
  std::string decision;
  together(world_, "planning", [&] {
    if (world_.rank() != 0 || given_plan_ || reads_plan()) return;
    const auto other = modes.profile(planned_device(), tensor_parallel::SingleLayers::kByInputs);
    try {
      auto by_inputs = search_plan(*modes.planned, other, batch, costs, Refusals::kBare);
      if (plan && by_inputs.step >= plan->step) return;
      by_inputs.notes.push_back("single linear layers are cut by inputs; otherwise " +
                                (plan ? "a step would take " + readable(plan->step) : "there is no plan"));
      plan = std::move(by_inputs);
      decision = "by inputs";
    } catch (const InfeasiblePlan& bare) {
      if (plan || (bare.needed() > Bytes(0) && needing_less(refused, bare) == refused)) return;
      try {
        static_cast<void>(search_plan(*modes.planned, other, batch, costs));
      } catch (const InfeasiblePlan& explained) {
        refused = needing_less(refused, explained);
      }
    } catch (const InvalidArgument&) {
      if (plan) throw;
    }
  });
  decision = text_of(world_.broadcast(blob_of(decision), Rank(0), "choosing how to cut single layers"));
  if (decision.empty()) return;
  together(world_, "profiling the model",
           [&] { profile = modes.profile(planned_device(), tensor_parallel::SingleLayers::kByInputs); });
}

}  // namespace autopar::session
