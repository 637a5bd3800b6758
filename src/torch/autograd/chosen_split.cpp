#include "torch/autograd/chosen_split.hpp"

#include <algorithm>
#include <vector>

#include "torch/autograd/padded_rows.hpp"
#include "torch/autograd/sum_type.hpp"
#include "torch/fp8/layers.hpp"
#include "torch/fused/column_sums.hpp"
#include "torch/fused/vectorised_rows.hpp"

namespace autopar::autograd {

namespace {

/// Whether the operator alone adds to the gradients of its parameters.
bool is_only_reader(const OpGraph& graph, const std::vector<std::vector<OpId>>& uses, OpId op,
                    const SplitBackward& split) {
  const auto alone = [&](ValueId value) {
    return uses[value.index()].size() == 1 && std::ranges::find(graph.outputs, value) == graph.outputs.end();
  };
  const auto adds_alone = [&](int position, ValueId parameter) {
    return !parameter.valid() || (alone(parameter) && alone(graph.input(op, position)));
  };
  return adds_alone(split.weight_at, split.weight) && (split.bias_at < 0 || adds_alone(split.bias_at, split.bias));
}

/// Whether a layer's sizes on this rank are whole packs of 8 bits.
bool fits_fp8(const OpGraph& graph, OpId op, const SplitBackward& split) {
  constexpr std::int64_t kPack = 16;
  if (!split.is_product_of_cast()) return false;
  const auto& weight = graph.value(graph.input(op, split.weight_at));
  return weight.dtype == at::kBFloat16 && std::ranges::all_of(weight.sizes, [](SizeExpr size) {
           return size.per_sample == 0 && size.fixed % kPack == 0;
         });
}

/// Whether the operator's products can add to gradients that exist. The gradients of other weights are made, and then
/// added by another pass.
bool adds_by_products(const FunctionSite& site, const SplitBackward& split) {
  const auto type = site.graph.value(site.graph.input(site.op, split.weight_at)).dtype;
  const bool of_wide = split.is_product && site.device.is_cuda() && sum_type(type) == type;
  return split.add_weights && (split.of_cast || of_wide);
}

/// Whether a custom autograd function is worthwhile where nothing is deferred.
bool gains(const SplitBackward& split) {
  return split.of_cast || split.may_be_beside || split.may_be_left || split.may_be_added || split.sums_bias;
}

}  // namespace

std::optional<SplitBackward> chosen_split(const FunctionSite& site, const algebra::BatchSemantics& plan,
                                          const SplitConditions& conditions) {
  auto split = split_backward_of(site.graph, plan, site.op);
  if (!split) return std::nullopt;
  if (is_only_reader(site.graph, site.uses, site.op, *split)) {
    split->may_be_beside = split->is_product && conditions.has_side_stream && !conditions.recomputes;
    split->may_be_added = adds_by_products(site, *split) && !conditions.recomputes;
    split->may_be_left = split->is_product && conditions.is_summed(site.graph.input(site.op, split->x_at));
  }
  if (conditions.fp8 != nullptr && fits_fp8(site.graph, site.op, *split))
    split->fp8 = conditions.fp8->find(site.graph.value(split->weight).name);
  split->sums_bias = split->is_product && split->bias.valid() && fused::has_column_sums(site.device);
  const bool may_defer = conditions.defers && !conditions.recomputes;
  if (!may_defer && !gains(*split)) return std::nullopt;
  if (site.device.is_cuda() && may_pad_rows(site.graph, site.op)) {
    split->pads_rows = true;
    split->input = &fused::gradient_through_padded_rows;
  }
  return split;
}

}  // namespace autopar::autograd
