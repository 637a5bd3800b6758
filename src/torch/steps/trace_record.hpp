#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/io/trace_file.hpp>

#include <autopar/capture/op_graph.hpp>
#include "torch/steps/trace_clock.hpp"

namespace autopar::steps {

/// The operators of a program, as a timeline shows them.
struct OpLabels {
  std::vector<std::string> names;    ///< by OpId: "aten::linear"
  std::vector<std::string> modules;  ///< by OpId, see module_paths
};

/// A bar on its way into a file.
struct TraceBar {
  const char* lane = "";
  TraceCategory category = TraceCategory::kForward;
  std::string name{};  ///< kOperator: what follows the operator's name
  TraceMark begin{}, end{};
  std::shared_ptr<const OpLabels> labels{};  ///< kOperator
  OpId op{};                                 ///< likewise
};

/// The newest steps of this rank, within bounds: what does not fit is dropped and counted. The latest step whose
/// operators were timed is kept, however old. `add` may be called from autograd's threads.
class TraceRecord {
 public:
  static constexpr std::size_t kSteps = 16;
  static constexpr std::size_t kBars = 20'000;             ///< of all kept steps but the latest
  static constexpr std::size_t kOperatorsOfStep = 16'000;  ///< of one step; later ones are dropped

  /// What follows is of this step.
  void begin_step(std::int64_t number);
  void add(TraceBar bar);
  /// Waits for the device: from now on times are the host's. O(bars).
  void resolve(const TraceClock& clock);
  /// All bars. @pre resolved
  /// @param seconds  since the origin of the trace
  [[nodiscard]] std::vector<TraceEvent> events(Rank rank,
                                               const std::function<Seconds(TraceClock::Time)>& seconds) const;
  /// "8 earlier steps were dropped; …"; empty if the record is of all steps and all operators.
  [[nodiscard]] std::string note() const;
  [[nodiscard]] bool empty() const;

 private:
  struct Step {
    std::int64_t number = 0;
    std::vector<TraceBar> bars{};
    std::size_t operators = 0;
    std::size_t dropped = 0;   ///< operators
    std::size_t resolved = 0;  ///< the first bars
  };
  void drop_oldest();
  [[nodiscard]] std::size_t bars() const;
  template <class Visit>
  void for_each_step(Visit&& visit) const;

  mutable std::mutex mutex_;
  std::deque<Step> steps_;
  std::optional<Step> of_operators_;  ///< older than `steps_`, none of which has operators
  std::int64_t dropped_ = 0;          ///< steps
};

}  // namespace autopar::steps
