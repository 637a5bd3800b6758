#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace autopar {

/// How a value changes its layout on the tensor axis. In one process all are copies of their operand.
/// @source Shoeybi et al. 2019 (Megatron-LM), section 3: f is kCopy, g is kReduce; Korthikanti et al. 2022, section
/// 4.2: g is kAssemble, its conjugate kReduceScatter
enum class ShardMove : std::uint8_t {
  kCopy,          ///< whole, read by operators that work on slices: its gradient is summed over the shards
  kReduce,        ///< terms of a sum, added up; the gradient is whole
  kGather,        ///< slices, brought together; the gradient is sliced
  kScatter,       ///< this shard's slice of a whole value; the gradient is brought together
  kAssemble,      ///< slices, brought together for operators that work on slices of others: its gradient is summed over
                  ///< the shards, and sliced
  kReduceScatter  ///< terms of a sum, of which each shard gets its slice; the gradient is brought together
};

/// Operators of a captured program, by ShardMove.
inline constexpr std::array<std::string_view, 6> kShardMoves{
    "autopar::copy_to_shards", "autopar::reduce_over_shards", "autopar::gather_shards",
    "autopar::take_shard",     "autopar::assemble_shards",    "autopar::reduce_scatter_over_shards"};

[[nodiscard]] constexpr std::string_view name_of(ShardMove move) { return kShardMoves[static_cast<std::size_t>(move)]; }

/// Nothing for other operators.
[[nodiscard]] constexpr std::optional<ShardMove> shard_move_named(std::string_view name) {
  for (std::size_t i = 0; i < kShardMoves.size(); ++i) {
    if (kShardMoves[i] == name) return static_cast<ShardMove>(i);
  }
  return std::nullopt;
}
[[nodiscard]] constexpr bool is_shard_move(std::string_view name) { return shard_move_named(name).has_value(); }

/// Whether its gradient is a sum over the shards, beside which readers of its result may have their weight gradients
/// made (autograd/summed_gradient.hpp).
[[nodiscard]] constexpr bool sums_gradient(ShardMove move) {
  return move == ShardMove::kCopy || move == ShardMove::kAssemble;
}

}  // namespace autopar
