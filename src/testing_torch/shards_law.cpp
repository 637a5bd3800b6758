#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>

#include <autopar/core/error.hpp>

#include "ops/registry.hpp"
#include "testing_torch/laws.hpp"
#include "testing_torch/sharded_run.hpp"

namespace autopar::testing::op_laws {

namespace {

constexpr auto kShardsLaw = "tensor shards give what the whole call gives";

/// Checks a call with one operand in slices of one of its dims.
class ShardsOfOperand {
 public:
  ShardsOfOperand(const CapturedExample& example, const RecordedCall& call, ValueId operand, std::int32_t dim)
      : example_(example),
        call_(call),
        operand_(operand),
        slices_{dim, {0, 1}, call.operands.at(operand).size(dim), {1}} {}

  /// @return whether a rule allows these slices
  bool check() const {
    const auto rule = ask();
    if (!rule.in_slices || rule.kernel == ShardedOp::Kernel::kTogether) return false;
    check_rule(rule);
    tensor_parallel::ShardTyping typing(example_.graph(), [&](OpId op) { return op == call_.id; });
    const auto layout = typing.run({{operand_, slices_}}, [](ValueId) { return false; });
    try {
      compare(layout, run_in_shards(example_.graph(), layout, call_.id, call_.operands, example_.batch()));
    } catch (const OperatorError& error) {
      broken(error.what());
    }
    return true;
  }

 private:
  [[nodiscard]] ShardedOp ask() const {
    std::vector<TensorLayout> layouts(example_.graph().values.size());
    layouts[operand_.index()] = TensorLayout::sharded(slices_);
    try {
      return tensor_parallel::ShardRules(example_.graph())(layouts, call_.id);
    } catch (const InvalidArgument& error) {  // from a user's rule that cannot be run
      broken(error.what());
    }
  }

  /// Checks the properties of a rule's result that other code relies on.
  void check_rule(const ShardedOp& rule) const {
    for (std::size_t k = 0; k < rule.results.size(); ++k) {
      const auto& layout = rule.results[k];
      if (layout.is_sharded() && !fits(layout.slices(), call_.results[k], example_.batch()))
        broken("the slices that its rule gives do not fit result " + std::to_string(k) + ", " +
               form_of(call_.results[k]));
    }
    for (const auto& [value, slices] : rule.needs) {
      const auto found = call_.operands.find(value);
      if (found == call_.operands.end() || !fits(slices, found->second, example_.batch()))
        broken("the slices that its rule needs do not fit " + example_.name_of(call_.id, value));
    }
    if (rule.kernel != ShardedOp::Kernel::kBiasOnce) return;
    const auto& layer = ops::definition_of(example_.graph().op(call_.id).op).layer;
    if (!example_.graph().input(call_.id, layer->bias).valid())
      broken("its rule has the bias added once, and the call has none");
    if (!rule.results.front().is_partial()) broken("its rule has the bias added once, and gives no terms of a sum");
  }

  void compare(const tensor_parallel::ShardedLayout& layout, const std::map<ValueId, Tensors>& values) const {
    std::size_t k = 0;
    for_each_output(example_.graph().op(call_.id), [&](ValueId result) {
      const auto& whole = call_.results[k];
      const auto& of_result = layout.layouts[result.index()];
      for (int place = 0; place < kShards; ++place) {
        const auto wanted =
            of_result.is_sharded() ? slice_of(whole, of_result.slices(), example_.batch(), place) : whole;
        const auto found = difference(values.at(result)[static_cast<std::size_t>(place)], wanted);
        if (!found.empty()) broken("result " + std::to_string(k) + " of shard " + std::to_string(place) + ": " + found);
      }
      ++k;
    });
  }

  [[noreturn]] void broken(const std::string& why) const {
    example_.broken(kShardsLaw, "with dim " + std::to_string(slices_.dim) + " of " +
                                    example_.name_of(call_.id, operand_) + " in 2 slices, " + why);
  }

  const CapturedExample& example_;
  const RecordedCall& call_;
  ValueId operand_;
  UnitSlices slices_;
};

}  // namespace

bool check_shards(const CapturedExample& example, const RecordedCall& call) {
  const at::NoGradGuard no_history;
  bool any = false;
  for (const auto& [operand, tensor] : call.operands) {
    const auto& sizes = example.graph().value(operand).sizes;
    for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
      if (sizes[dim].depends_on_batch() || sizes[dim].fixed < 2) continue;
      any = ShardsOfOperand(example, call, operand, static_cast<std::int32_t>(dim)).check() || any;
    }
  }
  return any;
}

}  // namespace autopar::testing::op_laws
