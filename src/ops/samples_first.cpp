#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

/// Samples are dim 0 of images [samples, channels, …] with at least `rank` dims.
template <std::int64_t rank>
BatchTyping images(const OpCall& op) {
  if (op.rank(op.first_tensor()) < rank) return BatchTyping::mixes("its samples are not in dim 0");
  static const auto in_front = samples_first(1);
  return in_front(op);
}

SavedBytes saved_by_group_norm(const OpCall& op) {
  const auto input = op.first_tensor();
  const auto statistic = statistic_bytes(op.graph().value(op.results().front()).dtype);
  return {{input}, Affine{op.sizes(input).empty() ? 0 : 2 * statistic * op.number("num_groups", 1), 0}};
}

}  // namespace

/// Operators whose samples are dim 0, and that belong to no other family.
void add_samples_first(OpList& list) {
  OpDef def;
  def.traits = OpTrait::kTakesBatchSizes;
  def.over_samples = samples_first(1);
  def.treatment = kPerSample;
  def.summary = "samples are dim 0 (convolutions: or groups of channels); mixes else";
  list.add(def, SavedTensors::kNothing, {"multinomial", "channel_shuffle"});
  list.add(def, SavedTensors::kInput, {"affine_grid_generator"});
  auto grid = def;
  grid.over_samples = samples_first(2);
  list.add(grid, SavedTensors::kInputs, {"grid_sampler", "grid_sampler_2d", "grid_sampler_3d"});
  auto columns = def;
  columns.over_samples = images<4>;
  list.add(columns, SavedTensors::kNothing, {"im2col"});
  columns.over_samples = images<3>;
  list.add(columns, SavedTensors::kNothing, {"col2im"});
  list.add(columns, SavedTensors::kInput, {"istft"});
  auto groups = def;
  groups.saved_by = saved_by_group_norm;
  groups.autocast = AutocastRule::kNone;
  list.add(groups, SavedTensors::kInput, {"group_norm"});
}

}  // namespace autopar::ops
