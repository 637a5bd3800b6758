#include "torch/steps/op_bars.hpp"

#include <algorithm>
#include <string>

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <autopar/capture/module_paths.hpp>

#include "capture/ir/shown_name.hpp"

namespace autopar::steps {

/// Begins the time of an operator's node. There is no hook at its end: one would keep the gradients that the node
/// takes.
class OpBars::NodeHook final : public torch::autograd::FunctionPreHook {
 public:
  NodeHook(OpBars& bars, std::shared_ptr<const OpLabels> labels, OpId op)
      : bars_(bars), labels_(std::move(labels)), op_(op) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    bars_.begin_node(labels_, op_);
    return gradients;
  }

 private:
  OpBars& bars_;
  std::shared_ptr<const OpLabels> labels_;
  OpId op_;
};

void OpBars::watch(const std::shared_ptr<const void>& program, const OpGraph& graph) {
  std::erase_if(known_, [](const auto& known) { return known.first.expired(); });
  const auto found = std::ranges::find_if(known_, [&](const auto& known) { return known.first.lock() == program; });
  if (found != known_.end()) {
    labels_ = found->second;
    return;
  }
  auto labels = std::make_shared<OpLabels>();
  labels->modules = module_paths(graph);
  for (std::size_t i = 0; i < graph.ops.size(); ++i) labels->names.push_back(ir::shown_name(graph, OpId::of(i)));
  labels_ = std::move(labels);
  known_.emplace_back(program, labels_);
}

void OpBars::begin(OpId) {
  begin_ = clock_.now();
  sequence_ = at::sequence_number::peek();
  end_node(begin_);  // of a segment, whose operators now run again
}

void OpBars::end(OpId op, const OpNode& node, const replay::Environment& environment) {
  add(labels_, op, "", begin_, clock_.now());
  if (!at::GradMode::is_enabled()) return;
  const torch::autograd::Node* last = nullptr;
  for_each_output(node, [&](ValueId value) {
    const auto& result = environment[value.index()];
    if (!result.defined() || !result.requires_grad()) return;
    const auto& made = result.grad_fn();
    if (made == nullptr || made.get() == last || made->sequence_nr() < sequence_) return;  // others: of its argument
    made->add_pre_hook(std::make_unique<NodeHook>(*this, labels_, op));
    last = made.get();
  });
}

void OpBars::end_action(TraceClock::Time end) {
  const std::lock_guard lock(mutex_);
  if (!node_) return;
  add(node_->labels, node_->op, " backward", node_->begin, clock_.has_queue() ? clock_.now() : TraceMark{end, nullptr});
  node_.reset();
}

void OpBars::begin_node(const std::shared_ptr<const OpLabels>& labels, OpId op) {
  const auto now = clock_.now();
  end_node(now);
  const std::lock_guard lock(mutex_);
  node_.emplace(Node{labels, op, now});
}

void OpBars::end_node(const TraceMark& now) {
  const std::lock_guard lock(mutex_);
  if (!node_) return;
  add(node_->labels, node_->op, " backward", node_->begin, now);
  node_.reset();
}

void OpBars::add(const std::shared_ptr<const OpLabels>& labels, OpId op, const char* part, const TraceMark& begin,
                 const TraceMark& end) {
  record_.add({.lane = clock_.has_queue() ? "device" : "compute",
               .category = TraceCategory::kOperator,
               .name = part,
               .begin = begin,
               .end = end,
               .labels = labels,
               .op = op});
}

}  // namespace autopar::steps
