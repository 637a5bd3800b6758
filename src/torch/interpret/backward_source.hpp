#pragma once

#include <memory>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

namespace autopar {

/// Where a backward begins: gives results their gradients. Roots that the engine is given itself are held, with their
/// gradients, until it is done: here each gradient goes as it is read, so that kernels may write over it.
class BackwardSource : public torch::autograd::Node {
 public:
  /// Adds to leaves, and keeps no history.
  /// @param results  edges to them, not none
  /// @param gradients  of each, defined
  static void run(torch::autograd::edge_list results, torch::autograd::variable_list gradients) {
    const auto none = at::empty({0}, gradients.front().options());  // says on which device it runs
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

}  // namespace autopar
