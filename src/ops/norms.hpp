#pragma once

#include <autopar/capture/op_def.hpp>

namespace autopar::ops {

/// Of a layer norm: its operand and two statistics a row.
[[nodiscard]] SavedBytes saved_by_layer_norm(const OpCall& op);
/// Of a batch norm: its operand and two statistics a channel.
[[nodiscard]] SavedBytes saved_by_batch_norm(const OpCall& op);
/// Of a batch norm on CPUs: its operand's gradient twice, one after the other.
[[nodiscard]] OpWorkspace workspace_of_batch_norm(const OpCall& op);

}  // namespace autopar::ops
