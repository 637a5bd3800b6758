#include "transform.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "resample.hpp"

namespace images {

namespace {

/// A square of pixels, as bytes.
struct Square {
  std::vector<std::uint8_t> bytes;
  bool mirrored = false;
};

std::uint64_t mixed(std::uint64_t bits) {
  bits = (bits ^ (bits >> 30U)) * 0xBF58476D1CE4E5B9U;
  bits = (bits ^ (bits >> 27U)) * 0x94D049BB133111EBU;
  return bits ^ (bits >> 31U);
}

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15U;

Region source_region(const ResampleWeights& x, const ResampleWeights& y) {
  return {x.first_source(), y.first_source(), x.sources_end() - x.first_source(), y.sources_end() - y.first_source()};
}

ResampledSide part_of_side(int begin, int length, int shrink, int outputs) {
  return {double{1} * begin / shrink, double{1} * (begin + length) / shrink, begin / shrink,
          (begin + length + shrink - 1) / shrink, outputs};
}

Square training_square(Jpeg& jpeg, const Transform& transform, Dice& dice) {
  const auto part = random_part(jpeg.size(), dice);
  const bool mirrored = dice.unit() < 0.5;
  const int shrink = shrink_for(part, transform.size);
  const auto x = bilinear_weights(part_of_side(part.x, part.width, shrink, transform.size), 0, transform.size);
  const auto y = bilinear_weights(part_of_side(part.y, part.height, shrink, transform.size), 0, transform.size);
  thread_local Pixels pixels;  // its memory is used again
  jpeg.decode(source_region(x, y), shrink, pixels);
  Square square{{}, mirrored};
  const Size shrunk{part.width / shrink, part.height / shrink};
  resample(pixels, x, y, columns_come_first(shrunk, {transform.size, transform.size}), square.bytes);
  return square;
}

Square validation_square(Jpeg& jpeg, const Transform& transform) {
  const auto size = jpeg.size();
  const auto shorter = std::min(size.width, size.height);
  const auto resized = [&](int side) {
    return static_cast<int>(std::int64_t{transform.resized} * side / shorter);  // cut off, as torchvision does
  };
  const auto middle = [&](int side) {
    return static_cast<int>(std::nearbyint((resized(side) - transform.size) / 2.0));
  };
  const auto weights = [&](int side) {
    return bilinear_weights({0, double{1} * side, 0, side, resized(side)}, middle(side), transform.size);
  };
  const auto x = weights(size.width), y = weights(size.height);
  thread_local Pixels pixels;
  jpeg.decode(source_region(x, y), 1, pixels);
  Square square;
  resample(pixels, x, y, columns_come_first(size, {resized(size.width), resized(size.height)}), square.bytes);
  return square;
}

/// Of each channel, what becomes of a byte.
std::array<std::array<float, 256>, 3> normalised_bytes() {
  constexpr std::array<float, 3> kMean{0.485F, 0.456F, 0.406F}, kDeviation{0.229F, 0.224F, 0.225F};
  std::array<std::array<float, 256>, 3> table{};
  for (std::size_t channel = 0; channel < 3; ++channel) {
    for (std::size_t byte = 0; byte < 256; ++byte)
      table[channel][byte] = (static_cast<float>(byte) / 255.0F - kMean[channel]) / kDeviation[channel];
  }
  return table;
}

void write_normalised(const Square& square, int size, std::span<float> out) {
  static const auto table = normalised_bytes();
  const auto row_bytes = static_cast<std::size_t>(3 * size);
  for (std::size_t row = 0; row < square.bytes.size(); row += row_bytes) {
    for (std::size_t column = 0; column < row_bytes; column += 3) {
      const auto* pixel = square.bytes.data() + row + column;
      float* to = out.data() + row + (square.mirrored ? row_bytes - 3 - column : column);
      to[0] = table[0][pixel[0]];
      to[1] = table[1][pixel[1]];
      to[2] = table[2][pixel[2]];
    }
  }
}

}  // namespace

Dice::Dice(std::uint64_t seed, std::uint64_t epoch, std::uint64_t sample)
    : state_(mixed(mixed(mixed(seed + kGolden) + epoch + kGolden) + sample)) {}

double Dice::unit() { return static_cast<double>(mixed(state_ += kGolden) >> 11U) * 0x1p-53; }

Region random_part(Size image, Dice& dice) {
  constexpr double kLeastArea = 0.08, kLeastRatio = 3.0 / 4, kMostRatio = 4.0 / 3;
  constexpr int kTries = 10;
  const double area = double{1} * image.width * image.height;
  for (int i = 0; i < kTries; ++i) {
    const double wanted = area * dice.between(kLeastArea, 1);
    const double ratio = std::exp(dice.between(std::log(kLeastRatio), std::log(kMostRatio)));
    const int width = static_cast<int>(std::lround(std::sqrt(wanted * ratio)));
    const int height = static_cast<int>(std::lround(std::sqrt(wanted / ratio)));
    if (width < 1 || height < 1 || width > image.width || height > image.height) continue;
    const int y = dice.below(image.height - height + 1), x = dice.below(image.width - width + 1);
    return {x, y, width, height};
  }
  const double ratio = double{1} * image.width / image.height;
  int width = image.width, height = image.height;
  if (ratio < kLeastRatio) height = static_cast<int>(std::lround(width / kLeastRatio));
  if (ratio > kMostRatio) width = static_cast<int>(std::lround(height * kMostRatio));
  return {(image.width - width) / 2, (image.height - height) / 2, width, height};
}

int shrink_for(Region part, int size) {
  const int shorter = std::min(part.width, part.height);
  int shrink = 1;
  while (shrink < 8 && shorter >= 2 * shrink * size) shrink *= 2;
  return shrink;
}

void read_image(std::span<const std::byte> file, const Transform& transform, Dice dice, std::span<float> out) {
  Jpeg jpeg(file);
  const auto square = transform.kind == Transform::Kind::kTraining ? training_square(jpeg, transform, dice)
                                                                   : validation_square(jpeg, transform);
  write_normalised(square, transform.size, out);
}

}  // namespace images
