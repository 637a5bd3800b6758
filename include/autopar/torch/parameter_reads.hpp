#pragma once

#include <optional>
#include <vector>

#include <c10/core/ScalarType.h>

#include <autopar/torch/batch_algebra.hpp>
#include <autopar/torch/op_graph.hpp>

namespace autopar {

/// In which element types a program reads a parameter.
struct ParameterReads {
  bool itself = false;                     ///< some operator takes it as it is, or it is a result
  std::vector<c10::ScalarType> copies{};   ///< of casts that are made once a call, each type once

  /// The type of the copy in whose place the parameter itself is never needed; none if there is no such copy.
  [[nodiscard]] std::optional<c10::ScalarType> only_copy() const {
    return !itself && copies.size() == 1 ? std::optional(copies.front()) : std::nullopt;
  }
  [[nodiscard]] bool none() const { return !itself && copies.empty(); }
};

/// By ValueId, of parameters; nothing for other values. O(edges)
[[nodiscard]] std::vector<ParameterReads> parameter_reads(const OpGraph& graph, const BatchPlan& plan);

/// By StorageId: where the copies of a parameter lie that are made once a call, the parameter; none for other memory.
[[nodiscard]] std::vector<ValueId> copied_parameters(const OpGraph& graph, const BatchPlan& plan);

}  // namespace autopar
