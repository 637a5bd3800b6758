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

namespace autopar::replay {

/// Batch sizes for the integers of the graph: IntegerRole::kSize takes `local`, kArithmetic takes `global`.
struct BatchSizes {
  std::int64_t local = 0;   ///< samples that these operators see
  std::int64_t global = 0;  ///< samples of the whole step, over micro-batches and ranks

  friend auto operator<=>(const BatchSizes&, const BatchSizes&) = default;
};

/// Tensors by ValueId::index(); undefined where there is none (yet, or any more).
using Environment = std::vector<at::Tensor>;

/// One operator call about to happen. A handler may change the stack, call the original, change the results, or push
/// other results. On return the stack holds the operator's results.
struct ReplayCall {
  OpId id;
  const OpNode& node;
  BatchSizes sizes;
  torch::jit::Stack& stack;  ///< the arguments, one per schema argument
  Environment& environment;

  void call_original() { node.op.callBoxed(&stack); }
};

using OpHandler = std::function<void(ReplayCall&)>;

/// Sees the operators of a run, one after the other: for timelines.
class OpObserver {
 public:
  OpObserver() = default;
  OpObserver(const OpObserver&) = delete;
  OpObserver& operator=(const OpObserver&) = delete;
  virtual ~OpObserver() = default;

  /// Called before the operator runs, in its grad mode.
  virtual void begin(OpId op) = 0;
  /// Called after it ran. @param environment  with its results
  virtual void end(OpId op, const OpNode& node, const Environment& environment) = 0;
};

struct ReplayStep;
struct Arguments;

/// Runs a list of a graph's operators (a stage or a whole model) exactly like the traced program: same operators, same
/// grad mode. Autograd records as usual. One thread at a time; the graph must outlive the replayer.
class Replayer {
 public:
  /// @param ops     operators to run. The order makes every value before it is read, and keeps the program's order of
  ///                reads and writes of memory. Ascending order is valid
  /// @param keep    values that a run keeps in the environment. All other computed values and arguments are dropped
  ///                after their last use. Parameters, buffers and constants are never dropped
  /// @param device  replaces every device argument; constants are copied to it (0-dim ones stay)
  Replayer(const OpGraph& graph, std::vector<OpId> ops, const std::vector<ValueId>& keep, c10::Device device);
  ~Replayer();
  Replayer(Replayer&&) noexcept;
  Replayer& operator=(Replayer&&) noexcept;

  /// Calls `handler` instead of an operator of the list. @throws InvalidArgument if the op is not in it
  void handle(OpId op, OpHandler handler);

  /// Values that the ops read but do not compute: parameters, buffers, arguments, results of other stages. Without
  /// constants.
  [[nodiscard]] const std::vector<ValueId>& required() const { return required_; }

  /// An environment with the constants in place; the caller adds the required values. O(values).
  [[nodiscard]] Environment environment() const;

  /// @pre the required values are defined. Integers are resolved once for each distinct `sizes`.
  /// @throws OperatorError naming the operator if libtorch throws; other exceptions pass through. The environment is
  /// then incomplete
  void run(Environment& environment, BatchSizes sizes) { run(environment, sizes, 0, steps()); }
  /// Runs only operators [first, last) of the order. @param observer  sees them; null: nobody does
  void run(Environment& environment, BatchSizes sizes, std::size_t first, std::size_t last,
           OpObserver* observer = nullptr);

 private:
  struct Resolved;
  const Resolved& resolve(BatchSizes sizes);
  [[nodiscard]] std::size_t steps() const;
  void run_step(const ReplayStep& step, const Arguments& arguments, BatchSizes sizes, Environment& environment);

  const OpGraph* graph_;
  std::vector<ReplayStep> steps_;
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

}  // namespace autopar::replay
