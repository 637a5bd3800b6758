#include "kernels/strided_copy_source.hpp"

namespace autopar {

const KernelSource kStridedCopyKernels{"strided_copy.cu", R"(
struct Rows { long long inner, sizes[3], to[3], from[3]; };
extern "C" __global__ void copy_rows(uint4* to, const uint4* from, const Rows rows, unsigned packs) {
  const unsigned inner = rows.inner, second = rows.sizes[2], first = rows.sizes[1];
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += gridDim.x * blockDim.x) {
    const unsigned row = i / inner, at = i - row * inner;
    const unsigned outer = row / second, c = row - outer * second;
    const unsigned a = outer / first, b = outer - a * first;
    to[a * rows.to[0] + b * rows.to[1] + c * rows.to[2] + at] =
        from[a * rows.from[0] + b * rows.from[1] + c * rows.from[2] + at];
  }
}
)"};

}  // namespace autopar
