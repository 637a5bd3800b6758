#include "images/image_loader.hpp"

#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "catch_shim.hpp"
#include "images/image_folder.hpp"
#include "reference.hpp"
#include "temp_folder.hpp"

namespace image_loader_test {

using namespace images;
namespace fs = std::filesystem;

void write(const fs::path& path, const std::vector<std::byte>& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

/// An image of a shade, by which it is known, that rises from left to right.
std::vector<std::byte> sloped(int shade, int slope) {
  std::vector<std::uint8_t> bytes(12 * 10);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::uint8_t>(shade + slope * static_cast<int>(i % 12));
  return encode_jpeg(bytes.data(), {12, 10}, 1, 100);
}
std::vector<std::byte> flat(int shade) { return sloped(shade, 0); }

/// `count` images in three classes: image i has shade 10 i.
void write_images(const fs::path& root, int count, int slope = 0) {
  for (int i = 0; i < count; ++i) {
    write(root / ("class" + std::to_string(i * 3 / count)) / ("0" + std::to_string(i) + ".jpg"), sloped(10 * i, slope));
  }
}

LoaderOptions options_of(Transform::Kind kind, std::int64_t batch) {
  LoaderOptions options;
  options.batch = batch;
  options.transform = {kind, 4, 5};
  return options;
}

/// All batches of an epoch; images as the shades that they were written with.
struct Epoch {
  std::vector<std::vector<int>> shades, labels;
};

Epoch read(ImageLoader& loader, std::uint64_t epoch, std::int64_t first = 0) {
  Epoch read;
  loader.start(epoch, first);
  while (const auto batch = loader.next()) {
    const auto means = batch->images.mean({2, 3}).select(1, 0).mul(0.229).add(0.485).mul(255).round().to(torch::kInt);
    read.shades.emplace_back(means.data_ptr<int>(), means.data_ptr<int>() + means.numel());
    const auto labels = batch->labels.to(torch::kInt);
    read.labels.emplace_back(labels.data_ptr<int>(), labels.data_ptr<int>() + labels.numel());
  }
  return read;
}

std::vector<int> joined(const std::vector<std::vector<int>>& parts) {
  std::vector<int> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST_CASE("read_image_folder: classes and files in order of their names") {
  const TempFolder temp;
  const auto root = temp / "train";
  write(root / "dog" / "b.JPEG", flat(0));
  write(root / "dog" / "a.jpg", flat(0));
  write(root / "dog" / "more" / "c.jpg", flat(0));
  write(root / "cat" / "z.jpg", flat(0));
  write(root / "cat" / "notes.txt", {});
  write(root / "cat" / ".hidden.jpg", {});
  write(root / "readme.jpg", {});
  const auto folder = read_image_folder(root);
  CHECK(folder.classes == std::vector<std::string>{"cat", "dog"});
  CHECK(folder.files == std::vector<std::string>{"cat/z.jpg", "dog/a.jpg", "dog/b.JPEG", "dog/more/c.jpg"});
  CHECK(folder.labels == std::vector<std::int32_t>{0, 1, 1, 1});
  const auto known = read_image_folder(root, {"bird", "cat", "dog"});
  CHECK(known.labels == std::vector<std::int32_t>{1, 2, 2, 2});
  CHECK(known.fingerprint() != folder.fingerprint());
  CHECK(read_image_folder(root).fingerprint() == folder.fingerprint());
}

TEST_CASE("read_image_folder: missing, empty, other folders are named") {
  const TempFolder temp;
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(read_image_folder(temp / "nowhere"), Contains("nowhere: No such file") && Contains("CLASS"));
  fs::create_directories(temp / "none");
  CHECK_THROWS_WITH(read_image_folder(temp / "none"), Contains("none has no images"));
  write(temp / "some" / "cat" / "a.jpg", flat(0));
  fs::create_directories(temp / "some" / "dog");
  CHECK_THROWS_WITH(read_image_folder(temp / "some"), Contains("some/dog has no .jpg"));
  CHECK(read_image_folder(temp / "some", {"cat", "dog"}).size() == 1);
  CHECK_THROWS_WITH(read_image_folder(temp / "some", {"cat"}), Contains("some/dog is a class that the training"));
}

TEST_CASE("ImageLoader: epochs are permutations and can be resumed") {
  const TempFolder temp;
  write_images(temp / "train", 12);
  ImageLoader loader(read_image_folder(temp / "train"), options_of(Transform::Kind::kTraining, 4));
  const auto first = read(loader, 0), second = read(loader, 1), again = read(loader, 0), rest = read(loader, 0, 1);
  const auto shades = joined(first.shades);
  CHECK(std::set<int>(shades.begin(), shades.end()).size() == 12);
  CHECK(first.shades == again.shades);
  CHECK(joined(first.shades) != joined(second.shades));
  REQUIRE(rest.shades.size() == 2);
  CHECK(rest.shades[0] == first.shades[1]);
  for (std::size_t b = 0; b < 3; ++b) {
    for (std::size_t i = 0; i < 4; ++i) CHECK(first.labels[b][i] == first.shades[b][i] / 10 * 3 / 12);
  }
}

TEST_CASE("ImageLoader: batches independent of ranks, threads, prefetch") {
  const TempFolder temp;
  write_images(temp / "train", 23, 2);
  for (const auto kind : {Transform::Kind::kTraining, Transform::Kind::kValidation}) {
    auto options = options_of(kind, 7);
    ImageLoader one(read_image_folder(temp / "train"), options);
    std::vector<torch::Tensor> expected;
    one.start(3);
    while (const auto batch = one.next()) expected.push_back(batch->images.clone());
    REQUIRE(expected.size() == (kind == Transform::Kind::kTraining ? 3 : 4));
    CHECK(expected.back().size(0) == (kind == Transform::Kind::kTraining ? 7 : 2));
    options.ranks = 3;
    options.workers = 3;
    options.prefetch = 2;
    std::vector<std::vector<torch::Tensor>> parts(expected.size());
    for (options.rank = 0; options.rank < options.ranks; ++options.rank) {
      ImageLoader loader(read_image_folder(temp / "train"), options);
      loader.start(3);
      for (auto& part : parts) part.push_back(loader.next()->images.clone());
      CHECK_FALSE(loader.next().has_value());
    }
    for (std::size_t b = 0; b < expected.size(); ++b) CHECK(torch::cat(parts[b]).equal(expected[b]));
  }
}

TEST_CASE("ImageLoader: an unreadable image is replaced and reported") {
  const TempFolder temp;
  write_images(temp / "val", 6);
  write(temp / "val/class0/01.jpg", {});
  auto cut = flat(50);
  cut.resize(cut.size() / 2);
  write(temp / "val/class2/05.jpg", cut);
  ImageLoader loader(read_image_folder(temp / "val"), options_of(Transform::Kind::kValidation, 6));
  const auto epoch = read(loader, 0);
  CHECK(joined(epoch.shades) == std::vector{0, 20, 20, 30, 40, 0});
  CHECK(joined(epoch.labels) == std::vector{0, 1, 1, 1, 2, 0});
  const auto broken = loader.broken();
  REQUIRE(broken.size() == 2);
  CHECK(broken.at(1) == "the file is empty");
  CHECK(broken.at(5) == "the file is truncated");
  fs::remove(temp / "val/class1/02.jpg");
  CHECK(joined(read(loader, 1).shades) == std::vector{0, 30, 30, 30, 40, 0});
  CHECK_THAT(loader.broken().at(2), Catch::Matchers::Contains("cannot be opened: No such file"));
}

TEST_CASE("ImageLoader: too few readable images are an error") {
  const TempFolder temp;
  for (int i = 0; i < 4; ++i) write(temp / ("train/a/" + std::to_string(i) + ".jpg"), {});
  const auto folder = read_image_folder(temp / "train");
  ImageLoader loader(folder, options_of(Transform::Kind::kTraining, 4));
  loader.start(0);
  CHECK_THROWS_WITH(loader.next(), Catch::Matchers::Contains("all images after it cannot be read"));
  CHECK_THROWS_WITH(ImageLoader(folder, options_of(Transform::Kind::kTraining, 5)),
                    Catch::Matchers::Contains("has 4 images, which are less than a batch of 5"));
}

}  // namespace image_loader_test
