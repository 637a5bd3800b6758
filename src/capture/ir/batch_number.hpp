#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include <autopar/capture/op_graph.hpp>

namespace autopar::ir {

/// The entries of `OpNode::integers` that make one number: their integers multiply, and the last entry gives the form
/// of the product. Two entries are a number of pairs of samples, like N (N - 1). If the product stays an integer, the
/// last entry's factor may be 0.5, which halves it.
using BatchFactors = std::span<const BatchInteger>;

[[nodiscard]] inline std::int64_t integer_at(BatchFactors factors, std::int64_t batch) {
  std::int64_t product = 1;
  for (const auto& each : factors) product *= each.expr.at(batch);
  const auto& last = factors.back();
  const bool halves = factors.size() > 1 && last.form == NumberForm::kInteger && last.factor == 0.5;
  return halves ? product / 2 : product;
}

/// The argument as a floating point number.
[[nodiscard]] inline double number_at(BatchFactors factors, std::int64_t batch) {
  auto number = factors.back();
  number.expr = {0, integer_at(factors, batch)};
  return number.number_at(batch);
}

/// Calls `visit(BatchFactors)` for each number among a node's arguments, in order.
template <class Visit>
void for_each_number(const OpNode& node, Visit&& visit) {
  const BatchFactors all(node.integers);
  for (std::size_t begin = 0; begin < all.size();) {
    std::size_t end = begin + 1;
    const auto same = [&](const BatchInteger& x) {
      return x.argument == all[begin].argument && x.element == all[begin].element;
    };
    while (end < all.size() && same(all[end])) ++end;
    std::invoke(visit, all.subspan(begin, end - begin));
    begin = end;
  }
}

}  // namespace autopar::ir
