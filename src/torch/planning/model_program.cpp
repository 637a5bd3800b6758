#include "torch/planning/model_program.hpp"

#include <utility>

#include "torch/cost/held_beside.hpp"
#include "torch/cost/mode_ties.hpp"
#include "torch/fused/fused_ops.hpp"
#include "torch/fused/linear_cross_entropy.hpp"

namespace autopar::planning {

AlgebraOptions algebra_options(const Options& options) {
  AlgebraOptions algebra;
  algebra.batch_norm = options.batch_norm == BatchNorm::kExact ? BatchNormMode::kExact : BatchNormMode::kMicrobatch;
  return algebra;
}

cost::GraphProfile ModelPrograms::profile(c10::DeviceType device, tensor_parallel::SingleLayers singles) const {
  const cost::ModeOfModel mode{planned->graph, planned->plan};
  std::vector<std::vector<OpId>> ties;
  for (const auto* other : others) {
    auto more = cost::ties_to_other_mode(mode, {other->graph, other->plan});
    ties.insert(ties.end(), more.begin(), more.end());
  }
  auto profile = cost::profile_graph(planned->graph, planned->plan, device, ties, singles, in_8_bits);
  profile.model.held_beside = cost::held_beside(profile.model, device, recorded);
  return profile;
}

void ModelPrograms::chunk_logits(const AlgebraOptions& algebra) {
  const auto chunk = [&](ModelProgram& program) {
    program.graph = fused::linear_cross_entropy().pattern(std::move(program.graph));
    program.plan = algebra::analyze_batch(program.graph, algebra);
  };
  for (auto* other : others) chunk(*other);
  chunk(*planned);
}

}  // namespace autopar::planning
