#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <autopar/capture/op_graph.hpp>

#include "torch/autograd/deferred_gradients.hpp"
#include "torch/interpret/op_interpreter.hpp"
#include "torch/interpret/stage_parts.hpp"

namespace autopar {

/// A part of a stage that is recomputed: what it takes and what it gives.
struct Segment {
  /// What the second run takes a value for that enters.
  enum class Entry : std::uint8_t {
    kThrough,  ///< the value itself, whose gradient, if it has one, goes on to whatever made it
    kView,     ///< likewise, of a view of much larger memory its elements alone: else the memory would live as long
    kOwn,  ///< a parameter, or a cast of one, where nothing else in the stage reads either: its gradient is made inside
    kCopy,    ///< a copy: a buffer that the call gives a new value
    kUnread,  ///< nothing: running statistics, which operators are given and do not read
  };
  struct Entering {
    ValueId value;
    Entry entry = Entry::kThrough;
  };

  OpRange ops;
  std::vector<Entering> entering;  ///< without constants
  std::vector<ValueId> leaving;    ///< made by it and needed after it
  std::vector<ValueId> made;       ///< all of its results
};

/// Runs the operators of a stage on slices of the batch. Segments that are to be recomputed keep what enters them and
/// nothing else; their backward first runs them a second time, with the same operators on the same values, draws and
/// modes, so with the same results to the bit, and then goes through that run's nodes, which are gone when it ends.
/// Batch statistics and written buffers are those of the first run. Backwards of segments are whole: nothing is
/// deferred.
///
/// A gradient that several operators of a segment add to is summed there first: where more than two are added, the last
/// bit of the sum may differ from that of a run without segments.
/// @source Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016
class SegmentInterpreter {
 public:
  /// @param graph, plan  must outlive the runner, and the runner every backward of its runs
  /// @param keep, splits_backwards, services  see OpInterpreter; casts of parameters, which are made
  /// elsewhere, stay as well
  SegmentInterpreter(const OpGraph& graph, const BatchPlan& plan, const std::vector<StagePart>& parts,
                     const std::vector<ValueId>& keep, c10::Device device, bool splits_backwards = false,
                     StageServices services = {});
  SegmentInterpreter(const SegmentInterpreter&) = delete;
  SegmentInterpreter& operator=(const SegmentInterpreter&) = delete;

  /// An environment with the constants in place.
  [[nodiscard]] Environment environment() const { return ops_.environment(); }

  /// See OpInterpreter::run. Where gradients are disabled, nothing is kept and segments are like the rest.
  /// @param values  the backwards of segments use it too, when no run is under way: it must outlive them
  void run(Environment& values, const SliceContext& slice, std::vector<NormSample>& statistics,
           const std::shared_ptr<DeferredGradients>& deferred = nullptr);

  /// See OpInterpreter::deferrable.
  [[nodiscard]] const std::vector<ValueId>& deferrable() const { return ops_.deferrable(); }
  [[nodiscard]] const std::deque<Segment>& segments() const { return segments_; }  ///< in the order of the run

 private:
  /// Who reads each value, or, of a parameter, it or a cast of it; and whether one of these is needed outside the
  /// stage.
  struct Uses {
    std::vector<std::vector<OpId>> readers;  // by ValueId
    std::vector<bool> leaves;                // likewise
  };
  [[nodiscard]] ValueId what_is_read(ValueId value) const;
  void find_segment(const StagePart& part, OpRange range, const Uses& uses, const std::vector<ValueId>& keep);
  [[nodiscard]] Segment::Entry entry_of(ValueId value, const StagePart& part, const Uses& uses) const;
  void find_small_views(Segment& segment, const std::vector<OpId>& stage) const;
  void run_segment(const Segment& segment, Environment& values, const SliceContext& slice,
                   std::vector<NormSample>& statistics);

  const OpGraph& graph_;
  const BatchPlan& plan_;
  OpInterpreter ops_;
  struct Part {
    OpRange ops;
    const Segment* segment = nullptr;  ///< null = runs once
  };
  std::vector<Part> parts_;
  std::deque<Segment> segments_;
};

}  // namespace autopar
