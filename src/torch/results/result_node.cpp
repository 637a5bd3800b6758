#include "torch/results/result_node.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <autopar/core/error.hpp>

#include "torch/parameters/part_access.hpp"

namespace autopar::results {

using torch::autograd::edge_list;
using torch::autograd::variable_list;

bool GradientRequest::wants_parameters() const {
  return plain || std::find(parameters.begin(), parameters.end(), true) != parameters.end();
}

std::shared_ptr<OwnRegion> region_behind(const std::vector<at::Tensor>& arguments, const std::vector<bool>& own) {
  edge_list roots;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (own[i] && arguments[i].requires_grad()) roots.push_back(torch::autograd::impl::gradient_edge(arguments[i]));
  }
  return roots.empty() ? nullptr : std::make_shared<OwnRegion>(std::move(roots));
}

ResultNode::ResultNode(std::shared_ptr<ranks::Ranks> ranks, History history)
    : ranks_(std::move(ranks)), history_(std::move(history)) {
  edge_list edges;
  const auto arguments = std::exchange(history_.arguments, {});
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    in_region_.push_back(history_.own[i] && by_region());
    needed_.push_back(arguments[i].requires_grad());
    if (!in_region_[i]) edges.push_back(torch::autograd::impl::gradient_edge(arguments[i]));
  }
  if (by_region()) edges.insert(edges.end(), history_.region->ends().begin(), history_.region->ends().end());
  front_ = edges.size();
  edges.insert(edges.end(), history_.parameters.begin(), history_.parameters.end());
  set_next_edges(std::move(edges));
}

bool ResultNode::has_parameter(const torch::autograd::Node* accumulator) const {
  const auto is = [&](const torch::autograd::Edge& edge) { return edge.function.get() == accumulator; };
  return std::any_of(history_.parameters.begin(), history_.parameters.end(), is);
}

GradientRequest ResultNode::request() const {
  GradientRequest request;
  request.retain = torch::autograd::get_current_graph_task_keep_graph();
  request.completed = completed_;
  const auto* const nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  request.from_user = nodes != nullptr && !nodes->contains(const_cast<ResultNode*>(this));
  const auto* const asked = torch::autograd::get_current_graph_task_exec_info();
  request.plain = asked == nullptr || asked->empty();
  request.parameters.resize(history_.parameters.size());
  request.returned.resize(history_.parameters.size());
  if (!request.plain) {
    for (std::size_t k = 0; k < history_.parameters.size(); ++k) {
      const auto found = asked->find(history_.parameters[k].function.get());
      if (found == asked->end()) continue;
      request.parameters[k] = found->second.should_execute();
      request.returned[k] = found->second.captures_ != nullptr;
    }
  }
  std::size_t edge = 0;
  std::vector<bool> direct;
  for (const bool through : in_region_) direct.push_back(!through && task_should_compute_output(edge++));
  bool any_end = false;
  for (; edge < front_; ++edge) any_end = any_end || task_should_compute_output(edge);
  for (std::size_t i = 0; i < in_region_.size(); ++i) {
    request.arguments.push_back(in_region_[i] ? needed_[i] && any_end : direct[i]);
  }
  return request;
}

variable_list ResultNode::apply(variable_list&& gradients) {
  const parameters::PartAccess access;
  if (closed_) return variable_list(num_outputs());
  if (at::GradMode::is_enabled()) {
    throw InvalidArgument(
        "backward(create_graph = true) through the results of an AutoParallel model is not supported: the gradients "
        "are "
        "computed on several ranks without a graph of their own; call backward() without create_graph");
  }
  if (!history_.gradients) {
    throw InvalidArgument(
        "backward was called twice on the same result of an AutoParallel model, whose gradients were freed after the "
        "first time; call the model again");
  }
  if (history_.region != nullptr) {
    for (auto* node : history_.region->nodes()) node->completed_ = true;
  }
  const auto asked = request();
  auto behind = gradients_behind(history_.gradients(gradients, asked));
  if (asked.plain && !asked.retain) leave_parameters();
  return behind;
}

// Gradients are in `.grad` already. The engine would still run what adds them up, parameter by parameter, on nothing,
// which takes the host longer than all else in a backward. What others give gradients to must run. On devices one
// stays: who called backward, maybe on another stream, waits for the streams of nodes without edges.
void ResultNode::leave_parameters() {
  constexpr long kOwn = 2;  // the edge, and the history's copy of it
  for (std::size_t k = stream().has_value() ? 1 : 0; k < history_.parameters.size(); ++k) {
    auto& edge = next_edges()[front_ + k];
    if (edge.is_valid() && edge.function.use_count() <= kOwn) edge = {};
  }
}

/// Of the edges, from those of arguments and parameters.
variable_list ResultNode::gradients_behind(variable_list found) {
  if (!by_region()) return found;
  variable_list out, of_roots;
  for (std::size_t i = 0; i < in_region_.size(); ++i) {
    if (!in_region_[i])
      out.push_back(std::move(found[i]));
    else if (needed_[i])
      of_roots.push_back(std::move(found[i]));
  }
  std::vector<bool> wanted;
  for (auto edge = out.size(); edge < front_; ++edge) wanted.push_back(task_should_compute_output(edge));
  auto of_ends = history_.region->gradients(*ranks_, of_roots, wanted);
  std::move(of_ends.begin(), of_ends.end(), std::back_inserter(out));
  std::move(found.begin() + static_cast<std::ptrdiff_t>(in_region_.size()), found.end(), std::back_inserter(out));
  return out;
}

void attach_history(std::shared_ptr<ranks::Ranks> ranks, std::vector<at::Tensor>& results, History history) {
  // Deleted by autograd's own deleter, which unwinds long chains without recursion.
  const std::shared_ptr<ResultNode> node(new ResultNode(std::move(ranks), std::move(history)),
                                         torch::autograd::deleteNode);
  for (auto& result : results) torch::autograd::set_history(result, node);
}

}  // namespace autopar::results
