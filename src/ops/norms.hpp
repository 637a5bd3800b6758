#pragma once

#include <autopar/capture/op_def.hpp>

namespace autopar::ops {

/// Saved by a layer norm: its operand and two statistics per row.
[[nodiscard]] SavedBytes saved_by_layer_norm(const OpCall& op);
/// Saved by a batch norm: its operand and two statistics per channel.
[[nodiscard]] SavedBytes saved_by_batch_norm(const OpCall& op);
/// Workspace of a batch norm. On CPUs its backward makes the operand's gradient twice, one after the other.
[[nodiscard]] OpWorkspace workspace_of_batch_norm(const OpCall& op);

}  // namespace autopar::ops
