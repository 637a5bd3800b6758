#pragma once

#include <map>
#include <optional>
#include <vector>

#include <c10/core/ScalarType.h>

#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/batch_algebra.hpp"

namespace autopar {

/// In which element types a program reads a parameter.
struct ParameterReads {
  bool itself = false;                    ///< some operator takes it as it is, or it is a result
  std::vector<c10::ScalarType> copies{};  ///< of casts that are made once a call, each type once

  /// The type of the copy in whose place the parameter itself is never needed; none if there is no such copy.
  [[nodiscard]] std::optional<c10::ScalarType> only_copy() const {
    return !itself && copies.size() == 1 ? std::optional(copies.front()) : std::nullopt;
  }
  [[nodiscard]] bool none() const { return !itself && copies.empty(); }
  /// Likewise, if it is smaller than the parameter, of type `own`.
  [[nodiscard]] std::optional<c10::ScalarType> smaller_copy(c10::ScalarType own) const {
    const auto copy = only_copy();
    return copy && c10::elementSize(*copy) < c10::elementSize(own) ? copy : std::nullopt;
  }
};

/// By ValueId, of parameters; nothing for other values. O(edges)
[[nodiscard]] std::vector<ParameterReads> parameter_reads(const OpGraph& graph, const BatchPlan& plan);

/// By ValueId: parameters that something outside the stages reads, whole: what runs before them, or updates a buffer.
[[nodiscard]] std::vector<bool> read_outside_stages(const OpGraph& graph, const BatchPlan& plan);

/// By ValueId: parameters whose memory, or a view or a copy of it, is read where no one could ask for it: when the
/// compute actions of its stage are over, or by nodes of a backward that do not lead to its gradient, or that autograd
/// wraps in others.
/// @param travelling  values that leave their stages, by channel
[[nodiscard]] std::vector<bool> read_after_computes(const OpGraph& graph, const BatchPlan& plan,
                                                    const std::vector<std::vector<ValueId>>& travelling);

/// By ValueId, of parameters: the highest ZeRO level at which ranks can hold it in shards (see ParameterProfile).
/// @param travelling  as above
[[nodiscard]] std::vector<int> highest_zero_levels(const OpGraph& graph, const BatchPlan& plan,
                                                   const std::vector<std::vector<ValueId>>& travelling);

/// By StorageId: the parameter that lies there, or of which what lies there was made: a copy that is made once a call,
/// or what tensor shards move it to. None for other memory.
[[nodiscard]] std::vector<ValueId> parameters_behind(const OpGraph& graph, const BatchPlan& plan);

/// By parameter, the last operator that reads it for a slice: directly, through views or as a copy. Parameters that
/// none reads are left out. Backwards make gradients in the reverse order.
[[nodiscard]] std::map<ValueId, OpId> last_reads(const OpGraph& graph, const BatchPlan& plan);

/// Parameters whose gradient is defined when `roots` get gradients, by ValueId.
[[nodiscard]] std::vector<bool> reached_parameters(const OpGraph& graph, const std::vector<ValueId>& roots);

}  // namespace autopar
