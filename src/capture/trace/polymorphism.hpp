#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include <autopar/capture/op_graph.hpp>

#include "capture/ir/batch_number.hpp"

namespace autopar {

/// A captured program whose integers are those of one batch size (all SizeExpr are constant).
struct SizedGraph {
  std::int64_t batch = 0;
  OpGraph graph;
};

/// The integers a, c with value = a * batch + c at all three points, if there are any. @pre the batches differ
[[nodiscard]] std::optional<SizeExpr> solve_affine(const std::array<std::int64_t, 3>& batches,
                                                   const std::array<std::int64_t, 3>& values);

/// The factors (BatchFactors) of the integer that gives the values at all three points: a * batch + c, or else a
/// product of two such, or half of one, as numbers of pairs of samples are. Empty if there are none. Names no argument.
/// A parabola goes through any three points, seldom one of integers: a capture at a fourth batch size tells.
[[nodiscard]] std::vector<BatchInteger> solve_integer(const std::array<std::int64_t, 3>& batches,
                                                      const std::array<std::int64_t, 3>& values);

/// The factors of the integer, multiple or quotient, `k * n` or `k / n` with n as `solve_integer` has it, that gives
/// the numbers at all three points: bit for bit where k is a natural number or the arithmetic single precision, else
/// within four units in the last place (k is not told apart from its neighbours). Empty if there are none. Names no
/// argument.
[[nodiscard]] std::vector<BatchInteger> solve_number(const std::array<std::int64_t, 3>& batches,
                                                     const std::array<double, 3>& values);

/// Whether `value` is what a solved number gives at the batch size, as exactly as it was solved.
[[nodiscard]] bool agrees(BatchFactors number, std::int64_t batch, double value);

/// Aligns three captures of one program and solves every integer as a function of the batch.
/// @throws CaptureError naming the operator and argument that no such function describes
[[nodiscard]] OpGraph solve_batch(std::array<SizedGraph, 3> captures);

/// @throws CaptureError naming the first operator, `contiguous` apart, or result that one sample does not share with
/// `graph`. @pre capture.batch is 1
void require_same_for_one_sample(const OpGraph& graph, const SizedGraph& capture);

/// @throws CaptureError naming the first place where `graph` at the batch size of `capture` is not `capture`.
void require_instance(const OpGraph& graph, const SizedGraph& capture);

}  // namespace autopar
