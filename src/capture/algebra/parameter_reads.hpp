#pragma once

#include <map>
#include <optional>
#include <vector>

#include <c10/core/ScalarType.h>

#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/batch_algebra.hpp"

namespace autopar::algebra {

/// Element types in which a program reads a parameter.
struct ParameterReads {
  bool itself = false;                    ///< some operator reads it uncast, or it is a result
  std::vector<c10::ScalarType> copies{};  ///< types of its casts that are made once per call, each type once

  /// The type of the only copy, if the program never reads the parameter itself; else nullopt.
  [[nodiscard]] std::optional<c10::ScalarType> only_copy() const {
    return !itself && copies.size() == 1 ? std::optional(copies.front()) : std::nullopt;
  }
  [[nodiscard]] bool none() const { return !itself && copies.empty(); }
  /// `only_copy()` if it is smaller than the parameter, whose type is `own`; else nullopt.
  [[nodiscard]] std::optional<c10::ScalarType> smaller_copy(c10::ScalarType own) const {
    const auto copy = only_copy();
    return copy && c10::elementSize(*copy) < c10::elementSize(own) ? copy : std::nullopt;
  }
};

/// Reads of parameters, by ValueId; empty for other values. O(edges)
[[nodiscard]] std::vector<ParameterReads> parameter_reads(const OpGraph& graph, const BatchSemantics& plan);

/// By ValueId: parameters that are read whole outside the stages: by ops that run before them, or that update a buffer.
[[nodiscard]] std::vector<bool> read_outside_stages(const OpGraph& graph, const BatchSemantics& plan);

/// By ValueId: parameters that are read where they cannot be gathered on demand, directly or through a view or copy.
/// These reads happen after the compute actions of the stage, or in backward nodes that do not lead to the gradient. Or
/// they happen in backward nodes that autograd wraps in others.
/// @param travelling  values that leave their stages, by channel
[[nodiscard]] std::vector<bool> read_after_computes(const OpGraph& graph, const BatchSemantics& plan,
                                                    const std::vector<std::vector<ValueId>>& travelling);

/// By ValueId, for parameters: the highest ZeRO level at which ranks can hold the parameter in shards (see
/// ParameterProfile).
/// @param travelling  as above
[[nodiscard]] std::vector<int> highest_zero_levels(const OpGraph& graph, const BatchSemantics& plan,
                                                   const std::vector<std::vector<ValueId>>& travelling);

/// By StorageId: the parameter in that storage, or the parameter from which its contents were made. The contents may be
/// a copy that is made once per call, or the result of a move between tensor shards. None for other memory.
[[nodiscard]] std::vector<ValueId> parameters_behind(const OpGraph& graph, const BatchSemantics& plan);

/// By parameter, the last operator that reads it for a slice: directly, through views or as a copy. Parameters without
/// readers are left out. Backwards make gradients in the reverse order.
[[nodiscard]] std::map<ValueId, OpId> last_reads(const OpGraph& graph, const BatchSemantics& plan);

/// Parameters whose gradient is defined when `roots` get gradients, by ValueId.
[[nodiscard]] std::vector<bool> reached_parameters(const OpGraph& graph, const std::vector<ValueId>& roots);

}  // namespace autopar::algebra
