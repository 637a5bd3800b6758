#pragma once

#include <autopar/core/placement.hpp>
#include <autopar/core/split.hpp>
#include <autopar/shard/placed.hpp>

namespace autopar {

/// Moves between placements, with their gradients (Shoeybi et al. 2019, section 3: copy is f, reduce is g; Korthikanti
/// et al. 2022, section 4.2: gather with partial gradients and reduce_scatter). Collective over the value's group in
/// the forward and, where this table says so, in the backward. A rank alone: the value itself.
///
///     call                       value               forward          backward
///     copy                       Replicate           nothing          all-reduce
///     reduce                     Partial → Replicate all-reduce       nothing
///     gather                     Shard → Replicate   all-gather       this rank's slice
///     gather(x, partial())       Shard → Replicate   all-gather       reduce-scatter
///     scatter                    Replicate → Shard   nothing          all-gather
///     reduce_scatter             Partial → Shard     reduce-scatter   all-gather
///
/// All throw InvalidArgument for another placement than the table's, naming the call that takes it. A backward with
/// create_graph is refused: their gradients have none.

/// For a computation that differs between the ranks: each rank's gradient is a term of the whole one.
[[nodiscard]] Placed copy(const Placed& x, const Group& group);

[[nodiscard]] Placed reduce(const Placed& x);

/// @param gradient  how the gradient of the result will lie: `replicate()` where all ranks compute the same of it,
///                  `partial()` where each computes something else, whose gradients add up
[[nodiscard]] Placed gather(const Placed& x, Placement gradient = Placement::replicate());

/// @param dim  negative: from the end. @throws InvalidArgument, too, if `split` is of another length
[[nodiscard]] Placed scatter(const Placed& x, const Group& group, int dim, const Split& split);
/// Evenly.
[[nodiscard]] Placed scatter(const Placed& x, const Group& group, int dim);

[[nodiscard]] Placed reduce_scatter(const Placed& x, int dim, const Split& split);
[[nodiscard]] Placed reduce_scatter(const Placed& x, int dim);

}  // namespace autopar
