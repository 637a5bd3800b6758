#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar {

/// How the kernel that joins parts is launched.
struct JoinedPartsShape {
  static constexpr unsigned kPacks = 32;  ///< of a block: threads side by side
  static constexpr unsigned kRows = 8;    ///< of a block at a time: threads below one another
};
static_assert(JoinedPartsShape::kPacks == 32 && JoinedPartsShape::kRows == 8, "as in the text");

/// Matrices whose columns are those of one matrix, and where they lie. In packs of 16 bytes.
struct JoinedParts {
  static constexpr int kMost = 8;
  const void* from[kMost] = {};                                    ///< null: zeros
  long long slab[kMost] = {}, row[kMost] = {}, piece[kMost] = {};  ///< how far they lie apart there
  int first[kMost] = {};                                           ///< column of the whole
  int period[kMost] = {}, pieces[kMost] = {}, inner[kMost] = {};   ///< pieces of so many columns, a period apart
  int count = 0;                                                   ///< parts
  int length = 1;                                                  ///< rows of a slab; the last may have less
};

/// CUDA C that writes a matrix [rows, packs] without gaps from parts that cover its columns, and sums over its rows.
///  `join_parts_T`  blocks take turns at the rows, kRows at a time: to, partial [blocks, columns]
/// `add_up_columns_f32` of column_sums_source.hpp adds the sums up. So that blocks go through memory side by side, and
/// all at once, an H100 moves 2.6 TB/s; with bands of rows for each block, or more rows in flight, less.
extern const KernelSource kJoinedPartsKernels;

}  // namespace autopar
