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

namespace autopar::interpret {

/// A part of a stage that is recomputed, with its inputs and outputs.
struct Segment {
  /// How the second run uses a value that enters the segment.
  enum class Entry : std::uint8_t {
    kThrough,  ///< the value itself; its gradient, if any, is passed on to its producer
    kView,     ///< as kThrough, but only the elements of a view are kept, so that its much larger memory can be freed
    kOwn,      ///< a parameter or its cast, read nowhere else in the stage: its gradient is computed inside
    kCopy,     ///< a copy of a buffer that the call overwrites
    kUnread,   ///< nothing: running statistics, which operators take as arguments but do not read
  };
  struct Entering {
    ValueId value;
    Entry entry = Entry::kThrough;
  };

  OpRange ops;
  std::vector<Entering> entering;  ///< without constants
  std::vector<ValueId> leaving;    ///< made by the segment and needed after it
  std::vector<ValueId> made;       ///< all results of its operators
};

/// Runs the operators of a stage on slices of the batch. Segments that are to be recomputed keep only the values that
/// enter them. Their backward first runs them a second time, with the same operators, values, draws and modes. So the
/// results are the same to the bit. It then runs the backward of the second run's autograd graph, which is freed
/// afterwards. Batch statistics and written buffers are taken from the first run. Segments do not split their
/// backwards: nothing is deferred.
///
/// If several operators of a segment contribute to a gradient, it is first summed in the segment. With more than two
/// contributions, the last bit of the sum may differ from a run without segments.
/// @source Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016
class SegmentInterpreter {
 public:
  /// @param graph, plan  must outlive the runner; the runner must outlive every backward of its runs
  /// @param keep, splits_backwards, services  see OpInterpreter. Casts of parameters, which are made elsewhere, are
  /// kept too
  SegmentInterpreter(const OpGraph& graph, const algebra::BatchSemantics& plan, const std::vector<StagePart>& parts,
                     const std::vector<ValueId>& keep, c10::Device device, bool splits_backwards = false,
                     StageServices services = {});
  SegmentInterpreter(const SegmentInterpreter&) = delete;
  SegmentInterpreter& operator=(const SegmentInterpreter&) = delete;

  /// An environment with the constants in place.
  [[nodiscard]] replay::Environment environment() const { return ops_.environment(); }

  /// See OpInterpreter::run. If gradients are disabled, nothing is kept and segments run like other operators.
  /// @param values  must outlive the backwards of segments, which use it when no run is active
  void run(replay::Environment& values, const SliceContext& slice, std::vector<NormSample>& statistics,
           const std::shared_ptr<autograd::DeferredGradients>& deferred = nullptr);

  /// See OpInterpreter::deferrable.
  [[nodiscard]] const std::vector<ValueId>& deferrable() const { return ops_.deferrable(); }
  /// See OpInterpreter::in_fp8.
  [[nodiscard]] const std::vector<OpId>& in_fp8() const { return ops_.in_fp8(); }
  [[nodiscard]] const std::deque<Segment>& segments() const { return segments_; }  ///< in the order of the run

 private:
  /// The readers of each value, and whether the value is needed outside the stage. A parameter's casts count as the
  /// parameter.
  struct Uses {
    std::vector<std::vector<OpId>> readers;  // by ValueId
    std::vector<bool> leaves;                // by ValueId
  };
  [[nodiscard]] ValueId what_is_read(ValueId value) const;
  void find_segment(const StagePart& part, OpRange range, const Uses& uses, const std::vector<ValueId>& keep);
  [[nodiscard]] Segment::Entry entry_of(ValueId value, const StagePart& part, const Uses& uses) const;
  void find_small_views(Segment& segment, const std::vector<OpId>& stage) const;
  void run_segment(const Segment& segment, replay::Environment& values, const SliceContext& slice,
                   std::vector<NormSample>& statistics);

  const OpGraph& graph_;
  const algebra::BatchSemantics& plan_;
  OpInterpreter ops_;
  struct Part {
    OpRange ops;
    const Segment* segment = nullptr;  ///< null = runs once
  };
  std::vector<Part> parts_;
  std::deque<Segment> segments_;
};

}  // namespace autopar::interpret
