#include "torch/programs/captured_program.hpp"

#include <algorithm>
#include <utility>

#include <ATen/ops/full.h>

#include <autopar/plan/report/runnable.hpp>
#include <autopar/schedule/one_f_one_b.hpp>
#include <autopar/schedule/parts.hpp>
#include <autopar/schedule/program.hpp>
#include <autopar/schedule/schedule.hpp>
#include <autopar/schedule/validate.hpp>

#include "capture/algebra/parameter_reads.hpp"
#include "torch/engine/message.hpp"
#include "torch/interpret/seeded_draws.hpp"

namespace autopar::programs {

bool CapturedProgram::is_stale() const {
  const auto& constants = verification.constants;
  return verification.outdated || std::any_of(constants.begin(), constants.end(), [](const auto& constant) {
           return !constant.first.is_inference() && constant.first._version() != constant.second;
         });
}

const ReachedParameters& CapturedProgram::reached(const std::vector<ValueId>& roots) {
  const auto [known, is_new] = reached_.try_emplace(roots);
  if (!is_new) return known->second;
  const auto parameters = algebra::reached_parameters(graph, roots);
  const auto& stages = *runtime.stages;
  for (const auto parameter : stages.parameters()) {
    if (!parameters[parameter.index()]) continue;
    known->second.handles.push_back(stages.handle(parameter));
    known->second.positions.push_back(stages.position_of(parameter));
  }
  return known->second;
}

const RepeatableWork& CapturedProgram::repeatable_work() {
  if (repeatable_work_) return *repeatable_work_;
  auto& found = repeatable_work_.emplace();
  found.is_whole =
      std::ranges::none_of(plan.outputs, [](const auto& output) { return output.kind == algebra::OutputKind::kInput; });
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    if (plan.ops[i].draw == Draw::kNone) continue;
    ++found.draws;
    found.is_whole = found.is_whole && interpret::draws_from_memory(graph, OpId::of(i));
  }
  return found;
}

const at::Tensor& CapturedProgram::loss_gradient(double scale, c10::Device device) {
  if (!loss_gradient_.defined() || loss_gradient_scale_ != scale) {
    const auto& info = graph.value(plan.outputs[static_cast<std::size_t>(plan.loss)].value);
    constexpr std::int64_t kAnyBatch = 1;  // it has one element
    loss_gradient_ =
        at::full(ir::sizes_at(info, kAnyBatch), scale, at::TensorOptions().dtype(info.dtype).device(device));
    loss_gradient_scale_ = scale;
  }
  return loss_gradient_;
}

const std::vector<Action>& CapturedProgram::actions(const BatchLayout& layout, const Plan& by, Phase phase, bool reduce,
                                                    Rank rank) {
  const Key key{layout.local, layout.microbatches, phase, reduce};
  if (const auto* known = actions_.find(key)) return *known;
  const auto& pipeline = runtime.stages->pipeline();
  auto made = program(pipeline, layout, by, phase);
  validate(pipeline, layout, phase, made);
  auto own = std::move(made.ranks[rank.index()]);
  // Every member leaves out the same sums, so what is left waits for nothing new. Those within compute actions stay:
  // they make room.
  const auto is_sum_of_call = [](const Action& action) {
    const bool is_sum = action.kind == ActionKind::kAllReduce || action.kind == ActionKind::kReduceScatter;
    return is_sum && action.microbatch < 0;
  };
  if (!reduce) std::erase_if(own, is_sum_of_call);
  return actions_.put(key, std::move(own));
}

// Orders of ranks name the plan's stages, wherever these lie; orders of stages hold for any stages. Orders that were
// made for the planned program may do without gradients that another program's stages wait for.
Program CapturedProgram::program(const Pipeline& pipeline, const BatchLayout& layout, const Plan& by,
                                 Phase phase) const {
  const auto make = [&]<SchedulePolicy Policy>(const Policy& policy) {
    if constexpr (RankOrderPolicy<Policy>) {
      auto orders = orders_of_parts(policy.rank_orders(stages_of(by), layout.microbatches), partition.parts);
      try {
        return make_program(pipeline, layout, GivenOrders{std::move(orders), layout.microbatches}, phase);
      } catch (const CyclicOrders&) {
        return make_program(pipeline, layout, OneFOneB{}, phase);
      }
    } else {
      return make_program(pipeline, layout, policy, phase);
    }
  };
  return with_policy(by.schedule, make, {by.orders, by.microbatches});
}

}  // namespace autopar::programs
