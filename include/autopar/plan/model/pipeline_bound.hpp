#pragma once

#include <algorithm>

namespace autopar::detail {

/// What surrounds a stage in a pipeline, in seconds of the smallest slices.
struct StagePath {
  double forward = 0, backward = 0;  ///< of one micro-batch in the stage
  double busy = 0;                   ///< all its compute actions of a step
  double head = 0;                   ///< longest path of forwards to it
  double foot = 0;                   ///< what must follow its last backward
  double below = 0;                  ///< one micro-batch through later stages and back
  double forward_below = 0;          ///< forwards through later stages
};

/// A lower bound on the step of a pipeline with such a stage:
///
/// - It cannot start before the longest path of forwards that leads to it. It must run all its compute actions, and
///   then the foot follows.
/// - A micro-batch that leaves it downwards comes back only after the path below. Until then 1F1B runs at most
///   `later + 1` forwards, and GPipe starts no backward below before the last forward has arrived.
/// @param later    number of stages after it
/// @param regular  no replica has an empty slice: with one there is nothing to wait for
[[nodiscard]] inline double pipeline_bound(const StagePath& stage, int microbatches, int later, bool forwards_first,
                                           bool regular) {
  const double bound = stage.head + stage.busy + stage.foot;
  if (!regular) return bound;
  const int before = forwards_first ? microbatches : std::min(later + 1, microbatches);
  const double forwards = forwards_first ? microbatches : 1 + (microbatches - before);
  const double round = forwards * stage.forward + stage.below + microbatches * stage.backward;
  return std::max(
      {bound, stage.head + round + stage.foot, stage.head + microbatches * stage.forward + stage.forward_below});
}

}  // namespace autopar::detail
