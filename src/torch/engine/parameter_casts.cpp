#include "torch/engine/parameter_casts.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>

#include <autopar/core/assert.hpp>

#include "capture/ir/tensor_form.hpp"
#include "torch/autograd/parameter_cast.hpp"
#include "torch/parameters/compute_copy.hpp"

namespace autopar::engine {

ParameterCasts::ParameterCasts(const OpGraph& graph, const algebra::BatchSemantics& plan, const std::vector<OpId>& ops,
                               Copy copy)
    : graph_(graph), plan_(plan), copy_(std::move(copy)) {
  for (const auto op : ops) {
    if (plan.handling(op).once)
      casts_.push_back({graph.input(op, 0), graph.output(op)});
    else
      each_slice_.push_back(op);
  }
}

// Segments save their inputs before they run, and an element of a list cannot be missing. Casts for these are made
// first.
void ParameterCasts::find_readers(const std::vector<interpret::StagePart>& parts) {
  const auto cast_behind = [&](ValueId value) {
    const auto definer = value.valid() ? graph_.value(value).definer : OpId::none();
    return definer.valid() && plan_.handling(definer).once ? definer : OpId::none();
  };
  const bool has_segments =
      std::any_of(parts.begin(), parts.end(), [](const interpret::StagePart& part) { return part.recomputed; });
  std::set<OpId> first;
  for (const auto op : each_slice_) {
    for (const auto& slot : graph_.op(op).inputs) {
      for (const auto value : slot.values) {
        const auto cast = cast_behind(value);
        if (!cast.valid()) continue;
        if (has_segments || slot.kind != SlotKind::kTensor)
          first.insert(cast);
        else
          read_by_[op].push_back(cast);
      }
    }
  }
  made_first_.assign(first.begin(), first.end());
}

// ---------------------------------------------------------------- a call

void ParameterCasts::start(replay::Environment& values, const replay::Environment& handles, bool differentiate,
                           const std::map<ValueId, at::Tensor>& copies) {
  differentiates_ = differentiate;
  copies_ = copies;
  for (const auto op : made_first_) make(op, values, handles);
}

void ParameterCasts::make_for(OpId op, replay::Environment& values, const replay::Environment& handles) {
  const auto casts = read_by_.find(op);
  if (casts == read_by_.end()) return;
  for (const auto cast : casts->second) make(cast, values, handles);
}

// A parameter with several readers is cast once.
void ParameterCasts::make(OpId op, replay::Environment& values, const replay::Environment& handles) {
  auto& copy = values[graph_.output(op).index()];
  if (copy.defined()) return;
  const bool with_history = differentiates_ && graph_.op(op).grad_enabled;
  const at::AutoGradMode mode(with_history);
  const auto parameter = graph_.input(op, 0);
  const auto& form = graph_.value(graph_.output(op));
  auto& known = made_[{parameter, form.dtype, with_history}];
  if (!known.defined()) known = cast(values[parameter.index()], handles[parameter.index()], parameter, form);
  copy = known;
}

at::Tensor ParameterCasts::cast(const at::Tensor& leaf, const at::Tensor& handle, ValueId parameter,
                                const ValueInfo& form) const {
  const auto of_call = copies_.find(parameter);
  if (of_call != copies_.end()) return autograd::with_history_of(leaf, of_call->second);
  auto copy = copy_(parameter);
  AUTOPAR_ASSERT(!copy.defined() || copy.scalar_type() == form.dtype,
                 "a parameter is gathered in another element type than it is read in");
  auto* const kept = copy.defined() ? nullptr : kept_copy(handle, form);
  if (kept != nullptr) copy = kept->current(handle);
  return autograd::with_history_of(leaf, copy.defined() ? copy : autograd::cast_of(leaf, form));
}

parameters::ComputeCopy* ParameterCasts::kept_copy(const at::Tensor& handle, const ValueInfo& form) {
  auto* const kept = parameters::ComputeCopy::of(handle);
  if (kept == nullptr || kept->type() != form.dtype) return nullptr;
  const bool has_layout = !ir::is_channels_last(form) || handle.is_contiguous(at::MemoryFormat::ChannelsLast);
  return has_layout ? kept : nullptr;
}

void ParameterCasts::drop(replay::Environment& values) {
  for (const auto& cast : casts_) values[cast.result.index()].reset();
  made_.clear();
  copies_.clear();
}

void ParameterCasts::add_kept(const replay::Environment& handles, const std::map<ValueId, at::Tensor>& copies,
                              std::vector<const void*>& memory) const {
  for (const auto& cast : casts_) {
    if (const auto copy = copies.find(cast.parameter); copy != copies.end()) {
      memory.push_back(copy->second.const_data_ptr());
      continue;
    }
    const auto& handle = handles[cast.parameter.index()];
    auto* const kept = kept_copy(handle, graph_.value(cast.result));
    memory.push_back(kept != nullptr ? kept->current(handle).const_data_ptr() : nullptr);
  }
}

}  // namespace autopar::engine
