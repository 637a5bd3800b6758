#include "torch/autograd/view_parts.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "ops/names.hpp"
#include "torch/autograd/layers.hpp"
#include "torch/autograd/split_backward.hpp"
#include "torch/fused/column_sums.hpp"
#include "torch/fused/joined_parts.hpp"
#include "torch/fused/strided_copy.hpp"

namespace autopar::autograd {

namespace {

using torch::autograd::variable_list;

class PartsNode : public torch::autograd::Node {
 public:
  /// @param whole  the tensor whose gradient is computed: the one that was split, or the base of that view
  PartsNode(const at::Tensor& whole, const std::vector<at::Tensor>& parts)
      : form_{whole.sizes().vec(), whole.strides().vec(), whole.options(), {}}, begin_(whole.storage_offset()) {
    for (const auto& part : parts) form_.places.push_back(place_of(part));
    set_next_edges(torch::autograd::collect_next_edges(whole));
  }

  /// The place in the whole tensor of a value that is, through views, a part of it.
  [[nodiscard]] Place place_of(const at::Tensor& value) const {
    return {value.sizes().vec(), value.strides().vec(), value.storage_offset() - begin_};
  }
  /// @param places  the places of values that together are all the parts
  [[nodiscard]] JoinedForm with_places(std::vector<Place> places) const {
    return {form_.sizes, form_.strides, form_.options, std::move(places)};
  }
  [[nodiscard]] std::int64_t elements_of(std::size_t part) const {
    return c10::multiply_integers(form_.places.at(part).sizes);
  }

  variable_list apply(variable_list&& gradients) override {
    if (std::ranges::none_of(gradients, [](const at::Tensor& gradient) { return gradient.defined(); }))
      return {at::Tensor()};
    if (lie_joined(gradients))
      return {gradients[0].as_strided(form_.sizes, form_.strides, begin_of(gradients[0], form_.places[0]))};
    auto parts = form_.made();
    auto whole = parts[0].as_strided(form_.sizes, form_.strides, 0);
    if (fused::join_parts(whole, parts, gradients)) return {std::move(whole)};
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (gradients[i].defined())
        fused::copy_strided(parts[i], gradients[i]);
      else
        parts[i].zero_();
      gradients[i].reset();
    }
    return {std::move(whole)};
  }

  std::string name() const override { return "PartsBackward"; }

 private:
  static std::int64_t begin_of(const at::Tensor& gradient, const Place& place) {
    return gradient.storage_offset() - place.offset;
  }
  [[nodiscard]] bool lie_joined(const variable_list& gradients) const {
    if (!gradients[0].defined()) return false;
    const auto begin = begin_of(gradients[0], form_.places[0]);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const auto& gradient = gradients[i];
      const auto& place = form_.places[i];
      if (!gradient.defined() || !gradient.is_alias_of(gradients[0]) || gradient.is_neg()) return false;
      if (gradient.sizes() != place.sizes || gradient.strides() != place.strides) return false;
      if (begin_of(gradient, place) != begin) return false;
    }
    return begin >= 0;
  }

  JoinedForm form_;
  std::int64_t begin_;
};

constexpr std::array<std::string_view, 7> kViews{"ViewBackward0",      "ReshapeAliasBackward0", "PermuteBackward0",
                                                 "TransposeBackward0", "UnsqueezeBackward0",    "SqueezeBackward1",
                                                 "AliasBackward0"};

/// Whether a node is libtorch's autograd node of a view of all elements.
bool is_of_view(const torch::autograd::Node& node) {
  return node.num_outputs() == 1 && std::ranges::find(kViews, node.name()) != kViews.end();
}

/// Whether all nodes between two autograd nodes are libtorch's nodes of views.
bool leads_through_views(const torch::autograd::Node* from, const torch::autograd::Node* to) {
  while (from != nullptr && from != to) {
    if (!is_of_view(*from)) return false;
    from = from->next_edge(0).function.get();
  }
  return from == to;
}

/// The node and the index of the part of which a value is a view of all elements; null if there is none.
std::pair<const PartsNode*, std::size_t> part_behind(const at::Tensor& value) {
  const auto* node = value.grad_fn().get();
  auto output = value.output_nr();
  while (node != nullptr && is_of_view(*node)) {
    const auto& edge = node->next_edge(0);
    node = edge.function.get();
    output = edge.input_nr;
  }
  return {dynamic_cast<const PartsNode*>(node), output};
}

/// Whether libtorch's autograd nodes would lay out the parts' gradients differently, and copy them again.
bool is_permuted(const at::Tensor& whole) { return !whole.is_contiguous() && whole.is_non_overlapping_and_dense(); }

/// The result of a linear layer that takes a bias gradient, if `whole` is all of it; otherwise undefined.
at::Tensor result_behind(const at::Tensor& whole) {
  const at::Tensor result = whole.is_view() ? at::Tensor(whole._base()) : whole;
  const bool is_all = result.is_contiguous() && result.numel() == whole.numel() &&
                      result.scalar_type() == whole.scalar_type() && whole.is_non_overlapping_and_dense();
  const bool gains = is_permuted(whole) || fused::has_column_sums(whole.device());
  const bool leads_there = is_all && gains && takes_bias_gradient(result) &&
                           leads_through_views(whole.grad_fn().get(), result.grad_fn().get());
  return leads_there ? result : at::Tensor();
}

/// @param whole  see PartsNode
void run_with_parts_of(const at::Tensor& whole, replay::ReplayCall& call) {
  {
    const at::AutoDispatchBelowADInplaceOrView no_history;
    call.call_original();
  }
  auto parts = call.stack[0].toTensorVector();
  const std::shared_ptr<PartsNode> node(new PartsNode(whole, parts), torch::autograd::deleteNode);
  for (auto& part : parts) torch::autograd::set_history(part, node);
  call.stack[0] = std::move(parts);
}

bool is_written_from(const OpGraph& graph, OpId op, StorageId storage) {
  return std::any_of(graph.ops.begin() + static_cast<std::ptrdiff_t>(op.index()), graph.ops.end(),
                     [&](const OpNode& node) { return std::ranges::find(node.writes, storage) != node.writes.end(); });
}

}  // namespace

std::vector<at::Tensor> JoinedForm::made() const {
  const auto all = at::empty_strided(sizes, strides, options);
  std::vector<at::Tensor> parts;
  for (const auto& place : places) parts.push_back(all.as_strided(place.sizes, place.strides, place.offset));
  return parts;
}

std::optional<JoinedForm> joined_form_of(const std::vector<at::Tensor>& values) {
  const PartsNode* whole = nullptr;
  std::vector<Place> places;
  std::vector<std::size_t> seen;
  for (const auto& value : values) {
    const auto [node, part] = part_behind(value);
    const bool is_next = node != nullptr && (whole == nullptr || node == whole) &&
                         std::ranges::find(seen, part) == seen.end() && value.numel() == node->elements_of(part);
    if (!is_next) return std::nullopt;
    whole = node;
    seen.push_back(part);
    places.push_back(node->place_of(value));
  }
  if (whole == nullptr || whole->num_inputs() != seen.size()) return std::nullopt;
  return whole->with_places(std::move(places));
}

bool takes_apart(const OpGraph& graph, OpId op) {
  static constexpr std::array<std::string_view, 5> kNames{ops::kUnbind, ops::kSplit, ops::kSplitWithSizes, ops::kChunk,
                                                          ops::kTensorSplit};
  const auto whole = graph.input(op, 0);
  return std::ranges::find(kNames, graph.name(op)) != kNames.end() && graph.op(op).grad_enabled && whole.valid() &&
         graph.value(whole).has_gradient() && graph.value(whole).storage.valid() &&
         !is_written_from(graph, op, graph.value(whole).storage);
}

bool takes_linear_apart(const OpGraph& graph, const std::vector<std::vector<OpId>>& uses, OpId op) {
  if (!takes_apart(graph, op)) return false;
  auto value = graph.input(op, 0);
  const auto storage = graph.value(value).storage;
  while (graph.value(value).storage == storage && uses[value.index()].size() == 1 &&
         std::ranges::find(graph.outputs, value) == graph.outputs.end()) {
    const auto definer = graph.value(value).definer;
    if (!definer.valid()) return false;
    if (is_layer(graph, definer)) return has_layer_bias(graph, definer);
    value = graph.input(definer, 0);
    if (!value.valid()) return false;
  }
  return false;
}

void run_parts(replay::ReplayCall& call) {
  const auto whole = call.stack[0].toTensor();
  if (!is_permuted(whole) || !at::GradMode::is_enabled() || !whole.requires_grad()) {
    call.call_original();
    return;
  }
  run_with_parts_of(whole, call);
}

void run_parts_of_linear(replay::ReplayCall& call) {
  const auto whole = call.stack[0].toTensor();
  const auto result = at::GradMode::is_enabled() && whole.requires_grad() ? result_behind(whole) : at::Tensor();
  if (result.defined())
    run_with_parts_of(result, call);
  else
    run_parts(call);
}

}  // namespace autopar::autograd
