#pragma once

namespace autopar::parameters {

/// Makes libtorch check operators on tensors that carry a mark (`part_mark.hpp`), for this process, from now on:
/// - On a part (a slice or a shard), the element-wise operators of `part_rules.hpp` are allowed, with tensors of its
///   sizes and with numbers. Their results and written tensors are parts, too. All others throw InvalidArgument with
///   the parameter, this rank's part, and how to work on unsharded parameters.
/// - On a part, or on a parameter with copies on other ranks, random operators throw: each rank would draw different
///   numbers.
/// - `torch::save` of a part throws. Within a `PartAccess` nothing is checked. Further calls do nothing.
void install_part_guard();

}  // namespace autopar::parameters
