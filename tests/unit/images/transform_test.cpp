#include "images/transform.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "catch_shim.hpp"
#include "images/resample.hpp"
#include "reference.hpp"

namespace transform_test {

using namespace images;

std::vector<float> normalised(const std::vector<std::uint8_t>& bytes) {
  const float mean[3] = {0.485F, 0.456F, 0.406F}, deviation[3] = {0.229F, 0.224F, 0.225F};
  std::vector<float> out;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    out.push_back((static_cast<float>(bytes[i]) / 255.0F - mean[i % 3]) / deviation[i % 3]);
  }
  return out;
}

TEST_CASE("Transform: validation images equal torchvision's bytes") {
  for (const auto& image : reference().at("images")) {
    CAPTURE(image.at("name").get<std::string>());
    const Transform transform{Transform::Kind::kValidation, image.at("size"), image.at("resized")};
    std::vector<float> out(static_cast<std::size_t>(3 * transform.size * transform.size));
    read_image(file_of(image.at("file")), transform, Dice(1, 2, 3), out);
    CHECK(out == normalised(bytes_of(image.at("validated"))));
    const std::vector<float> diagonal = image.at("normalised");
    for (std::size_t i = 0; i < diagonal.size(); ++i) {
      const auto side = static_cast<std::size_t>(transform.size), channel = i / side, place = i % side;
      CHECK(out[3 * (place * side + place) + channel] == diagonal[i]);
    }
  }
}

TEST_CASE("Transform: a resized crop equals torchvision's bytes") {
  for (const auto& image : reference().at("images")) {
    CAPTURE(image.at("name").get<std::string>());
    const std::vector<int> part = image.at("part");
    const int size = image.at("size");
    const auto weights = [&](int begin, int length) {
      return bilinear_weights({double(begin), double(begin + length), begin, begin + length, size}, 0, size);
    };
    const auto file = file_of(image.at("file"));
    Jpeg jpeg(file);
    Pixels pixels;
    jpeg.decode({part[0], part[1], part[2], part[3]}, 1, pixels);
    std::vector<std::uint8_t> out;
    resample(pixels, weights(part[0], part[2]), weights(part[1], part[3]),
             columns_come_first({part[2], part[3]}, {size, size}), out);
    CHECK(out == bytes_of(image.at("cropped")));
  }
}

TEST_CASE("random_part: follows RandomResizedCrop and its key") {
  const Size size{500, 375};
  double areas = 0, least = 1, most = 0;
  constexpr int kCount = 2000;
  for (std::uint64_t sample = 0; sample < kCount; ++sample) {
    Dice dice(1, 0, sample);
    const auto part = random_part(size, dice);
    REQUIRE((part.x >= 0 && part.y >= 0 && part.width > 0 && part.height > 0));
    REQUIRE((part.x + part.width <= size.width && part.y + part.height <= size.height));
    const double ratio = double(part.width) / part.height, area = double(part.width) * part.height / (500 * 375);
    REQUIRE((ratio > 0.74 && ratio < 1.35));
    areas += area / kCount;
    least = std::min(least, area);
    most = std::max(most, area);
  }
  CHECK(std::abs(areas - 0.435) < 0.015);  // torchvision's mean: large parts often do not fit, and are drawn again
  CHECK((least < 0.1 && most > 0.85));

  Dice once(1, 2, 3), again(1, 2, 3), other(1, 3, 3);
  const auto part = random_part(size, once);
  CHECK(part == random_part(size, again));
  CHECK(!(part == random_part(size, other)));

  Dice dice(1, 0, 0);
  const auto middle = random_part({1000, 10}, dice);  // no part of it is fit: the middle one
  CHECK(middle == Region{493, 0, 13, 10});
}

TEST_CASE("shrink_for: leaves no fewer pixels than wanted") {
  CHECK(shrink_for({0, 0, 447, 600}, 224) == 1);
  CHECK(shrink_for({0, 0, 448, 600}, 224) == 2);
  CHECK(shrink_for({0, 0, 4000, 896}, 224) == 4);
  CHECK(shrink_for({0, 0, 9000, 9000}, 224) == 8);
}

TEST_CASE("Transform: training crops, DCT-scaled or not, half mirrored") {
  const Size size{400, 300};
  std::vector<std::uint8_t> bytes;
  for (int y = 0; y < size.height; ++y) {
    for (int x = 0; x < size.width; ++x) {
      const auto wave = 127 + 100 * std::sin(x / 40.0) * std::cos(y / 30.0);
      bytes.insert(bytes.end(), {static_cast<std::uint8_t>(wave), static_cast<std::uint8_t>(x / 2),
                                 static_cast<std::uint8_t>(y / 2)});
    }
  }
  const auto file = encode_jpeg(bytes.data(), size, 3, 95);
  const auto read = [&](std::uint64_t sample, int side) {
    std::vector<float> out(static_cast<std::size_t>(3 * side * side));
    read_image(file, {Transform::Kind::kTraining, side, side}, Dice(1, 1, sample), out);
    return out;
  };
  int mirrored = 0;
  for (std::uint64_t sample = 0; sample < 40; ++sample) {
    const auto small = read(sample, 16), large = read(sample, 224);
    // Green rises from left to right.
    if (small[1] > small[3 * 15 + 1]) ++mirrored;
    // A pixel of the small one is the mean of 14 x 14 of the large one, which nothing was shrunk for.
    double worst = 0;
    for (int y = 2; y < 14; ++y) {
      for (int x = 2; x < 14; ++x) {
        double mean = 0;
        for (int i = 0; i < 14 * 14; ++i)
          mean +=
              static_cast<double>(large[static_cast<std::size_t>(3 * ((14 * y + i / 14) * 224 + 14 * x + i % 14))]) /
              (14 * 14);
        worst =
            std::max(worst, std::abs(mean - static_cast<double>(small[static_cast<std::size_t>(3 * (16 * y + x))])));
      }
    }
    CHECK(worst < 0.08);
  }
  CHECK((mirrored > 10 && mirrored < 30));
}

}  // namespace transform_test
