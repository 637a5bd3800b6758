#include "resample.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

// The inner loops again for processors that have AVX2; which, the program sees when it starts.
#if defined(__x86_64__) && defined(__gnu_linux__)
#define IMAGES_VECTORISED __attribute__((target_clones("avx2", "default")))
#else
#define IMAGES_VECTORISED
#endif

namespace images {

namespace {

constexpr int kFractionBits = 32 - 8 - 2;  ///< of a weight: eight bits are the pixel's, two for the sum
constexpr std::int32_t kHalf = 1 << (kFractionBits - 1);

std::uint8_t rounded(std::int32_t sum) { return static_cast<std::uint8_t>(std::clamp(sum >> kFractionBits, 0, 255)); }

/// @param first  the column that `row` begins with
IMAGES_VECTORISED void resample_row(const std::uint8_t* row, int first, const ResampleWeights::Sum* sums, int count,
                                    const std::int32_t* weights, int stride, std::uint8_t* out) {
  for (int i = 0; i < count; ++i, weights += stride, out += 3) {
    const std::uint8_t* pixel = row + 3 * static_cast<std::ptrdiff_t>(sums[i].source - first);
    std::int32_t red = kHalf, green = kHalf, blue = kHalf;
    for (int k = 0; k < sums[i].count; ++k, pixel += 3) {
      red += pixel[0] * weights[k];
      green += pixel[1] * weights[k];
      blue += pixel[2] * weights[k];
    }
    out[0] = rounded(red);
    out[1] = rounded(green);
    out[2] = rounded(blue);
  }
}

IMAGES_VECTORISED void resample_column(const std::uint8_t* first_row, int row_bytes, const std::int32_t* weights,
                                       int count, std::int32_t* sums, std::uint8_t* out) {
  for (int i = 0; i < row_bytes; ++i) sums[i] = kHalf;
  for (int k = 0; k < count; ++k, first_row += row_bytes) {
    for (int i = 0; i < row_bytes; ++i) sums[i] += first_row[i] * weights[k];
  }
  for (int i = 0; i < row_bytes; ++i) out[i] = rounded(sums[i]);
}

}  // namespace

ResampleWeights bilinear_weights(const ResampledSide& side, int from, int count) {
  const double scale = (side.end - side.begin) / side.outputs;
  const double reach = std::max(scale, 1.0), steepness = 1 / reach;
  ResampleWeights made;
  made.stride = 2 * static_cast<int>(std::ceil(reach)) + 1;
  made.weights.resize(static_cast<std::size_t>(made.stride) * static_cast<std::size_t>(count));
  std::vector<double> exact(static_cast<std::size_t>(made.stride));
  for (int i = 0; i < count; ++i) {
    const double centre = side.begin + (from + i + 0.5) * scale;
    const int first = std::max(static_cast<int>(centre - reach + 0.5), side.first);
    const int last = std::min(static_cast<int>(centre + reach + 0.5), side.last);
    double total = 0;
    for (int k = 0; k < last - first; ++k) {
      exact[static_cast<std::size_t>(k)] = std::max(0.0, 1 - std::abs((first + k - centre + 0.5) * steepness));
      total += exact[static_cast<std::size_t>(k)];
    }
    auto* const weights = made.weights.data() + static_cast<std::ptrdiff_t>(made.stride) * i;
    for (int k = 0; k < last - first; ++k)
      weights[k] = static_cast<std::int32_t>(0.5 + exact[static_cast<std::size_t>(k)] / total * (1 << kFractionBits));
    made.sums.push_back({first, last - first});
  }
  return made;
}

namespace {

/// Of a region, the columns that the weights name.
Pixels resampled_rows(const Pixels& source, const ResampleWeights& x) {
  const auto& region = source.region;
  const int columns = static_cast<int>(x.sums.size());
  Pixels out{{0, region.y, columns, region.height}, {}};
  out.bytes.resize(static_cast<std::size_t>(3 * columns) * static_cast<std::size_t>(region.height));
  for (int row = 0; row < region.height; ++row) {
    resample_row(source.at(region.x, region.y + row), region.x, x.sums.data(), columns, x.weights.data(), x.stride,
                 out.bytes.data() + std::ptrdiff_t{3} * columns * row);
  }
  return out;
}

/// Of a region, the rows that the weights name.
Pixels resampled_columns(const Pixels& source, const ResampleWeights& y) {
  const auto& region = source.region;
  const int rows = static_cast<int>(y.sums.size()), row_bytes = 3 * region.width;
  Pixels out{{region.x, 0, region.width, rows}, {}};
  out.bytes.resize(static_cast<std::size_t>(row_bytes) * static_cast<std::size_t>(rows));
  std::vector<std::int32_t> sums(static_cast<std::size_t>(row_bytes));
  for (int row = 0; row < rows; ++row) {
    const auto& sum = y.sums[static_cast<std::size_t>(row)];
    resample_column(source.at(region.x, sum.source), row_bytes,
                    y.weights.data() + static_cast<std::ptrdiff_t>(y.stride) * row, sum.count, sums.data(),
                    out.bytes.data() + static_cast<std::ptrdiff_t>(row_bytes) * row);
  }
  return out;
}

}  // namespace

void resample(const Pixels& source, const ResampleWeights& x, const ResampleWeights& y, bool columns_first,
              std::vector<std::uint8_t>& out) {
  out = columns_first ? resampled_rows(resampled_columns(source, y), x).bytes
                      : resampled_columns(resampled_rows(source, x), y).bytes;
}

}  // namespace images
