#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar::kernels {

/// Windows over images, in elements. Also an argument of `kMaxPoolKernels`.
struct PoolWindows {
  int height = 0, width = 0;          ///< of an image
  int out_height = 0, out_width = 0;  ///< of its result
  int kernel_height = 0, kernel_width = 0;
  int stride_height = 0, stride_width = 0;
  int padding_height = 0, padding_width = 0;
};

inline constexpr char kMaxPoolText[] = R"(
struct PoolWindows {
  int height, width, out_height, out_width, kernel_height, kernel_width, stride_height, stride_width, padding_height,
      padding_width;
};
template <class T> struct alignas(16 / sizeof(T)) Positions { unsigned char at[16 / sizeof(T)]; };

template <class T> __device__ void max_pool(const T* x, T* y, unsigned char* positions, int rows, int packs,
                                            const PoolWindows& of) {
  constexpr int V = 16 / sizeof(T);
  const int pack = blockIdx.x * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  for (int row = blockIdx.y; row < rows; row += gridDim.y) {
    const int image = row / of.out_height;
    const int top = (row - image * of.out_height) * of.stride_height - of.padding_height;
    const int first = max(top, 0), last = min(top + of.kernel_height, of.height);
    const Pack<T>* const xs = (const Pack<T>*)x + (long long)image * of.height * of.width * packs + pack;
    for (int column = threadIdx.y; column < of.out_width; column += blockDim.y) {
      const int left = column * of.stride_width - of.padding_width;
      const int begin = max(left, 0), end = min(left + of.kernel_width, of.width);
      float most[V];
      int from[V];
      for (int v = 0; v < V; ++v) {
        most[v] = __int_as_float(0xff800000);
        from[v] = (first - top) * of.kernel_width + begin - left;
      }
      for (int r = first; r < last; ++r) {
        for (int c = begin; c < end; ++c) {
          const Pack<T> taken = xs[((long long)r * of.width + c) * packs];
          const int position = (r - top) * of.kernel_width + c - left;
          for (int v = 0; v < V; ++v) {
            const float each = number(taken.at[v]);
            const bool is_more = each > most[v] || each != each;
            most[v] = is_more ? each : most[v];
            from[v] = is_more ? position : from[v];
          }
        }
      }
      Pack<T> made;
      Positions<T> kept;
      for (int v = 0; v < V; ++v) {
        store(made.at[v], most[v]);
        kept.at[v] = from[v];
      }
      const long long at = ((long long)row * of.out_width + column) * packs + pack;
      ((Pack<T>*)y)[at] = made;
      if (positions) ((Positions<T>*)positions)[at] = kept;
    }
  }
}

template <class T> __device__ void max_pool_gradient(const T* dy, const T* other, const unsigned char* positions, T* dx,
                                                     int rows, int packs, const PoolWindows& of) {
  constexpr int V = 16 / sizeof(T);
  const int pack = blockIdx.x * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  const Pack<T>*const dys = (const Pack<T>*)dy, *const others = (const Pack<T>*)other;
  for (int row = blockIdx.y; row < rows; row += gridDim.y) {
    const int image = row / of.height, down = row - image * of.height + of.padding_height;
    const int first = down < of.kernel_height ? 0 : (down - of.kernel_height) / of.stride_height + 1;
    const int last = min(down / of.stride_height, of.out_height - 1);
    for (int column = threadIdx.y; column < of.width; column += blockDim.y) {
      const int right = column + of.padding_width;
      const int begin = right < of.kernel_width ? 0 : (right - of.kernel_width) / of.stride_width + 1;
      const int end = min(right / of.stride_width, of.out_width - 1);
      float sum[V] = {};
      for (int r = first; r <= last; ++r) {
        for (int c = begin; c <= end; ++c) {
          const long long at = (((long long)image * of.out_height + r) * of.out_width + c) * packs + pack;
          const int position = (down - r * of.stride_height) * of.kernel_width + right - c * of.stride_width;
          const Positions<T> kept = ((const Positions<T>*)positions)[at];
          const Pack<T> given = dys[at], more = others ? others[at] : given;
          for (int v = 0; v < V; ++v) {
            const float each = others ? number(given.at[v]) + number(more.at[v]) : number(given.at[v]);
            sum[v] += kept.at[v] == position ? each : 0.f;
          }
        }
      }
      Pack<T> made;
      for (int v = 0; v < V; ++v) store(made.at[v], sum[v]);
      ((Pack<T>*)dx)[((long long)row * of.width + column) * packs + pack] = made;
    }
  }
}

#define KERNELS(T, name)                                                                                               \
  extern "C" __global__ void max_pool_##name(const T* x, T* y, unsigned char* positions, int rows, int packs,          \
                                             const PoolWindows of) {                                                   \
    max_pool<T>(x, y, positions, rows, packs, of);                                                                     \
  }                                                                                                                    \
  extern "C" __global__ void max_pool_gradient_##name(const T* dy, const T* other, const unsigned char* positions,     \
                                                      T* dx, int rows, int packs, const PoolWindows of) {              \
    max_pool_gradient<T>(dy, other, positions, dx, rows, packs, of);                                                   \
  }
KERNELS(float, f32)
KERNELS(Half, f16)
KERNELS(Brain, bf16)
)";

/// Max-pooling of images [n, height, width, channels], with channels contiguous. Each result has a byte with the
/// position in its window, row by row, of the first maximum, or of the last NaN.
/// - `max_pool_T`: y, and the positions unless their pointer is null.
/// - `max_pool_gradient_T`: dx. Each element reads the windows that contain it, so nothing is added twice and nothing
///   is
///   cleared before. `other` is a second gradient of y, or null.
///
/// Blocks take one row of an image or of its result at a time. Threads have a pack of channels and every n-th column.
/// Sums are in single precision, by rows and columns of the result.
inline constexpr KernelSource kMaxPoolKernels{"max_pool.cu", kMaxPoolText};

}  // namespace autopar::kernels
