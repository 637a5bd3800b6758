#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "torch/parameters/parameter_store.hpp"
#include "torch/steps/trace_clock.hpp"

namespace autopar::steps {

/// Times optimizers between the calls of a model, for a timeline. Libtorch's optimizers tell nobody when they step, so
/// this looks at the operators that this thread runs (at::RecordFunction):
/// - autopar's own say when they begin and end;
/// - of others the time spans the operators that write parameters in place, from the first to the last. What precedes
///   the first such operator is not seen, and neither are steps on other threads or through raw pointers.
class OptimizerBars {
 public:
  using Sink = std::function<void(const std::string& name, const TraceMark& begin, const TraceMark& end)>;

  /// @pre what is referred to outlives this
  OptimizerBars(const parameters::ParameterStore& parameters, const TraceClock& clock, Sink sink);
  OptimizerBars(const OptimizerBars&) = delete;
  OptimizerBars& operator=(const OptimizerBars&) = delete;
  ~OptimizerBars();

  /// A call has ended: looks at what this thread does. O(parameters).
  void start();
  /// A call begins: gives the bars, and looks no more.
  void stop();
  /// The same around what autograd's engine runs, which undoes what is registered within it.
  void pause();
  void resume();

 private:
  struct Watch;

  const parameters::ParameterStore& parameters_;
  std::shared_ptr<Watch> watch_;
};

}  // namespace autopar::steps
