#pragma once

#include <optional>
#include <span>
#include <string>

#include <autopar/runtime/log.hpp>

#include "torch/passes/pass.hpp"

namespace autopar::passes {

/// The program at one position in the list of passes.
struct ProgramAfter {
  OpGraph graph;
  std::string pass;
  bool has_run = false;  ///< false: the condition was not met, and the program is unchanged

  /// "the program after fold_linear", or "the program at the place of fold_linear, which did not run".
  [[nodiscard]] std::string title() const;
};

struct CompiledProgram {
  OpGraph graph;
  std::optional<ProgramAfter> shown;  ///< the program that `show_after` requested
};

/// Runs the passes whose condition is met, in order, and verifies each result (ir/well_formed.hpp).
class PassManager {
 public:
  /// @pre the passes outlive it
  explicit PassManager(std::span<const Pass> passes) : passes_(passes) {}

  /// From now on `run` also returns the program after this pass.
  /// @throws InvalidArgument if there is no such pass, with the nearest name
  void show_after(const std::string& pass);

  /// @param log  at level debug, logs each pass's effect
  /// @throws std::logic_error naming the pass whose program is not well-formed
  /// @cost the cost of the passes, and O(graph) for each
  [[nodiscard]] CompiledProgram run(OpGraph graph, const PassTarget& target, const Logger& log) const;

 private:
  std::span<const Pass> passes_;
  std::string shown_;
};

}  // namespace autopar::passes
