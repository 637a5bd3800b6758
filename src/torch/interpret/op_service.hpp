#pragma once

#include <autopar/capture/op_graph.hpp>

#include "capture/replay/replay.hpp"

namespace autopar {

/// Takes part in runs around some operators: gives them other arguments, takes or changes their results. An
/// interpreter has a list of services, in whose order they act before an operator, and in the reverse order after it.
class OpService {
 public:
  OpService() = default;
  OpService(const OpService&) = delete;
  OpService& operator=(const OpService&) = delete;
  virtual ~OpService() = default;

  /// Whether it acts at the operator. Asked when the interpreter is made.
  [[nodiscard]] virtual bool concerns(OpId op) const = 0;
  /// Before the operator runs. @param call  with its arguments
  virtual void before(ReplayCall& call) { static_cast<void>(call); }
  /// After it ran. @param call  with its results
  virtual void after(ReplayCall& call) { static_cast<void>(call); }
  /// Before and after each run: forgets what it holds of a run.
  virtual void clear() {}
};

}  // namespace autopar
