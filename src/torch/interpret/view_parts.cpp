#include "torch/interpret/view_parts.hpp"

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

#include "torch/kernels/strided_copy.hpp"

namespace autopar {

namespace {

using torch::autograd::variable_list;

/// Where a part lies in a tensor.
struct Place {
  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset = 0;
};

class PartsNode : public torch::autograd::Node {
 public:
  PartsNode(const at::Tensor& whole, const std::vector<at::Tensor>& parts)
      : sizes_(whole.sizes().vec()), strides_(whole.strides().vec()), options_(whole.options()) {
    for (const auto& part : parts) {
      places_.push_back({part.sizes().vec(), part.strides().vec(), part.storage_offset() - whole.storage_offset()});
    }
    set_next_edges(torch::autograd::collect_next_edges(whole));
  }

  variable_list apply(variable_list&& gradients) override {
    if (std::ranges::none_of(gradients, [](const at::Tensor& gradient) { return gradient.defined(); }))
      return {at::Tensor()};
    auto whole = at::empty_strided(sizes_, strides_, options_);
    for (std::size_t i = 0; i < places_.size(); ++i) {
      auto part = whole.as_strided(places_[i].sizes, places_[i].strides, places_[i].offset);
      if (gradients[i].defined())
        copy_strided(part, gradients[i]);
      else
        part.zero_();
      gradients[i].reset();
    }
    return {std::move(whole)};
  }

  std::string name() const override { return "PartsBackward"; }

 private:
  std::vector<std::int64_t> sizes_, strides_;
  at::TensorOptions options_;
  std::vector<Place> places_;
};

}  // namespace

namespace {

bool is_written_from(const OpGraph& graph, OpId op, StorageId storage) {
  return std::any_of(graph.ops.begin() + static_cast<std::ptrdiff_t>(op.index()), graph.ops.end(),
                     [&](const OpNode& node) { return std::ranges::find(node.writes, storage) != node.writes.end(); });
}

}  // namespace

bool takes_apart(const OpGraph& graph, OpId op) {
  static constexpr std::array<std::string_view, 5> kNames{"aten::unbind", "aten::split", "aten::split_with_sizes",
                                                          "aten::chunk", "aten::tensor_split"};
  const auto whole = graph.input(op, 0);
  return std::ranges::find(kNames, graph.name(op)) != kNames.end() && graph.op(op).grad_enabled && whole.valid() &&
         graph.value(whole).has_gradient() && graph.value(whole).storage.valid() &&
         !is_written_from(graph, op, graph.value(whole).storage);
}

void proceed_in_parts(ReplayCall& call) {
  const auto whole = call.stack[0].toTensor();
  const bool gains = !whole.is_contiguous() && whole.is_non_overlapping_and_dense();
  if (!gains || !at::GradMode::is_enabled() || !whole.requires_grad()) {
    call.proceed();
    return;
  }
  {
    const at::AutoDispatchBelowADInplaceOrView no_history;
    call.proceed();
  }
  auto parts = call.stack[0].toTensorVector();
  const std::shared_ptr<PartsNode> node(new PartsNode(whole, parts), torch::autograd::deleteNode);
  for (auto& part : parts) torch::autograd::set_history(part, node);
  call.stack[0] = std::move(parts);
}

}  // namespace autopar
