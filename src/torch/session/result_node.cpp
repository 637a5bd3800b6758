#include "torch/session/result_node.hpp"

#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <autopar/core/error.hpp>

namespace autopar {

torch::autograd::variable_list ResultNode::apply(torch::autograd::variable_list&& gradients) {
  if (at::GradMode::is_enabled()) {
    throw InvalidArgument(
        "backward(create_graph = true) through the results of an AutoParallel model is not supported: the gradients are "
        "computed on several ranks without a graph of their own; call backward() without create_graph");
  }
  if (!backward_) {
    throw InvalidArgument(
        "backward was called twice on the same result of an AutoParallel model, whose gradients were freed after the "
        "first time; call the model again");
  }
  return backward_(gradients, torch::autograd::get_current_graph_task_keep_graph());
}

void attach_history(std::vector<at::Tensor>& results, const std::vector<at::Tensor>& arguments,
                    ResultNode::Backward backward) {
  // Deleted by autograd's own deleter, which unwinds long chains without recursion.
  const std::shared_ptr<ResultNode> node(new ResultNode(std::move(backward)), torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(arguments));
  for (auto& result : results) torch::autograd::set_history(result, node);
}

}  // namespace autopar
