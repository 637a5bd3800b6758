#pragma once

#include <cstdint>
#include <vector>

#include "jpeg.hpp"

namespace images {

/// Where the pixels of one side of a resized image come from: output i of `outputs` is over [begin, end) of the source
/// from begin + i * (end - begin) / outputs on. Sources are read from [first, last) alone.
struct ResampledSide {
  double begin = 0, end = 0;
  int first = 0, last = 0;
  int outputs = 0;
};

/// What outputs [from, from + count) of a side are: sums of sources with weights, in fixed point.
struct ResampleWeights {
  struct Sum {
    int source = 0, count = 0;  ///< the first one, and how many
  };
  std::vector<Sum> sums;
  std::vector<std::int32_t> weights;  ///< `stride` of each sum
  int stride = 0;

  [[nodiscard]] int first_source() const { return sums.front().source; }
  [[nodiscard]] int sources_end() const { return sums.back().source + sums.back().count; }
};

/// A triangle as wide as a source pixel or, where the image shrinks, as what becomes one pixel (PIL's BILINEAR: no
/// aliases), in PIL's fixed point.
[[nodiscard]] ResampleWeights bilinear_weights(const ResampledSide& side, int from, int count);

/// Whether PIL resizes columns before rows, which rounds some bytes otherwise: as of Pillow 12.1 where rows shrink by
/// more than twice as many pixels as columns do; before, never.
[[nodiscard]] inline bool columns_come_first(Size source, Size resized) {
  return source.height > resized.height && source.height - resized.height > 2 * (source.width - resized.width);
}

/// Pixels [count of y, count of x, 3] of the resized image, the same bytes as PIL's. The source has all pixels that the
/// weights name.
void resample(const Pixels& source, const ResampleWeights& x, const ResampleWeights& y, bool columns_first,
              std::vector<std::uint8_t>& out);

}  // namespace images
