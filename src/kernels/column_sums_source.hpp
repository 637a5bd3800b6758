#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar {

/// How the kernels of column sums are launched.
struct ColumnSumsShape {
  static constexpr unsigned kPacks = 32;                   ///< of a block: threads side by side
  static constexpr unsigned kRows = 8;                     ///< of a block at a time: threads below one another
  static constexpr unsigned kFlight = 8;                   ///< rows that a thread reads before it adds them
  static constexpr unsigned kColumns = 32, kAtATime = 16;  ///< of what adds up: threads are columns x blocks
};
static_assert(ColumnSumsShape::kPacks == 32 && ColumnSumsShape::kRows == 8 && ColumnSumsShape::kFlight == 8 &&
                  ColumnSumsShape::kColumns == 32 && ColumnSumsShape::kAtATime == 16,
              "as in the text");

/// CUDA C of sums over the rows of a matrix of packs. `stride` is that of rows, in packs.
///  `column_sums_T`    a block's rows [blockIdx.y * of_block, ...): partial [blocks, columns], fp32
///  `add_up_columns_W` adds those up in the order of blocks, to what is there if `adds`
extern const KernelSource kColumnSumsKernels;

}  // namespace autopar
