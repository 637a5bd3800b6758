#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>

#include <autopar/capture/op_graph.hpp>

namespace torch::nn {
class Module;
}

namespace autopar {

/// What integers of the graph are resolved with: IntegerRole::kSize takes `local`, kArithmetic takes `global`.
struct BatchSizes {
  std::int64_t local = 0;   ///< samples that these operators see
  std::int64_t global = 0;  ///< samples of the whole step, over micro-batches and ranks

  friend auto operator<=>(const BatchSizes&, const BatchSizes&) = default;
};

/// Tensors by ValueId::index(); undefined where there is none (yet, or any more).
using Environment = std::vector<at::Tensor>;

/// One operator call about to happen. A handler may change the stack, proceed, change the results, or leave results
/// of its own: on return the stack holds the operator's results.
struct ReplayCall {
  OpId id;
  const OpNode& node;
  BatchSizes sizes;
  torch::jit::Stack& stack;  ///< the arguments, one per schema argument
  Environment& environment;

  void proceed() { node.op.callBoxed(&stack); }
};

using OpHandler = std::function<void(ReplayCall&)>;

namespace detail {
struct ReplayStep;
struct Arguments;
}  // namespace detail

/// Runs a list of operators of a graph, as a stage or a whole model, exactly as the traced program would: same
/// operators, same grad mode. Autograd records as usual. One thread at a time; the graph must outlive the replayer.
class Replayer {
 public:
  /// @param ops     what to run, in an order in which every value is made before it is read and memory is written
  ///                before and after the same reads as in program order; ascending is one
  /// @param keep    values that a run leaves in the environment; all other computed values and arguments are dropped
  /// after
  ///                their last use. Parameters, buffers and constants are never dropped
  /// @param device  replaces every device argument; constants are copied to it (0-dim ones stay)
  Replayer(const OpGraph& graph, std::vector<OpId> ops, const std::vector<ValueId>& keep, c10::Device device);
  ~Replayer();
  Replayer(Replayer&&) noexcept;
  Replayer& operator=(Replayer&&) noexcept;

  /// Replaces the plain call of an operator of the list. @throws InvalidArgument if the op is not in it
  void handle(OpId op, OpHandler handler);

  /// Values that the ops take and do not compute: parameters, buffers, arguments, results of other stages. Not
  /// constants.
  [[nodiscard]] const std::vector<ValueId>& required() const { return required_; }

  /// An environment with the constants in place; the caller adds the required values. O(values).
  [[nodiscard]] Environment environment() const;

  /// @pre the required values are defined. Integers are resolved once for each distinct `sizes`.
  /// @throws OperatorError naming the operator where libtorch throws, else whatever it throws; the environment is then
  /// incomplete
  void run(Environment& environment, BatchSizes sizes) { run(environment, sizes, 0, steps()); }
  /// Operators `first` to `last` of the order alone, the last not included.
  void run(Environment& environment, BatchSizes sizes, std::size_t first, std::size_t last);

 private:
  struct Resolved;
  const Resolved& resolve(BatchSizes sizes);
  [[nodiscard]] std::size_t steps() const;
  void run_step(const detail::ReplayStep& step, const detail::Arguments& arguments, BatchSizes sizes,
                Environment& environment);

  const OpGraph* graph_;
  std::vector<detail::ReplayStep> steps_;
  std::vector<std::size_t> by_op_;  ///< positions in steps_, by OpId ascending
  std::vector<ValueId> required_;
  std::vector<std::pair<ValueId, at::Tensor>> constants_;
  std::map<BatchSizes, std::unique_ptr<Resolved>> resolved_;
  torch::jit::Stack stack_;
};

/// All ops of the graph, in order.
[[nodiscard]] std::vector<OpId> all_ops(const OpGraph& graph);

/// Puts the module's parameters and buffers where the graph names them.
void bind_state(const OpGraph& graph, const torch::nn::Module& module, Environment& environment);

}  // namespace autopar
