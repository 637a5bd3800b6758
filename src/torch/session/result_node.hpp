#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

namespace autopar {

/// Autograd history of a call's results: gradients of the results in, gradients of the arguments out.
class ResultNode : public torch::autograd::Node {
 public:
  /// @param retain  the caller keeps the graph for another backward
  using Backward = std::function<torch::autograd::variable_list(const torch::autograd::variable_list& gradients,
                                                                bool retain)>;

  explicit ResultNode(Backward backward) : backward_(std::move(backward)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  void release_variables() override { backward_ = nullptr; }
  [[nodiscard]] std::string name() const override { return "autopar::ResultNode"; }

 private:
  Backward backward_;
};

/// Gives `results` (fresh tensors without history) a common history whose inputs are `arguments`.
/// `backward` gets one gradient a result and returns one an argument; undefined means none.
void attach_history(std::vector<at::Tensor>& results, const std::vector<at::Tensor>& arguments,
                    ResultNode::Backward backward);

}  // namespace autopar
