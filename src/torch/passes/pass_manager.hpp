#pragma once

#include <optional>
#include <span>
#include <string>

#include <autopar/runtime/log.hpp>

#include "torch/passes/pass.hpp"

namespace autopar::passes {

/// The program at one place of the list.
struct ProgramAfter {
  OpGraph graph;
  std::string pass;
  bool has_run = false;  ///< else the condition was not met, and the program is as the pass before left it

  /// "the program after fold_linear", or in its place.
  [[nodiscard]] std::string title() const;
};

struct CompiledProgram {
  OpGraph graph;
  std::optional<ProgramAfter> shown;  ///< what was asked for
};

/// Runs passes in their order: those whose condition is met. What each makes is verified (ir/well_formed.hpp).
class PassManager {
 public:
  /// @pre the passes outlive it
  explicit PassManager(std::span<const Pass> passes) : passes_(passes) {}

  /// From now on `run` also gives the program after this pass.
  /// @throws InvalidArgument if there is no such pass, with the nearest name
  void show_after(const std::string& pass);

  /// @param log  at level debug, says of each pass what it did
  /// @throws std::logic_error naming the pass whose program is not well-formed
  /// @cost the passes', and O(graph) for each
  [[nodiscard]] CompiledProgram run(OpGraph graph, const PassTarget& target, const Logger& log) const;

 private:
  std::span<const Pass> passes_;
  std::string shown_;
};

}  // namespace autopar::passes
