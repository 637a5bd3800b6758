// Fashion-MNIST as folders of JPEGs, as ImageNet comes: FOLDER/train/CLASS/NAME.jpg and FOLDER/val/CLASS/NAME.jpg.
//
//   jpeg_folder /tmp/clothes                                                             what examples/imagenet shows
//   jpeg_folder /tmp/large --train 400 --val 0 --width 500 --height 375 --noise 12       as large as ImageNet's are

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include <torch/types.h>
#include <CLI/CLI.hpp>

#include "command_line/command_line.hpp"
#include "data/fashion_mnist.hpp"
#include "images/jpeg.hpp"
#include "images/resample.hpp"

namespace {

struct Settings {
  std::filesystem::path folder;
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::int64_t train = 5000, val = 1000;
  images::Size size{64, 64};
  double noise = 0;
  int quality = 90;
};

constexpr std::array kClasses{"t-shirt", "trouser", "pullover", "dress", "coat",
                              "sandal",  "shirt",   "sneaker",  "bag",   "ankle-boot"};

/// A grey image of 28 x 28 in another size and some colour.
std::vector<std::uint8_t> painted(const torch::Tensor& image, const Settings& settings, std::mt19937& random) {
  const int side = static_cast<int>(image.size(-1));
  images::Pixels small{{0, 0, side, side}, {}};
  const auto* grey = image.data_ptr<std::uint8_t>();
  for (int i = 0; i < side * side; ++i) small.bytes.insert(small.bytes.end(), 3, grey[i]);
  const auto weights = [&](int outputs) {
    return images::bilinear_weights({0, double{1} * side, 0, side, outputs}, 0, outputs);
  };
  std::vector<std::uint8_t> pixels;
  images::resample(small, weights(settings.size.width), weights(settings.size.height), false, pixels);
  std::uniform_real_distribution<double> shade(0.6, 1.0);
  std::normal_distribution<double> noise(0, std::max(settings.noise, 1e-9));
  const std::array<double, 3> colour{shade(random), shade(random), shade(random)};
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    const double value = colour[i % 3] * pixels[i] + (settings.noise > 0 ? noise(random) : 0);
    pixels[i] = static_cast<std::uint8_t>(std::clamp(std::lround(value), 0L, 255L));
  }
  return pixels;
}

/// The first `count` images of a part of the data set.
void write(const Settings& settings, const std::string& part, const std::filesystem::path& folder, std::int64_t count) {
  if (count == 0) return;
  const auto data = read_fashion_mnist(settings.data, part);
  for (const auto* name : kClasses) std::filesystem::create_directories(folder / name);
  std::mt19937 random(1);
  for (std::int64_t i = 0; i < std::min(count, data.size()); ++i) {
    const auto pixels = painted(data.images[i].contiguous(), settings, random);
    const auto bytes = images::encode_jpeg(pixels.data(), settings.size, 3, settings.quality);
    const auto label = static_cast<std::size_t>(data.labels[i].item<std::int64_t>());
    const auto path = folder / kClasses.at(label) / (std::to_string(i) + ".jpg");
    std::ofstream file(path, std::ios::binary);
    if (!file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size())))
      throw std::runtime_error("cannot write " + path.string());
  }
  std::cout << folder.string() << ": " << std::min(count, data.size()) << " images\n";
}

}  // namespace

int main(int argc, char** argv) try {
  Settings settings;
  CLI::App app("Writes Fashion-MNIST as folders of JPEGs, one for each class.");
  app.option_defaults()->always_capture_default();
  app.add_option("folder", settings.folder, "train/CLASS/NAME.jpg and val/CLASS/NAME.jpg are made in it")->required();
  app.add_option("--data", settings.data, "folder of Fashion-MNIST");
  app.add_option("--train", settings.train, "images of train/, at most 60000")->check(CLI::NonNegativeNumber);
  app.add_option("--val", settings.val, "images of val/, at most 10000")->check(CLI::NonNegativeNumber);
  app.add_option("--width", settings.size.width)->check(CLI::Range(1, 10'000));
  app.add_option("--height", settings.size.height)->check(CLI::Range(1, 10'000));
  app.add_option("--noise", settings.noise, "standard deviation of what is added to each byte")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--quality", settings.quality, "of the JPEGs")->check(CLI::Range(1, 100));
  if (const auto status = command_line::ended_by(app, argc, argv)) return *status;
  write(settings, "train", settings.folder / "train", settings.train);
  write(settings, "t10k", settings.folder / "val", settings.val);
  return 0;
} catch (const std::exception& error) {
  std::cerr << "jpeg_folder: " << error.what() << std::endl;
  return 1;
}
