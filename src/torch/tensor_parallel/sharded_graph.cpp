#include "torch/tensor_parallel/sharded_graph.hpp"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <autopar/core/assert.hpp>

#include "ops/names.hpp"
#include "ops/registry.hpp"
#include "ops/rules.hpp"

namespace autopar::tensor_parallel {

namespace {

at::Tensor in_one_process(const at::Tensor& self) { return self.clone(); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(autopar, library) {
  for (const auto name : ir::kShardMoves) {
    const auto base = name.substr(std::string_view("autopar::").size());
    library.def((std::string(base) + "(Tensor self) -> Tensor").c_str(), in_one_process);
  }
}

namespace {

c10::OperatorHandle operator_of(ir::ShardMove move) { return ops::operator_named(name_of(move)); }

class Inserter {
 public:
  Inserter(const OpGraph& graph, const std::vector<ShardedStage>& stages)
      : stages_(stages), stage_of_(graph.ops.size()) {
    out_.graph = graph;
    out_.graph.ops.clear();
    for (std::size_t s = 0; s < stages.size(); ++s) {
      for (const auto& [op, kernel] : stages[s].layout.in_slices) stage_of_[op.index()] = s;
      for (const auto& [op, moves] : stages[s].layout.before) stage_of_[op.index()] = s;
      for (const auto& [leaf, slices] : stages[s].layout.leaves) note_slices(leaf, s, slices);
    }
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      old_ = OpId::of(i);
      if (stage_of_[i]) {
        insert(graph.ops[i], *stage_of_[i]);
      } else {
        auto node = graph.ops[i];
        for (auto& slot : node.inputs) {
          for (auto& value : slot.values) value = whole_of(value);
        }
        append(std::move(node));
      }
    }
    for (auto& output : out_.graph.outputs) output = whole_of(output);
    find_only_readers();
  }

  [[nodiscard]] ShardedGraph take() && { return std::move(out_); }

 private:
  void find_only_readers() {
    for (auto& [op, step] : out_.steps)
      step.is_only_reader = (step.kernel == ShardedOp::Kernel::kTogether || step.move == ir::ShardMove::kAllReduce) &&
                            ops::is_last_reader(out_.graph, op, /*operand=*/0);
  }

  [[nodiscard]] const ShardedLayout& layout() const { return stages_[stage_].layout; }

  void note_slices(ValueId value, std::size_t stage, const UnitSlices& slices) {
    out_.slices[value] = {stage, stages_[stage].shards, slices};
  }

  OpId append(OpNode node) {
    const auto id = OpId::of(out_.graph.ops.size());
    for_each_output(node, [&](ValueId value) { out_.graph.value(value).definer = id; });
    out_.graph.ops.push_back(std::move(node));
    out_.made_for.push_back(old_);
    return id;
  }

  /// A value of the same form in separate memory.
  ValueId new_value(ValueId like) {
    auto info = out_.graph.value(like);
    info.kind = ValueKind::kComputed;
    info.previous = ValueId::none();
    info.name.clear();
    info.constant = at::Tensor();
    info.position = -1;
    info.storage = StorageId::of(static_cast<std::size_t>(out_.graph.storage_count++));
    out_.graph.values.push_back(std::move(info));
    return ValueId::of(out_.graph.values.size() - 1);
  }

  void move(ir::ShardMove kind, ValueId from, ValueId to, const UnitSlices& slices, const OpNode& beside) {
    OpNode node{operator_of(kind), {c10::IValue()}};
    node.inputs = {{0, SlotKind::kTensor, {from}}};
    node.outputs = {{0, SlotKind::kTensor, {to}}};
    node.grad_enabled = beside.grad_enabled;
    node.path = beside.path;
    if (const auto read = out_.graph.value(from).storage; read.valid()) node.reads = {read};
    if (const auto written = out_.graph.value(to).storage; written.valid()) node.writes = {written};
    const auto id = append(std::move(node));
    out_.steps[id] = {.shards = stages_[stage_].shards, .move = kind, .slices = slices};
  }

  /// The value that operators outside the shards' own read.
  [[nodiscard]] ValueId whole_of(ValueId value) const {
    const auto found = wholes_.find(value);
    return found == wholes_.end() ? value : found->second;
  }

  /// Replaces `x.view_as(y)` and similar by `x.view(sizes)`: y would give the unsharded sizes.
  void take_no_sizes(OpNode& node) const {
    const auto kind = ops::definition_of(node.op).kind;
    if ((kind != OpKind::kReshape && kind != OpKind::kExpand) || node.inputs.size() != 2) return;
    static const auto reshape = ops::operator_named(ops::kReshape);
    static const auto expand = ops::operator_named(ops::kExpand);
    std::erase(node.reads, out_.graph.value(node.inputs.back().values.front()).storage);
    node.inputs.pop_back();
    node.op = kind == OpKind::kReshape ? reshape : expand;
    std::vector<std::int64_t> fixed;
    node.integers.clear();
    for (const auto size : out_.graph.value(node.outputs.front().values.front()).sizes) {
      constexpr std::int32_t kSizes = 1;
      if (size.depends_on_batch()) node.integers.push_back({kSizes, static_cast<std::int32_t>(fixed.size()), size});
      fixed.push_back(size.at(1));
    }
    node.args = {c10::IValue(), c10::IValue(std::move(fixed))};
    if (kind == OpKind::kExpand) node.args.emplace_back(false);  // implicit
  }

  void insert(OpNode node, std::size_t stage) {
    stage_ = stage;
    if (layout().in_slices.count(old_) > 0) take_no_sizes(node);
    const auto moves = layout().before.find(old_);
    std::map<ValueId, ValueId> replaced;
    if (moves != layout().before.end()) {
      for (const auto& each : moves->second) replaced[each.value] = moved(each, node);
    }
    for (auto& slot : node.inputs) {
      for (auto& value : slot.values) {
        if (!value.valid()) continue;
        if (const auto found = replaced.find(value); found != replaced.end()) {
          value = found->second;
        } else if (!layout().layouts[value.index()].is_sharded()) {
          value = whole_of(value);
        }
      }
    }
    const auto kernel = layout().in_slices.find(old_);
    if (kernel == layout().in_slices.end()) {
      append(std::move(node));
      return;
    }
    if (has_sum(node)) {
      add_up(std::move(node), kernel->second);
    } else {
      const auto slices = slices_of_kernel(node, kernel->second);
      std::vector<ValueId> results;
      for_each_output(node, [&](ValueId value) { results.push_back(value); });
      const auto copy = node;
      const auto id = append(std::move(node));
      out_.steps[id] = {.shards = stages_[stage_].shards, .kernel = kernel->second, .slices = slices};
      for (const auto value : results) made(value, copy);
    }
  }

  /// Registers a value in its stage's layout; readers outside get it unsharded.
  void made(ValueId value, const OpNode& by) {
    const auto& layout_of_it = layout().layouts[value.index()];
    if (!layout_of_it.is_sharded()) return;
    note_slices(value, stage_, layout_of_it.slices());
    const auto leaving = layout().gathered_after.find(value);
    if (leaving == layout().gathered_after.end()) return;
    const auto whole = new_value(value);
    move(ir::ShardMove::kAllGather, value, whole, leaving->second, by);
    wholes_[value] = whole;
  }

  /// Each conversion of a value is inserted once, where it is first needed.
  ValueId moved(const ShardedLayout::Move& wanted, const OpNode& beside) {
    const auto known = std::ranges::find_if(made_, [&](const auto& each) {
      return std::get<0>(each) == wanted && std::get<1>(each) == stage_ && std::get<2>(each) == beside.grad_enabled;
    });
    if (known != made_.end()) return std::get<3>(*known);
    const auto value = new_value(wanted.value);
    const auto& own = layout().layouts[wanted.value.index()];  // in this stage
    auto from = own.is_sharded() ? wanted.value : whole_of(wanted.value);
    const bool of_other_slices = own.is_sharded() && wanted.move == ir::ShardMove::kScatter;
    if (of_other_slices) from = moved({ir::ShardMove::kAllGather, wanted.value, own.slices()}, beside);
    move(wanted.move, from, value, wanted.slices, beside);
    if (wanted.move == ir::ShardMove::kScatter) note_slices(value, stage_, wanted.slices);
    made_.emplace_back(wanted, stage_, beside.grad_enabled, value);
    return value;
  }

  [[nodiscard]] bool has_sum(const OpNode& node) const {
    bool any = false;
    for_each_output(node, [&](ValueId value) { any = any || layout().sums.count(value) > 0; });
    return any;
  }

  UnitSlices slices_of_kernel(const OpNode& node, ShardedOp::Kernel kernel) const {
    if (kernel != ShardedOp::Kernel::kTogether) return {};
    const auto sliced = static_cast<std::size_t>(ops::definition_of(node.op).sharded_argument);
    return out_.slices.at(node.inputs[sliced].values.front()).slices;
  }

  /// Inserts an operator that gives partial sums, and their sum after it.
  void add_up(OpNode node, ShardedOp::Kernel kernel) {
    const auto slices = slices_of_kernel(node, kernel);
    AUTOPAR_ASSERT(node.outputs.size() == 1 && node.outputs.front().kind == SlotKind::kTensor,
                   "an operator that gives terms of a sum gives one tensor");
    auto& result = node.outputs.front().values.front();
    const auto sum = std::exchange(result, new_value(result));
    const auto terms = result;
    const auto storage = out_.graph.value(sum).storage;
    std::ranges::replace(node.writes, storage, out_.graph.value(terms).storage);
    const auto beside = node;
    const auto id = append(std::move(node));
    out_.steps[id] = {.shards = stages_[stage_].shards, .kernel = kernel, .slices = slices};
    const auto& sliced = layout().layouts[sum.index()];
    if (sliced.is_sharded())
      move(ir::ShardMove::kReduceScatter, terms, sum, sliced.slices(), beside);
    else
      move(ir::ShardMove::kAllReduce, terms, sum, {}, beside);
    made(sum, beside);
  }

  const std::vector<ShardedStage>& stages_;
  std::vector<std::optional<std::size_t>> stage_of_;  // by OpId of the old program
  std::size_t stage_ = 0;                             // of the current operator
  OpId old_;                                          // the current operator, in the old program
  std::map<ValueId, ValueId> wholes_;                 // unsharded versions of values in slices that are read outside
  std::vector<std::tuple<ShardedLayout::Move, std::size_t, bool, ValueId>> made_;
  ShardedGraph out_;
};

/// Multiplies a size that depends on the sliced dim by own / all.
SizeExpr scaled(SizeExpr size, std::int64_t own, std::int64_t all) {
  return {size.per_sample * own / all, size.fixed * own / all};
}

/// Sets an element of an integer argument.
void set_size(OpNode& node, std::int32_t argument, std::int32_t element, SizeExpr from, SizeExpr to) {
  bool follows = false;
  for (auto& integer : node.integers) {
    if (integer.argument != argument || integer.element != element) continue;
    if (integer.expr == from) integer.expr = to;
    follows = true;
  }
  if (follows) return;
  auto& value = node.args[static_cast<std::size_t>(argument)];
  if (element < 0) {
    if (value.isInt() && value.toInt() == from.fixed) value = to.fixed;
    return;
  }
  auto list = value.toIntVector();
  auto& own = list[static_cast<std::size_t>(element)];
  if (own == from.fixed) own = to.fixed;
  value = list;
}

/// Sets the sizes in the arguments of an operator whose result is in slices.
void shrink_arguments(OpNode& node, const OpGraph& whole, const OpGraph& own, const ShardedGraph::Slices& slices,
                      int place) {
  const auto result = node.outputs.front().values.front();
  const auto dim = static_cast<std::size_t>(slices.slices.dim);
  const auto from = whole.value(result).sizes[dim], to = own.value(result).sizes[dim];
  const auto& schema = node.op.schema();
  const auto argument = [&](const char* name) {
    const auto at = schema.argumentIndexWithName(name);
    return at ? static_cast<std::int32_t>(*at) : -1;
  };
  const auto kind = ops::definition_of(node.op).kind;
  if (kind == OpKind::kReshape || kind == OpKind::kExpand) {
    for (const auto* name : {"size", "shape", "sizes"}) {
      const auto at = argument(name);
      if (at < 0 || !node.args[static_cast<std::size_t>(at)].isIntList()) continue;
      // The argument of unflatten has only some of the dims, from `dim` on.
      const auto length = static_cast<std::int32_t>(node.args[static_cast<std::size_t>(at)].toIntVector().size());
      std::int32_t element = slices.slices.dim;
      if (const auto first = argument("dim"); first >= 0) {
        const auto rank = static_cast<std::int64_t>(whole.value(result).sizes.size()) - length + 1;
        const auto begin = node.args[static_cast<std::size_t>(first)].toInt();
        element -= static_cast<std::int32_t>(begin < 0 ? begin + rank : begin);
      }
      if (element >= 0 && element < length) set_size(node, at, element, from, to);
    }
    return;
  }
  const auto along = argument("dim");
  if (along < 0 || (kind != OpKind::kSplit && kind != OpKind::kSlice)) return;
  const auto self = node.inputs.front().values.front();
  const auto rank = static_cast<std::int64_t>(whole.value(self).sizes.size());
  const auto named = node.args[static_cast<std::size_t>(along)].toInt();
  if ((named < 0 ? named + rank : named) != slices.slices.dim) return;
  const auto units = slices.slices.units, mine = slices.slices.split(slices.shards).length(place);
  const auto shrink = [&](const char* name) {
    const auto at = argument(name);
    if (at < 0) return;
    auto& value = node.args[static_cast<std::size_t>(at)];
    const auto size = whole.value(self).sizes[dim].fixed;
    const auto smaller = [&](std::int64_t bound) { return bound > size ? bound : bound * mine / units; };
    if (value.isInt()) {
      value = smaller(value.toInt());
    } else if (value.isIntList()) {
      auto list = value.toIntVector();
      for (auto& each : list) each = smaller(each);
      value = list;
    }
  };
  for (const auto* name : {"start", "end", "length", "split_size", "split_sizes", "indices"}) shrink(name);
}

}  // namespace

ShardedGraph insert_moves(const OpGraph& graph, const std::vector<ShardedStage>& stages) {
  return Inserter(graph, stages).take();
}

std::vector<SizeExpr> sizes_on_shard(std::vector<SizeExpr> whole, const ShardedGraph::Slices& slices, int place) {
  whole[static_cast<std::size_t>(slices.slices.dim)] =
      slices.slices.size_of(slices.slices.split(slices.shards).length(place));
  return whole;
}

OpGraph on_shard(const ShardedGraph& sharded, const std::vector<std::optional<int>>& places) {
  OpGraph own = sharded.graph;
  for (const auto& [value, slices] : sharded.slices) {
    const auto place = places[slices.stage];
    if (!place) continue;
    auto& info = own.value(value);
    const auto units = slices.slices.split(slices.shards).length(*place);
    const auto dim = static_cast<std::size_t>(slices.slices.dim);
    info.sizes = sizes_on_shard(std::move(info.sizes), slices, *place);
    const auto stride = info.strides.empty() ? SizeExpr{} : info.strides[dim];
    for (auto& other : info.strides) {  // strides of dims whose elements contain the sliced dim
      const bool is_outside = other.fixed > stride.fixed || other.per_sample > stride.per_sample;
      if (is_outside) other = scaled(other, units, slices.slices.units);
    }
  }
  for (std::size_t i = 0; i < own.ops.size(); ++i) {
    auto& node = own.ops[i];
    bool shrinks = false;
    for_each_output(node, [&](ValueId result) {
      const auto found = sharded.slices.find(result);
      if (shrinks || found == sharded.slices.end() || !places[found->second.stage]) return;
      shrinks = true;
      shrink_arguments(node, sharded.graph, own, found->second, *places[found->second.stage]);
    });
  }
  return own;
}

}  // namespace autopar::tensor_parallel
