#include "testing_torch/sharded_run.hpp"

#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

#include <autopar/core/assert.hpp>

#include "ops/registry.hpp"
#include "testing_torch/laws.hpp"
#include "torch/tensor_parallel/sharded_graph.hpp"

namespace autopar::testing::op_laws {

namespace {

/// The inverse of `slice_of`.
at::Tensor joined(const Tensors& pieces, const UnitSlices& slices, std::int64_t batch) {
  const auto split = slices.split(kShards);
  const auto outer = slices.outer.at(batch);
  Tensors blocks, parts;
  for (const auto& piece : pieces)
    blocks.push_back(piece.unflatten(slices.dim, {outer, piece.size(slices.dim) / outer}));
  std::int64_t before = 0;
  for (const auto part : slices.inner) {
    for (int place = 0; place < kShards; ++place) {
      const auto units = split.length(place);
      parts.push_back(blocks[static_cast<std::size_t>(place)].narrow(slices.dim + 1, before * units, part * units));
    }
    before += part;
  }
  return at::cat(parts, slices.dim + 1).flatten(slices.dim, slices.dim + 1);
}

Tensors moved(const tensor_parallel::ShardedStep& step, const Tensors& from, std::int64_t batch) {
  Tensors to;
  switch (*step.move) {
    case ir::ShardMove::kCopy:
      return from;
    case ir::ShardMove::kAllReduce:
      to.assign(kShards, from.front() + from.back());
      return to;
    case ir::ShardMove::kAllGather:
    case ir::ShardMove::kAssemble:
      to.assign(kShards, joined(from, step.slices, batch));
      return to;
    case ir::ShardMove::kScatter:
      for (int place = 0; place < kShards; ++place)
        to.push_back(slice_of(from[static_cast<std::size_t>(place)], step.slices, batch, place));
      return to;
    case ir::ShardMove::kReduceScatter:
      break;
  }
  AUTOPAR_ASSERT(false, "sums are left in slices of tokens where that is asked for alone");
  return to;
}

}  // namespace

bool fits(const UnitSlices& slices, const at::Tensor& whole, std::int64_t batch) {
  return slices.dim >= 0 && slices.dim < whole.dim() && slices.width() > 0 &&
         whole.size(slices.dim) == slices.outer.at(batch) * slices.units * slices.width();
}

at::Tensor slice_of(const at::Tensor& whole, const UnitSlices& slices, std::int64_t batch, int place) {
  const auto blocks = whole.unflatten(slices.dim, {slices.outer.at(batch), slices.units * slices.width()});
  Tensors parts;
  for (const auto& [begin, end] : slices.ranges(kShards, place))
    parts.push_back(blocks.narrow(slices.dim + 1, begin, end - begin));
  return at::cat(parts, slices.dim + 1).flatten(slices.dim, slices.dim + 1);
}

std::map<ValueId, Tensors> run_in_shards(const OpGraph& graph, const tensor_parallel::ShardedLayout& layout, OpId call,
                                         const std::map<ValueId, at::Tensor>& operands, std::int64_t batch) {
  static_assert(kShards == 2, "sums have two addends");
  const auto sharded = tensor_parallel::insert_moves(graph, {{kShards, layout}});
  const OpGraph programs[kShards]{tensor_parallel::on_shard(sharded, {0}), tensor_parallel::on_shard(sharded, {1})};
  std::map<ValueId, Tensors> values;
  for (const auto& [value, whole] : operands) {
    const auto found = layout.leaves.find(value);
    for (int place = 0; place < kShards; ++place)
      values[value].push_back(found == layout.leaves.end() ? whole : slice_of(whole, found->second, batch, place));
  }
  for (std::size_t i = 0; i < sharded.graph.ops.size(); ++i) {
    const auto id = OpId::of(i);
    if (sharded.made_for[i] != call) continue;
    const auto& node = sharded.graph.op(id);
    const auto step = sharded.steps.find(id);
    if (step != sharded.steps.end() && step->second.move) {
      values[sharded.graph.output(id)] = moved(step->second, values.at(sharded.graph.input(id, 0)), batch);
      continue;
    }
    for (std::size_t place = 0; place < kShards; ++place) {
      replay::Environment own(sharded.graph.values.size());
      for_each_input(node, [&](ValueId value) { own[value.index()] = values.at(value)[place]; });
      const bool has_bias_once = step != sharded.steps.end() && step->second.kernel == ShardedOp::Kernel::kBiasOnce;
      if (has_bias_once && place > 0) {
        auto& bias = own[sharded.graph.input(id, ops::definition_of(node.op).layer->bias).index()];
        bias = at::zeros_like(bias);
      }
      auto results = run_alone(programs[place], id, std::move(own), batch);
      std::size_t k = 0;
      for_each_output(node, [&](ValueId value) { values[value].push_back(std::move(results[k++])); });
    }
  }
  return values;
}

}  // namespace autopar::testing::op_laws
