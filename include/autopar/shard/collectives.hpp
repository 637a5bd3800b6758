#pragma once

#include <autopar/core/placement.hpp>
#include <autopar/core/split.hpp>
#include <autopar/shard/placed.hpp>

namespace autopar {

/// Conversions between placements, with gradients. Collective over the value's group in the forward and, where this
/// table says so, in the backward. In a group of one rank they return the value.
///
///     call                       value               forward          backward
///     copy                       Replicate           nothing          all-reduce
///     reduce                     Partial → Replicate all-reduce       nothing
///     gather                     Shard → Replicate   all-gather       this rank's slice
///     gather(x, partial())       Shard → Replicate   all-gather       reduce-scatter
///     scatter                    Replicate → Shard   nothing          all-gather
///     reduce_scatter             Partial → Shard     reduce-scatter   all-gather
///
/// A backward with create_graph is refused: the gradients are not differentiable.
/// @throws InvalidArgument for another placement than in the table, with the call that accepts it
/// @source Shoeybi et al. 2019, section 3 (copy is f, reduce is g); Korthikanti et al. 2022, section 4.2 (gather with
/// partial gradients, reduce_scatter)

/// Before a computation that differs between ranks: each rank's gradient is an addend of the whole gradient.
[[nodiscard]] Placed copy(const Placed& x, const Group& group);

[[nodiscard]] Placed reduce(const Placed& x);

/// @param gradient  the placement of the result's gradient: `replicate()` if all ranks compute the same from the
/// result. `partial()` if each computes something else; the gradients are then added.
[[nodiscard]] Placed gather(const Placed& x, Placement gradient = Placement::replicate());

/// @param dim  negative: from the end
/// @throws InvalidArgument also if `split` has another total length
[[nodiscard]] Placed scatter(const Placed& x, const Group& group, int dim, const Split& split);
/// Into even slices.
[[nodiscard]] Placed scatter(const Placed& x, const Group& group, int dim);

[[nodiscard]] Placed reduce_scatter(const Placed& x, int dim, const Split& split);
[[nodiscard]] Placed reduce_scatter(const Placed& x, int dim);

}  // namespace autopar
