#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar {

/// How the kernels of a table's gradient are launched: blocks across the columns and down the parts of the indices.
struct TableGradientShape {
  static constexpr unsigned kPacks = 32;  ///< of a block: threads side by side
  static constexpr unsigned kParts = 4;   ///< of a block: threads below one another
  static constexpr int kOfPart = 64;      ///< indices
};
static_assert(TableGradientShape::kPacks == 32 && TableGradientShape::kParts == 4 && TableGradientShape::kOfPart == 64,
              "as in the text");

/// CUDA C of the gradient of a table [entries, columns] from that of what was looked up in it, rows [count, columns] of
/// type T without gaps. `indices` are sorted, and `order` says which row each is of. A part of the indices is summed in
/// their order, whole entries to the table, in single precision; of an entry that others of its indices lie before or
/// behind the part, to partial [parts, 2, columns].
///  `add_rows_T`    what of the table has whole entries in some part, and partial
///  `add_parts_f32`  entries that lie in several parts
/// The rest of the table stays as it is, and so does entry `padding`.
extern const KernelSource kTableGradientKernels;

}  // namespace autopar
