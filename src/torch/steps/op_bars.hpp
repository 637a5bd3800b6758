#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/capture/op_graph.hpp>

#include "capture/replay/replay.hpp"
#include "torch/steps/trace_clock.hpp"
#include "torch/steps/trace_record.hpp"

namespace autopar::steps {

/// Times the operators of stages for a timeline: as they run, also a second time in a recomputed segment, and their
/// autograd nodes in the backward. A node's time lasts until the next operator's node begins: the rest of what one
/// operator's gradient takes has nodes of its own. Weight gradients that are deferred have no bars.
class OpBars final : public replay::OpObserver {
 public:
  /// @pre both outlive this, and every backward of what it saw
  OpBars(const TraceClock& clock, TraceRecord& record) : clock_(clock), record_(record) {}

  /// What runs next is of this program. O(operators) the first time.
  /// @param program  keeps the graph
  void watch(const std::shared_ptr<const void>& program, const OpGraph& graph);
  /// A compute action has ended at that time of the host, and with it the last node's.
  void end_action(TraceClock::Time end);

  void begin(OpId op) override;
  void end(OpId op, const OpNode& node, const replay::Environment& environment) override;

 private:
  struct Node {
    std::shared_ptr<const OpLabels> labels;
    OpId op;
    TraceMark begin;
  };
  class NodeHook;
  void begin_node(const std::shared_ptr<const OpLabels>& labels, OpId op);
  void end_node(const TraceMark& now);
  void add(const std::shared_ptr<const OpLabels>& labels, OpId op, const char* part, const TraceMark& begin,
           const TraceMark& end);

  const TraceClock& clock_;
  TraceRecord& record_;
  std::vector<std::pair<std::weak_ptr<const void>, std::shared_ptr<const OpLabels>>> known_;  ///< by program
  std::shared_ptr<const OpLabels> labels_;
  TraceMark begin_;
  std::uint64_t sequence_ = 0;  ///< of the first autograd node that the operator makes
  std::mutex mutex_;            ///< of `node_`: nodes run on autograd's threads
  std::optional<Node> node_;    ///< that runs
};

}  // namespace autopar::steps
