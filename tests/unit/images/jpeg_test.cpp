#include "images/jpeg.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "catch_shim.hpp"
#include "reference.hpp"

namespace jpeg_test {

using images::ImageError;
using images::Jpeg;
using images::Pixels;
using images::Region;
using images::Size;

Pixels decoded(const std::vector<std::byte>& file, Region region, int shrink = 1) {
  Jpeg jpeg(file);
  Pixels pixels;
  jpeg.decode(region, shrink, pixels);
  return pixels;
}

Pixels whole(const std::vector<std::byte>& file, int shrink = 1) {
  const auto size = Jpeg(file).size_shrunk_by(shrink);
  return decoded(file, {0, 0, size.width, size.height}, shrink);
}

std::string reason(const std::vector<std::byte>& file) {
  try {
    whole(file);
    return "";
  } catch (const ImageError& error) {
    return error.what();
  }
}

bool same_in(const Region& region, const Pixels& a, const Pixels& b) {
  for (int y = region.y; y < region.y + region.height; ++y) {
    if (!std::equal(a.at(region.x, y), a.at(region.x, y) + 3 * region.width, b.at(region.x, y))) return false;
  }
  return true;
}

TEST_CASE("Jpeg: all kinds are decoded to PIL's bytes") {
  for (const auto& image : reference().at("images")) {
    const auto expected = bytes_of(image.at("decoded"));
    if (expected.empty()) continue;
    CAPTURE(image.at("name").get<std::string>());
    const auto file = file_of(image.at("file"));
    CHECK(Jpeg(file).size() == Size{image.at("width"), image.at("height")});
    CHECK(whole(file).bytes == expected);
  }
}

TEST_CASE("Jpeg: a region equals that part of the decoded image") {
  std::mt19937 random(1);
  for (const auto& image : reference().at("images")) {
    CAPTURE(image.at("name").get<std::string>());
    const auto file = file_of(image.at("file"));
    for (const int shrink : {1, 2, 4, 8}) {
      const auto all = whole(file, shrink);
      for (int i = 0; i < 40; ++i) {
        Region region;
        region.width = 1 + static_cast<int>(random() % static_cast<unsigned>(all.region.width));
        region.height = 1 + static_cast<int>(random() % static_cast<unsigned>(all.region.height));
        region.x = static_cast<int>(random() % static_cast<unsigned>(all.region.width - region.width + 1));
        region.y = static_cast<int>(random() % static_cast<unsigned>(all.region.height - region.height + 1));
        CAPTURE(shrink, region.x, region.y, region.width, region.height);
        const auto part = decoded(file, region, shrink);
        REQUIRE(same_in(region, part, all));
      }
    }
  }
}

TEST_CASE("Jpeg: other files are refused with the reason") {
  const auto file = file_of(reference().at("images").at(0).at("file"));
  CHECK(reason(file).empty());
  CHECK(reason({}) == "the file is empty");
  CHECK(reason({std::byte{0x89}, std::byte{'P'}, std::byte{'N'}, std::byte{'G'}}) == "the file is no JPEG");
  CHECK_FALSE(reason({file.begin(), file.begin() + 2}).empty());
  CHECK(reason({file.begin(), file.begin() + static_cast<std::ptrdiff_t>(file.size() / 2)}) == "the file is truncated");
  auto bomb = file;  // sizes in the header of the frame
  for (std::size_t i = 0; i + 8 < bomb.size(); ++i) {
    if (bomb[i] == std::byte{0xFF} && bomb[i + 1] == std::byte{0xC0})
      std::fill_n(bomb.begin() + static_cast<std::ptrdiff_t>(i) + 5, 4, std::byte{0xFE});
  }
  CHECK_THAT(reason(bomb), Catch::Matchers::Contains("65278 x 65278 pixels are more than"));
}

TEST_CASE("Jpeg: damaged files give pixels or a reason") {
  std::mt19937 random(1);
  for (const auto& image : reference().at("images")) {
    const auto file = file_of(image.at("file"));
    for (int i = 0; i < 60; ++i) {
      auto damaged = file;
      for (int k = 0; k < 4; ++k) damaged[random() % damaged.size()] = static_cast<std::byte>(random());
      try {
        Jpeg jpeg(damaged);
        const auto size = jpeg.size();
        if (size.width > 1000 || size.height > 1000) continue;
        Pixels pixels;
        jpeg.decode({0, 0, size.width, size.height}, 1, pixels);
        CHECK(pixels.bytes.size() == 3U * static_cast<unsigned>(size.width * size.height));
      } catch (const ImageError& error) {
        CHECK(std::string(error.what()) != "");
      }
    }
  }
}

TEST_CASE("encode_jpeg: round trip is nearly lossless") {
  const Size size{20, 14};
  std::vector<std::uint8_t> bytes;
  for (int i = 0; i < size.width * size.height * 3; ++i) bytes.push_back(static_cast<std::uint8_t>(i / 6));
  const auto back = whole(images::encode_jpeg(bytes.data(), size, 3, 100));
  REQUIRE(back.bytes.size() == bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) CHECK(std::abs(int{back.bytes[i]} - int{bytes[i]}) <= 6);
}

}  // namespace jpeg_test
