#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include <autopar/capture/op_graph.hpp>

#include "capture/ir/batch_number.hpp"

namespace autopar::trace {

/// A captured program at one batch size (all SizeExpr are constant).
struct SizedGraph {
  std::int64_t batch = 0;
  OpGraph graph;
};

/// The integers a, c with value = a * batch + c at all three points; nullopt if there are none. @pre the batches differ
[[nodiscard]] std::optional<SizeExpr> solve_affine(const std::array<std::int64_t, 3>& batches,
                                                   const std::array<std::int64_t, 3>& values);

/// The factors (BatchFactors) of an integer function through all three points. It is a * batch + c, else a product of
/// two of these, else half of that product. The last two occur as numbers of pairs of samples. Empty if there are none.
/// Leaves the argument unset. A parabola goes through any three points, but seldom one with integer factors. A capture
/// at a fourth batch size verifies it.
[[nodiscard]] std::vector<BatchInteger> solve_integer(const std::array<std::int64_t, 3>& batches,
                                                      const std::array<std::int64_t, 3>& values);

/// The factors of a number function through all three points. It is n, `k * n` or `k / n`, with n as `solve_integer`
/// finds it. The result is exact if k is a natural number or the arithmetic is in single precision. Else it is within
/// four units in the last place, since k cannot be told from its neighbours. Empty if there are none. Leaves the
/// argument unset.
[[nodiscard]] std::vector<BatchInteger> solve_number(const std::array<std::int64_t, 3>& batches,
                                                     const std::array<double, 3>& values);

/// Whether a solved number gives `value` at the batch size, with the accuracy at which it was solved.
[[nodiscard]] bool agrees(ir::BatchFactors number, std::int64_t batch, double value);

/// Aligns three captures of one program and solves every integer as a function of the batch.
/// @throws CaptureError naming the operator and argument that is no such function of the batch
[[nodiscard]] OpGraph solve_batch(std::array<SizedGraph, 3> captures);

/// @throws CaptureError naming the first operator or result that differs from `graph` with one sample, `contiguous`
/// excepted. @pre capture.batch is 1
void require_same_for_one_sample(const OpGraph& graph, const SizedGraph& capture);

/// @throws CaptureError naming the first place where `graph`, at the batch size of `capture`, differs from `capture`.
void require_instance(const OpGraph& graph, const SizedGraph& capture);

}  // namespace autopar::trace
