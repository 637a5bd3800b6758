#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

namespace images {

/// An image that cannot be read; the text is the reason.
struct ImageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Size {
  int width = 0, height = 0;
  friend bool operator==(const Size&, const Size&) = default;
};

/// Pixels [x, x + width) x [y, y + height).
struct Region {
  int x = 0, y = 0, width = 0, height = 0;
  friend bool operator==(const Region&, const Region&) = default;
};

/// Red, green and blue bytes of a region of an image, row after row.
struct Pixels {
  Region region;
  std::vector<std::uint8_t> bytes;

  /// Pixel (x, y) of the image, which the region has.
  [[nodiscard]] const std::uint8_t* at(int x, int y) const {
    return bytes.data() + 3 * (static_cast<std::ptrdiff_t>(y - region.y) * region.width + (x - region.x));
  }
};

/// A JPEG in memory: baseline or progressive; colour, grey, or CMYK as Adobe writes it. What EXIF says is ignored.
class Jpeg {
 public:
  /// Reads the header. The file must live as long.
  /// @throws ImageError  no JPEG, damaged, or so large that it is likely to be an attack (as PIL: 178,956,970 pixels)
  explicit Jpeg(std::span<const std::byte> file);
  ~Jpeg();
  Jpeg(const Jpeg&) = delete;
  Jpeg& operator=(const Jpeg&) = delete;

  [[nodiscard]] Size size() const;
  /// Of the image shrunk to 1 / `shrink`: 1, 2, 4 or 8.
  [[nodiscard]] Size size_shrunk_by(int shrink) const;

  /// At least this region of the shrunk image, the same bytes as a decoding of all of it has there. Once.
  /// @throws ImageError if the file ends before the region does, or is damaged
  void decode(Region region, int shrink, Pixels& out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A baseline JPEG file of red, green and blue bytes, or of grey ones, and of CMYK as Adobe has it (inverted).
/// @param channels  1, 3 or 4
[[nodiscard]] std::vector<std::byte> encode_jpeg(const std::uint8_t* bytes, Size size, int channels, int quality = 90);

}  // namespace images
