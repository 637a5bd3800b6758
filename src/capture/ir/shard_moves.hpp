#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace autopar::ir {

/// Change of a value's layout on the tensor axis. In one process every move copies its operand.
/// @source Shoeybi et al. 2019 (Megatron-LM), section 3: f is kCopy, g is kAllReduce; Korthikanti et al. 2022, section
/// 4.2: g is kAssemble, its conjugate kReduceScatter
enum class ShardMove : std::uint8_t {
  kCopy,          ///< whole value for readers that work on slices: its gradient is summed over the shards
  kAllReduce,     ///< adds up terms of a sum; the gradient is whole
  kAllGather,     ///< gathers slices; the gradient is sliced
  kScatter,       ///< takes this shard's slice of a whole value; the gradient is gathered
  kAssemble,      ///< gathers slices for operators that have slices of other operands; the gradient is summed over the
                  ///< shards and sliced
  kReduceScatter  ///< adds up terms of a sum, of which each shard gets its slice; the gradient is gathered
};

/// Operator names in a captured program, by ShardMove.
inline constexpr std::array<std::string_view, 6> kShardMoves{
    "autopar::copy_to_shards", "autopar::reduce_over_shards", "autopar::gather_shards",
    "autopar::take_shard",     "autopar::assemble_shards",    "autopar::reduce_scatter_over_shards"};

[[nodiscard]] constexpr std::string_view name_of(ShardMove move) { return kShardMoves[static_cast<std::size_t>(move)]; }

/// Nullopt for other operators.
[[nodiscard]] constexpr std::optional<ShardMove> shard_move_named(std::string_view name) {
  for (std::size_t i = 0; i < kShardMoves.size(); ++i) {
    if (kShardMoves[i] == name) return static_cast<ShardMove>(i);
  }
  return std::nullopt;
}
[[nodiscard]] constexpr bool is_shard_move(std::string_view name) { return shard_move_named(name).has_value(); }

/// Whether its gradient is a sum over the shards. Weight gradients of the result's readers may be computed during that
/// sum (autograd/summed_gradient.hpp).
[[nodiscard]] constexpr bool sums_gradient(ShardMove move) {
  return move == ShardMove::kCopy || move == ShardMove::kAssemble;
}

}  // namespace autopar::ir
