#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "jpeg.hpp"

namespace images {

/// What is made of an image before a network sees it.
struct Transform {
  /// kTraining: a random part of the image, of 8 to 100 % of its area and a shape of 3 : 4 to 4 : 3, as a square; every
  /// second one mirrored (torchvision's RandomResizedCrop and RandomHorizontalFlip). kValidation: the shorter side
  /// becomes `resized`, and of that the square in the middle (Resize, CenterCrop).
  enum class Kind { kTraining, kValidation } kind = Kind::kTraining;
  int size = 224;     ///< sides of the square
  int resized = 256;  ///< at least `size`
};

/// Numbers that are a function of a key alone, so that the same image of the same epoch looks alike whichever rank,
/// and whichever thread, reads it. @source Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators"
class Dice {
 public:
  Dice(std::uint64_t seed, std::uint64_t epoch, std::uint64_t sample);
  /// In [0, 1).
  double unit();
  double between(double least, double most) { return least + (most - least) * unit(); }
  /// In [0, count).
  int below(int count) { return static_cast<int>(unit() * count); }

 private:
  std::uint64_t state_;
};

/// Which part of an image a training sees. At most ten tries at one that fits, then the middle, as torchvision.
[[nodiscard]] Region random_part(Size image, Dice& dice);

/// By how much a JPEG may be shrunk while it is decoded, which is the faster the more, with no less detail than `size`
/// pixels need.
[[nodiscard]] int shrink_for(Region part, int size);

/// Decodes a JPEG file and writes `size` x `size` pixels as red, green and blue numbers of mean 0 and variance 1
/// over ImageNet. Those of kValidation are torchvision's on PIL images, bit by bit; of kTraining, too, while the part
/// is less than twice as large as `size`: a larger one is shrunk by the decoder first.
/// @param out  [size, size, 3]
/// @throws ImageError
void read_image(std::span<const std::byte> file, const Transform& transform, Dice dice, std::span<float> out);

}  // namespace images
