#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar::kernels {

/// Launch shape of the embedding backward. Blocks go across the columns in x and down the parts of the indices in y.
struct TableGradientShape {
  static constexpr unsigned kPacks = 32;  ///< packs of a block: threads in x
  static constexpr unsigned kParts = 4;   ///< parts of a block: threads in y
  static constexpr int kOfPart = 64;      ///< indices of a part
};
static_assert(TableGradientShape::kPacks == 32 && TableGradientShape::kParts == 4 && TableGradientShape::kOfPart == 64,
              "as in the text");

inline constexpr char kTableGradientText[] = R"(
constexpr int kPacks = 32, kParts = 4, kOfPart = 64, kFlight = 8;

// Columns of one thread's numbers.
template <int V> struct Columns {
  float* table;
  float* partial;
  int columns, first;
  __device__ float* of_entry(int entry) const { return table + (long long)entry * columns + first; }
  // Of an entry that begins before the part, or with it, the first row; else the second.
  __device__ float* of_part(int part, bool begins_within) const {
    return partial + (2ll * part + (begins_within ? 1 : 0)) * columns + first;
  }
};

template <class T>
__device__ void add_rows(const Words<T>* rows, const int* indices, const long long* order, float* table, float* partial,
                         int count, int packs, int padding) {
  constexpr int V = 16 / sizeof(T);
  const int pack = blockIdx.x * kPacks + threadIdx.x, part = blockIdx.y * kParts + threadIdx.y;
  const int begin = part * kOfPart, end = begin + kOfPart < count ? begin + kOfPart : count;
  if (pack >= packs || begin >= count) return;
  const Columns<V> to = {table, partial, packs * V, pack * V};
  float sum[V] = {};
  int first = begin;  // index of an entry
  for (int at = begin; at < end; at += kFlight) {
    Words<T> taken[kFlight];
#pragma unroll
    for (int i = 0; i < kFlight; ++i)
      if (at + i < end) taken[i] = rows[order[at + i] * packs + pack];
#pragma unroll
    for (int i = 0; i < kFlight; ++i) {
      const int now = at + i;
      if (now >= end) break;
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += taken[i][v];
      const int entry = indices[now];
      if (now + 1 < end && indices[now + 1] == entry) continue;
      const bool begins_before = first == begin && begin > 0 && indices[begin - 1] == entry;
      const bool goes_on = now + 1 == end && end < count && indices[end] == entry;
      if (begins_before || goes_on) {
        write_sums(sum, to.of_part(part, first > begin));
      } else if (entry != padding) {
        write_sums(sum, to.of_entry(entry));
      }
      for (int v = 0; v < V; ++v) sum[v] = 0;
      first = now + 1;
    }
  }
}

// A thread has four columns of the entry that begins in its part and goes on behind it.
extern "C" __global__ void add_parts_f32(const int* indices, float* table, float* partial, int count, int packs,
                                         int padding) {
  const int pack = blockIdx.x * kPacks + threadIdx.x, part = blockIdx.y * kParts + threadIdx.y;
  const int begin = part * kOfPart, end = begin + kOfPart;
  if (pack >= packs || end >= count) return;
  const int entry = indices[end];
  if (indices[end - 1] != entry || entry == padding) return;
  const bool begins_within = indices[begin] != entry;
  if (!begins_within && begin > 0 && indices[begin - 1] == entry) return;
  int last = end, beyond = count;  // the entry's last index is in [last, beyond)
  while (beyond - last > 1) {
    const int middle = last + (beyond - last) / 2;
    if (indices[middle] == entry) last = middle;
    else beyond = middle;
  }
  const Columns<4> to = {table, partial, packs * 4, pack * 4};
  float sum[4];
  for (int v = 0; v < 4; ++v) sum[v] = to.of_part(part, begins_within)[v];
  const int parts = last / kOfPart;
#pragma unroll 8
  for (int other = part + 1; other <= parts; ++other) {
    const Words<float> more = *(const Words<float>*)to.of_part(other, false);
    for (int v = 0; v < 4; ++v) sum[v] += more[v];
  }
  write_sums(sum, to.of_entry(entry));
}

#define KERNEL(T, name)                                                                                              \
  extern "C" __global__ void __launch_bounds__(kPacks * kParts)                                                        \
      add_rows_##name(const Words<T>* rows, const int* indices, const long long* order, float* table, float* partial, \
                      int count, int packs, int padding) {                                                           \
    add_rows(rows, indices, order, table, partial, count, packs, padding);                                           \
  }
KERNEL(float, f32)
KERNEL(Half, f16)
KERNEL(Brain, bf16)
)";

/// CUDA C of embedding backward: the gradient of a table [entries, columns]. It is computed from the gradient of the
/// looked-up rows [count, columns], of type T, without gaps. `indices` are sorted; `order` gives the row of each. Each
/// part of the indices is summed in order, in single precision. An entry whose indices all lie in the part goes to the
/// table. An entry with more indices before or behind the part goes to partial [parts, 2, columns].
/// - `add_rows_T`: writes the table's entries that lie within one part, and partial.
/// - `add_parts_f32`: writes entries that lie in several parts.
///
/// All other entries of the table, and entry `padding`, stay as they are.
inline constexpr KernelSource kTableGradientKernels{"table_gradient.cu", kTableGradientText};

}  // namespace autopar::kernels
