#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include "torch/ranks/ranks.hpp"
#include "torch/results/own_region.hpp"

namespace autopar::results {

/// What autograd asks of a node.
struct GradientRequest {
  bool retain = false;           ///< the graph is kept for another backward
  bool plain = true;             ///< backward() without inputs: all parameters are to get their gradients
  bool from_user = false;        ///< the gradients are the user's own: of `result.backward(gradient)`
  bool completed = false;        ///< they come from a global mean, or from the loss of another model
  std::vector<bool> arguments;   ///< which are wanted
  std::vector<bool> parameters;  ///< likewise; without meaning if `plain`
  std::vector<bool> returned;    ///< of `parameters`: torch::autograd::grad returns them, and leaves `.grad` as it is

  [[nodiscard]] bool wants_parameters() const;
};

/// What lies behind results in autograd's graph.
///
/// Outside of models each rank runs the same code on tensors of two kinds: its *own*, others on each rank, and *common*
/// ones, one value that all ranks have. Where common ones enter what is a rank's own (a sum that `global_mean`
/// completes, a batched argument), each rank makes an addend of their gradient; OwnRegion adds these up. So the
/// gradient of a common value is the same on all ranks, unless its user forgot to complete a sum.
struct History {
  /// Gradients of the arguments, then of the parameters; undefined means none.
  using Gradients = std::function<torch::autograd::variable_list(const torch::autograd::variable_list& of_results,
                                                                 const GradientRequest& request)>;

  std::vector<at::Tensor> arguments;
  std::vector<bool> own;                  ///< by argument: own, or common
  std::shared_ptr<OwnRegion> region;      ///< behind the own arguments; see `region_behind`
  torch::autograd::edge_list parameters;  ///< of the model, that backwards may be asked for
  std::vector<bool> common;               ///< by result
  Gradients gradients;
};

/// What lies between own arguments and the results and leaves behind them; null if they need no gradient.
[[nodiscard]] std::shared_ptr<OwnRegion> region_behind(const std::vector<at::Tensor>& arguments,
                                                       const std::vector<bool>& own);

/// Gives `results` (fresh tensors without history) a common history.
void attach_history(std::shared_ptr<ranks::Ranks> ranks, std::vector<at::Tensor>& results, History history);

/// Autograd history of a call's results, or of a global mean: gradients of the results in, of what is behind them out.
class ResultNode : public torch::autograd::Node {
 public:
  ResultNode(std::shared_ptr<ranks::Ranks> ranks, History history);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  void release_variables() override { history_.gradients = nullptr; }
  [[nodiscard]] std::string name() const override { return "autopar::ResultNode"; }

  [[nodiscard]] bool is_common(std::size_t result) const { return history_.common[result]; }
  /// Whether the node accumulates gradients of one of the model's parameters.
  [[nodiscard]] bool has_parameter(const torch::autograd::Node* accumulator) const;
  /// Closed, it runs nothing and gives nothing.
  void set_closed(bool closed) { closed_ = closed; }

 private:
  [[nodiscard]] bool by_region() const { return history_.region != nullptr && history_.region->common_ends() > 0; }
  [[nodiscard]] GradientRequest request() const;
  [[nodiscard]] torch::autograd::variable_list gradients_behind(torch::autograd::variable_list found);
  void leave_parameters();

  std::shared_ptr<ranks::Ranks> ranks_;
  History history_;              ///< without the arguments
  std::vector<bool> in_region_;  ///< by argument: its gradient goes into the region, else along an edge of its own
  std::vector<bool> needed_;     ///< by argument: it requires a gradient
  std::size_t front_ = 0;        ///< edges before those of parameters
  bool closed_ = false;
  bool completed_ = false;
};

}  // namespace autopar::results
