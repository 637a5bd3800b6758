#include "torch/interpret/segment_interpreter.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "capture/ir/tensor_form.hpp"
#include "torch/autograd/split_backward.hpp"
#include "torch/interpret/segment_node.hpp"

namespace autopar::interpret {

namespace {

std::vector<OpId> in_order(const std::vector<StagePart>& parts) {
  std::vector<OpId> ops;
  for (const auto& part : parts) ops.insert(ops.end(), part.ops.begin(), part.ops.end());
  return ops;
}

std::vector<OpId> recomputed_ops(const std::vector<StagePart>& parts) {
  std::vector<OpId> ops;
  for (const auto& part : parts) {
    if (part.recomputed) ops.insert(ops.end(), part.ops.begin(), part.ops.end());
  }
  std::sort(ops.begin(), ops.end());
  return ops;
}

std::vector<ValueId> with_casts(std::vector<ValueId> keep, const OpGraph& graph, const algebra::BatchSemantics& plan,
                                const std::vector<StagePart>& parts) {
  for (const auto op : in_order(parts)) {
    for_each_input(graph.op(op), [&](ValueId value) {
      const auto parameter = plan.parameter_behind(graph, value);
      if (parameter.valid() && parameter != value) keep.push_back(value);
    });
  }
  return keep;
}

}  // namespace

SegmentInterpreter::SegmentInterpreter(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                       const std::vector<StagePart>& parts, const std::vector<ValueId>& keep,
                                       c10::Device device, bool splits_backwards, StageServices services)
    : graph_(graph),
      plan_(plan),
      ops_(graph, plan, in_order(parts), with_casts(keep, graph, plan, parts), device, splits_backwards,
           recomputed_ops(parts), std::move(services)) {
  Uses uses;
  const bool any = std::any_of(parts.begin(), parts.end(), [](const StagePart& part) { return part.recomputed; });
  if (any) {
    uses.readers.resize(graph.values.size());
    uses.leaves.resize(graph.values.size(), false);
    for (const auto op : in_order(parts)) {
      for_each_input(graph.op(op), [&](ValueId value) { uses.readers[what_is_read(value).index()].push_back(op); });
    }
    for (const auto value : keep) uses.leaves[what_is_read(value).index()] = true;
  }
  std::size_t first = 0;
  for (const auto& part : parts) {
    const OpRange range{first, first + part.ops.size()};
    first = range.last;
    if (part.recomputed) {
      find_segment(part, range, uses, keep);
      find_small_views(segments_.back(), in_order(parts));
    }
    parts_.push_back({range, part.recomputed ? &segments_.back() : nullptr});
  }
}

// Gradients go past casts of parameters to the parameters.
ValueId SegmentInterpreter::what_is_read(ValueId value) const {
  const auto parameter = plan_.parameter_behind(graph_, value);
  return parameter.valid() ? parameter : value;
}

void SegmentInterpreter::find_segment(const StagePart& part, OpRange range, const Uses& uses,
                                      const std::vector<ValueId>& keep) {
  auto& segment = segments_.emplace_back();
  segment.ops = range;
  const auto inside = [&](OpId op) { return std::binary_search(part.ops.begin(), part.ops.end(), op); };
  const auto kept = [&](ValueId value) { return std::find(keep.begin(), keep.end(), value) != keep.end(); };
  std::vector<bool> seen(graph_.values.size(), false);
  const auto enter = [&](ValueId value) {
    const auto& info = graph_.value(value);
    if (seen[value.index()] || info.kind == ValueKind::kConstant || (info.definer.valid() && inside(info.definer)))
      return;
    seen[value.index()] = true;
    segment.entering.push_back({value, entry_of(value, part, uses)});
  };
  for (const auto op : part.ops) {
    if (const auto split = autograd::split_backward_of(graph_, plan_, op); split && split->of_cast) {
      for (const auto parameter : {split->weight, split->bias}) {
        if (parameter.valid()) enter(parameter);
      }
    }
    for_each_input(graph_.op(op), enter);
    for_each_output(graph_.op(op), [&](ValueId value) {
      segment.made.push_back(value);
      const auto& readers = uses.readers[value.index()];
      if (kept(value) || !std::all_of(readers.begin(), readers.end(), inside)) segment.leaving.push_back(value);
    });
  }
}

Segment::Entry SegmentInterpreter::entry_of(ValueId value, const StagePart& part, const Uses& uses) const {
  const auto& info = graph_.value(value);
  const auto read = what_is_read(value);
  const auto& readers = uses.readers[read.index()];
  const auto inside = [&](OpId op) { return std::binary_search(part.ops.begin(), part.ops.end(), op); };
  const bool is_own = graph_.value(read).kind == ValueKind::kParameter && !uses.leaves[read.index()];
  if (is_own && std::all_of(readers.begin(), readers.end(), inside)) return Segment::Entry::kOwn;
  if (info.kind != ValueKind::kBuffer) return Segment::Entry::kThrough;
  for (const auto& update : plan_.buffer_updates) {
    if (update.buffer == value) return Segment::Entry::kCopy;
  }
  bool updated = false;
  const auto updates = [&](OpId op) {
    const auto norm = plan_.handling(op).batch_norm;
    if (norm < 0) return false;
    const auto& plan = plan_.batch_norms[static_cast<std::size_t>(norm)];
    return plan.running_mean == value || plan.running_var == value;
  };
  for (const auto& norm : plan_.batch_norms)
    updated = updated || norm.running_mean == value || norm.running_var == value;
  if (!updated) return Segment::Entry::kThrough;
  return std::all_of(readers.begin(), readers.end(), updates) ? Segment::Entry::kUnread : Segment::Entry::kCopy;
}

// Finds small views: memory that the stage allocates and of which a segment reads a small part, through one or more
// views.
void SegmentInterpreter::find_small_views(Segment& segment, const std::vector<OpId>& stage) const {
  constexpr std::int64_t kSamples = 64;  // samples of the slice for which sizes are compared
  constexpr std::int64_t kMuchLarger = 2;
  const auto creators = graph_.storage_creators();
  const auto elements = [&](const ValueInfo& info) {
    std::int64_t product = 1;
    for (const auto size : ir::sizes_at(info, kSamples)) product *= size;
    return product;
  };
  std::map<StorageId, std::int64_t> read, whole;
  for (const auto& [value, entry] : segment.entering) {
    const auto& info = graph_.value(value);
    if (entry != Segment::Entry::kThrough || info.kind != ValueKind::kComputed || !info.storage.valid()) continue;
    const auto creator = creators[info.storage.index()];
    const bool made_here = creator.valid() && std::find(stage.begin(), stage.end(), creator) != stage.end();
    if (made_here) read[info.storage] += elements(info);
  }
  if (read.empty()) return;
  for (const auto& info : graph_.values) {
    if (read.count(info.storage) > 0) whole[info.storage] = std::max(whole[info.storage], elements(info));
  }
  for (auto& [value, entry] : segment.entering) {
    const auto found = read.find(graph_.value(value).storage);
    if (entry != Segment::Entry::kThrough || found == read.end()) continue;
    if (kMuchLarger * found->second <= whole[found->first]) entry = Segment::Entry::kView;
  }
}

void SegmentInterpreter::run(replay::Environment& values, const SliceContext& slice,
                             std::vector<NormSample>& statistics,
                             const std::shared_ptr<autograd::DeferredGradients>& deferred) {
  for (const auto& part : parts_) {
    if (part.segment != nullptr && at::GradMode::is_enabled())
      run_segment(*part.segment, values, slice, statistics);
    else
      ops_.run(values, slice, statistics, deferred, part.ops);
  }
}

void SegmentInterpreter::run_segment(const Segment& segment, replay::Environment& values, const SliceContext& slice,
                                     std::vector<NormSample>& statistics) {
  const std::shared_ptr<SegmentNode> node(new SegmentNode(ops_, segment, values, slice, plan_.batch_norms.size()),
                                          torch::autograd::deleteNode);
  ops_.run(values, slice, statistics, nullptr, segment.ops);
  SegmentNode::attach(node);
}

}  // namespace autopar::interpret
