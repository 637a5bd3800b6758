#pragma once

#include <autopar/capture/op_graph.hpp>

#include "capture/replay/replay.hpp"

namespace autopar::interpret {

/// Acts before and after some operators of a run: it may replace their arguments, and read or change their results. An
/// interpreter has a list of services. They act in the list's order before an operator, and in reverse order after it.
class OpService {
 public:
  OpService() = default;
  OpService(const OpService&) = delete;
  OpService& operator=(const OpService&) = delete;
  virtual ~OpService() = default;

  /// Whether the service acts at the operator. Called when the interpreter is constructed.
  [[nodiscard]] virtual bool concerns(OpId op) const = 0;
  /// Called before the operator runs. @param call  with its arguments
  virtual void before(replay::ReplayCall& call) { static_cast<void>(call); }
  /// Called after the operator ran. @param call  with its results
  virtual void after(replay::ReplayCall& call) { static_cast<void>(call); }
  /// Called before and after each run: forgets all data of a run.
  virtual void clear() {}
};

}  // namespace autopar::interpret
