#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

BatchTyping mixes(const OpCall&) { return BatchTyping::mixes("it mixes samples"); }

}  // namespace

/// Operators whose result for a sample depends on other samples, in any dim.
void add_mixing(OpList& list) {
  OpDef def;
  def.over_samples = mixes;
  def.treatment = kMixes;
  def.summary = "whatever the dims: one micro-batch and one replica";
  list.add(def, SavedTensors::kNothing,
           {"trace", "histc", "histogram", "masked_scatter", "put", "nonzero_static", "_pdist_forward", "block_diag",
            "segment_reduce"});
}

}  // namespace autopar::ops
