#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar::kernels {

/// Launch shape of the kernel that joins parts.
struct JoinedPartsShape {
  static constexpr unsigned kPacks = 32;  ///< packs of a block: threads in x
  static constexpr unsigned kRows = 8;    ///< rows that a block writes at a time: threads in y
};
static_assert(JoinedPartsShape::kPacks == 32 && JoinedPartsShape::kRows == 8, "as in the text");

/// Matrices that together hold the columns of one matrix, and their layout. Distances are in packs of 16 bytes.
struct JoinedParts {
  static constexpr int kMost = 8;
  const void* from[kMost] = {};                                    ///< null: zeros
  long long slab[kMost] = {}, row[kMost] = {}, piece[kMost] = {};  ///< distances between slabs, rows and pieces in
                                                                   ///< `from`
  int first[kMost] = {};                                           ///< first column in the whole matrix
  int period[kMost] = {}, pieces[kMost] = {}, inner[kMost] = {};   ///< `pieces` pieces of `inner` columns, `period`
                                                                   ///< apart
  int count = 0;                                                   ///< parts
  int length = 1;                                                  ///< rows of a slab; the last may have fewer
};

inline constexpr char kJoinedPartsText[] = R"(
constexpr int kPacks = 32, kRows = 8, kMost = 8;
struct Parts {
  const void* from[kMost];
  long long slab[kMost], row[kMost], piece[kMost];
  int first[kMost], period[kMost], pieces[kMost], inner[kMost];
  int count, length;
};

// What a thread's column is read from, every `step` rows.
template <class T> struct Column {
  const Pack<T>* at = nullptr;  // of the next row; null: zeros
  long long stride = 0, to_next_slab = 0;
  int place = 0, places, length;  // in the slab

  __device__ Column(const Parts& parts, int pack, int first_row, int step) : length(parts.length) {
    const int slabs = step / length, slab = first_row / length;
    places = step - slabs * length;
    for (int p = 0; p < parts.count; ++p) {
      const int column = pack - parts.first[p];
      if (column < 0 || parts.from[p] == nullptr) continue;
      const int piece = column / parts.period[p], inside = column - piece * parts.period[p];
      if (piece >= parts.pieces[p] || inside >= parts.inner[p]) continue;
      place = first_row - slab * length;
      stride = slabs * parts.slab[p] + places * parts.row[p];
      to_next_slab = parts.slab[p] - length * parts.row[p];
      at = static_cast<const Pack<T>*>(parts.from[p]) + slab * parts.slab[p] + place * parts.row[p] +
           piece * parts.piece[p] + inside;
    }
  }
  __device__ void advance() {
    at += stride;
    place += places;
    if (place < length) return;
    place -= length;
    at += to_next_slab;
  }
};

// Past the caches, as nobody reads it again.
template <class T> __device__ Pack<T> read_once(const Pack<T>* from) {
  const uint4 bits = __ldcs(reinterpret_cast<const uint4*>(from));
  Pack<T> pack;
  memcpy(&pack, &bits, sizeof(pack));
  return pack;
}
template <class T> __device__ void write_once(Pack<T>* to, const Pack<T>& pack) {
  uint4 bits;
  memcpy(&bits, &pack, sizeof(pack));
  __stcs(reinterpret_cast<uint4*>(to), bits);
}

template <class T> __device__ void join_parts(const Parts& parts, Pack<T>* to, float* partial, int rows, int packs) {
  constexpr int V = 16 / sizeof(T);
  const int pack = blockIdx.x * kPacks + threadIdx.x, step = gridDim.y * kRows;
  const int first_row = blockIdx.y * kRows + threadIdx.y;
  float sum[V] = {};
  if (pack < packs) {
    Column<T> column(parts, pack, first_row, step);
    for (long long row = first_row; row < rows; row += step) {
      Pack<T> taken = {};
      if (column.at != nullptr) {
        taken = read_once(column.at);
        column.advance();
      }
      write_once(to + row * packs + pack, taken);
      for (int v = 0; v < V; ++v) sum[v] += number(taken.at[v]);
    }
  }
  write_sums_of_block<kRows>(sum, partial, pack, packs);
}

#define KERNEL(T, name)                                                                     \
  extern "C" __global__ void __launch_bounds__(kPacks * kRows, 6)                           \
      name(const Parts parts, Pack<T>* to, float* partial, int rows, int packs) {           \
    join_parts(parts, to, partial, rows, packs);                                            \
  }
KERNEL(float, join_parts_f32)
KERNEL(Half, join_parts_f16)
KERNEL(Brain, join_parts_bf16)
)";

/// CUDA C that writes a matrix [rows, packs] without gaps from parts that cover its columns, and sums over its rows.
/// - `join_parts_T`: blocks take turns at the rows, kRows at a time; writes `to` and partial [blocks, columns].
///
/// `add_up_columns_f32` of column_sums_source.hpp adds up the partial sums. Taking turns lets all blocks sweep through
/// memory side by side: an H100 moves 2.6 TB/s. With a band of rows for each block, or more rows in flight, it moves
/// less.
inline constexpr KernelSource kJoinedPartsKernels{"joined_parts.cu", kJoinedPartsText};

}  // namespace autopar::kernels
