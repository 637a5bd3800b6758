#include <utility>

#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

/// Number of last dims that include all padded dims.
std::int64_t padded_dims(const OpCall& op) {
  const auto padding = op.integers("pad");
  if (!padding) return op.rank(op.first_tensor());
  std::int64_t touched = 0;
  for (std::size_t i = 0; i < padding->size(); ++i) {
    if ((*padding)[i] != 0) touched = static_cast<std::int64_t>(i / 2) + 1;
  }
  return touched;
}

BatchTyping pad(const OpCall& op) { return last_dims(padded_dims(op))(op); }

/// Kernels save the index of each maximum.
SavedBytes saved_by_max_pool(const OpCall& op) {
  SavedBytes saved{{op.first_tensor()}, {}};
  if (op.results().size() > 1)
    saved.values.push_back(op.results()[1]);
  else
    saved.internal = elements(op.result_sizes()) * static_cast<double>(sizeof(std::int64_t));
  return saved;
}

OpDef window(OpDef::TypingRule rule) {
  OpDef def;
  def.over_samples = std::move(rule);
  def.sharding = shard_by_dims;
  def.treatment = kPerSample;
  def.summary = "works on its last dims; mixes if one of them is that of samples";
  return def;
}

OpDef max_pool(OpDef::TypingRule rule) {
  auto def = window(std::move(rule));
  def.saved_by = saved_by_max_pool;
  def.keeps_result = true;
  return def;
}

OpDef without_autocast(OpDef def) {
  def.autocast = AutocastRule::kNone;
  return def;
}

}  // namespace

/// Operators that work on their last dims: pools, resizing, padding.
void add_windows(OpList& list) {
  list.add(window(last_dims(1)), SavedTensors::kNothing,
           {"upsample_nearest1d", "upsample_linear1d", "_upsample_nearest_exact1d", "reflection_pad1d",
            "replication_pad1d"});
  list.add(
      window(last_dims(2)), SavedTensors::kNothing,
      {"tril", "triu", "upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_nearest_exact2d",
       "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "reflection_pad2d", "replication_pad2d"});
  list.add(window(last_dims(3)), SavedTensors::kNothing,
           {"pixel_shuffle", "pixel_unshuffle", "upsample_nearest3d", "upsample_trilinear3d",
            "_upsample_nearest_exact3d", "reflection_pad3d", "replication_pad3d"});
  list.add(window(last_dims(1)), SavedTensors::kInput, {"avg_pool1d"});
  list.add(window(last_dims(2)), SavedTensors::kInput, {"avg_pool2d"});
  list.add(window(last_dims(3)), SavedTensors::kInput, {"avg_pool3d", "adaptive_avg_pool3d"});
  list.add(window(last_dims(2)), SavedTensors::kIndices, {"max_unpool2d"});
  list.add(window(last_dims(3)), SavedTensors::kIndices, {"max_unpool3d"});
  list.add(without_autocast(window(last_dims(1))), SavedTensors::kInput, {"adaptive_avg_pool1d"});
  list.add(without_autocast(window(last_dims(2))), SavedTensors::kInput, {"adaptive_avg_pool2d"});
  list.add(max_pool(last_dims(1)), {"max_pool1d", "max_pool1d_with_indices", "adaptive_max_pool1d"});
  list.add(max_pool(last_dims(2)), {"max_pool2d_with_indices", "adaptive_max_pool2d"});
  list.add(max_pool(last_dims(3)), {"max_pool3d", "max_pool3d_with_indices", "adaptive_max_pool3d"});
  list.add(without_autocast(max_pool(last_dims(2))), {"max_pool2d"});
  list.add(window(pad), SavedTensors::kNothing, {"constant_pad_nd", "pad"});
  list.add(window(last_dims(1)), SavedTensors::kInputAndResult, {"_sample_dirichlet"});
}

}  // namespace autopar::ops
