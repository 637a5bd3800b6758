#pragma once

#include <cstddef>

#include "kernels/kernel_source.hpp"

namespace autopar::kernels {

/// Batch norms of one launch, as an argument of the kernel: launches take at most 4 KiB.
struct StatisticsTable {
  static constexpr std::size_t kMost = 64;
  /// What is true of a norm.
  enum Kind : int {
    kSingle = 1,         ///< its statistics are f32, else f64
    kUnbiased = 2,       ///< so is its variance
    kBySample = 4,       ///< an instance norm: `count` is of samples, whose statistics are averaged
    kRunningSingle = 8,  ///< its running statistics are f32, else f64
  };
  const void *mean[kMost], *variance[kMost];  ///< per channel; null: nothing was seen
  void *running_mean[kMost], *running_variance[kMost];
  double count[kMost];  ///< of elements, by channel
  double momentum[kMost];
  int begin[kMost];  ///< place of its first channel among those of all norms
  int channels[kMost];
  int kind[kMost];
  int norms;
};

/// A row of blocks has a norm.
struct StatisticsShape {
  static constexpr unsigned kBlocks = 8, kThreads = 256;
};
static_assert(StatisticsTable::kMost == 64 && sizeof(StatisticsTable) + 3 * sizeof(void*) <= 4096,
              "as in the text, and as launches take it");

inline constexpr char kRunningStatisticsText[] = R"(
constexpr int kSingle = 1, kUnbiased = 2, kBySample = 4, kRunningSingle = 8;
struct Norms {
  const void *mean[64], *variance[64]; void *running_mean[64], *running_variance[64];
  double count[64], momentum[64]; int begin[64], channels[64], kind[64], norms;
};

__device__ double number_at(const void* from, int i, bool is_single) {
  if (!from) return 0;
  return is_single ? ((const float*)from)[i] : ((const double*)from)[i];
}
// The biased variance that slices saw; of an instance norm the unbiased one.
__device__ double variance_at(const Norms& of, int norm, int c) {
  const double seen = number_at(of.variance[norm], c, of.kind[norm] & kSingle), count = of.count[norm];
  if ((of.kind[norm] & kBySample) || !(of.kind[norm] & kUnbiased)) return seen;
  return count > 1 ? seen * ((count - 1) / count) : 0;
}
__device__ double mean_at(const Norms& of, int norm, int c) {
  return number_at(of.mean[norm], c, of.kind[norm] & kSingle);
}

struct Sums {
  double* sums; int all;
  __device__ void operator()(const Norms& of, int norm, int c) const {
    const int at = of.begin[norm] + c;
    sums[at] = mean_at(of, norm, c) * of.count[norm];
    sums[all + at] = of.count[norm];
  }
};

struct SquaresAround {
  const double* sums; double* squares; int all;
  __device__ void operator()(const Norms& of, int norm, int c) const {
    const int at = of.begin[norm] + c;
    const double apart = mean_at(of, norm, c) - sums[at] / sums[all + at], variance = variance_at(of, norm, c);
    squares[at] = (of.kind[norm] & kBySample ? variance : fma(apart, apart, variance)) * of.count[norm];
  }
};

struct Blend {
  const double *sums, *squares; int all;
  __device__ void operator()(const Norms& of, int norm, int c) const {
    const int at = of.begin[norm] + c;
    const double count = sums[all + at], freedom = of.kind[norm] & kBySample ? count : count - 1;
    blend(of.running_mean[norm], sums[at] / count, of, norm, c);
    blend(of.running_variance[norm], squares[at] / freedom, of, norm, c);
  }
  static __device__ void blend(void* running, double statistic, const Norms& of, int norm, int c) {
    const double momentum = of.momentum[norm], rest = 1 - momentum;
    if (of.kind[norm] & kRunningSingle) {
      float& to = ((float*)running)[c];
      to = fmaf(momentum, statistic, to * (float)rest);
    } else {
      double& to = ((double*)running)[c];
      to = fma(momentum, statistic, to * rest);
    }
  }
};

// Does the work for the channels of a block's norm.
template <class Work> __device__ void of_norms(const Norms& of, const Work& work) {
  const int norm = blockIdx.y, step = gridDim.x * blockDim.x;
  for (int c = blockIdx.x * blockDim.x + threadIdx.x; c < of.channels[norm]; c += step) work(of, norm, c);
}
extern "C" __global__ void statistics_sums(const __grid_constant__ Norms norms, double* sums, int all) {
  of_norms(norms, Sums{sums, all});
}
extern "C" __global__ void statistics_squares(const __grid_constant__ Norms norms, const double* sums, double* squares,
                                              int all) {
  of_norms(norms, SquaresAround{sums, squares, all});
}
extern "C" __global__ void statistics_blend(const __grid_constant__ Norms norms, const double* sums,
                                            const double* squares, int all) {
  of_norms(norms, Blend{sums, squares, all});
}
)";

/// CUDA C that pools statistics of batch norms over ranks, in double precision, and blends them into running
/// statistics. `all` is the number of channels of all norms.
/// - `statistics_sums(StatisticsTable, sums, all)`: means times counts, and counts, as [2, all].
/// - `statistics_squares(StatisticsTable, sums, squares, all)`: from sums over all ranks the squares around their
/// means.
/// - `statistics_blend(StatisticsTable, sums, squares, all)`: from sums over all ranks of both, running = (1 -
/// momentum)
///   running + momentum statistic.
/// @source Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979
inline constexpr KernelSource kRunningStatisticsKernels{"running_statistics.cu", kRunningStatisticsText};

}  // namespace autopar::kernels
