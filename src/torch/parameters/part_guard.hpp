#pragma once

namespace autopar::parameters {

/// Makes libtorch ask about operators on tensors that carry a mark (`part_mark.hpp`), of this process, from now on:
/// - on a part, a slice or a shard, operators are allowed that `part_rules.hpp` knows to be right place by place, among
///   tensors of its sizes and numbers. What they make or write is a part as well. All else throws InvalidArgument with
///   the parameter, what this rank has of it, and the ways to do it for whole parameters;
/// - on a part, or a parameter of which other ranks have copies, random draws throw: each rank would draw its own;
/// - `torch::save` of a part throws.
/// Within a `PartAccess` nothing is asked. Set once; further calls do nothing.
void install_part_guard();

}  // namespace autopar::parameters
