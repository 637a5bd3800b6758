#pragma once

/// Operators of a user's `TORCH_LIBRARY`, made known to capture and planner: `ap::register_op(ap::OpDef{…})`.
/// docs/operators.md has an example of each interface.

#include <autopar/capture/op_def.hpp>
