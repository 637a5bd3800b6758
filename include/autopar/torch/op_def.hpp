#pragma once

/// Registers the operators of a user's `TORCH_LIBRARY` with capture and planner: `ap::register_op(ap::OpDef{…})`.
/// docs/operators.md has an example of each interface.

#include <autopar/capture/op_def.hpp>
