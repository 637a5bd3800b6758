#pragma once

#include <memory>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

namespace autopar::interpret {

/// The node at which a backward begins: it passes gradients to the results. The engine holds roots and their gradients
/// until the backward ends. With this node as the only root, each gradient is freed when it is read, so that kernels
/// may overwrite it.
class BackwardSource : public torch::autograd::Node {
 public:
  /// Accumulates into leaves, and does not keep the autograd graph.
  /// @param results  edges to the results, at least one
  /// @param gradients  one for each result, defined
  static void run(torch::autograd::edge_list results, torch::autograd::variable_list gradients) {
    const auto none = at::empty({0}, gradients.front().options());  // determines the device on which the node runs
    const std::shared_ptr<BackwardSource> source(new BackwardSource(std::move(results), std::move(gradients)),
                                                 torch::autograd::deleteNode);
    const auto root = source->add_input_metadata(none);
    torch::autograd::Engine::get_default_engine().execute({{source, root}}, {none}, false, false, true);
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { return std::move(gradients_); }
  std::string name() const override { return "BackwardSource"; }

 private:
  BackwardSource(torch::autograd::edge_list results, torch::autograd::variable_list gradients)
      : Node(std::move(results)), gradients_(std::move(gradients)) {}

  torch::autograd::variable_list gradients_;
};

}  // namespace autopar::interpret
