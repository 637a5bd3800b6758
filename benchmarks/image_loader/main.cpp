// Images a second of examples/images: files of FOLDER/train decoded, cropped, resized and normalised by threads,
// without a training. A JSON line. `beside.sh` runs it and PyTorch's DataLoader in turns.
//
//   image_loader FOLDER --workers 2 --epochs 3

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <string>

#include <torch/types.h>
#include <CLI/CLI.hpp>

#include "images/image_loader.hpp"

int main(int argc, char** argv) try {
  std::string folder;
  int epochs = 3;
  bool validation = false;
  images::LoaderOptions options{.batch = 50};
  CLI::App app("Images a second that threads read from FOLDER/train, after a first epoch that is not counted.");
  app.add_option("folder", folder)->required();
  app.add_option("--workers", options.workers, "threads")->check(CLI::PositiveNumber);
  app.add_option("--epochs", epochs, "that are counted")->check(CLI::PositiveNumber);
  app.add_option("--batch", options.batch)->check(CLI::PositiveNumber);
  app.add_flag("--validation", validation, "its transform instead of the training's");
  CLI11_PARSE(app, argc, argv);
  using Kind = images::Transform::Kind;
  options.transform.kind = validation ? Kind::kValidation : Kind::kTraining;
  images::ImageLoader loader(images::read_image_folder(folder + "/train"), options);
  std::int64_t images = 0;
  const auto read = [&](std::uint64_t epoch) {
    loader.start(epoch);
    while (const auto batch = loader.next()) images += batch->global_samples;
  };
  read(0);
  images = 0;
  const auto begin = std::chrono::steady_clock::now();
  const auto cpu_begin = std::clock();  // of all threads
  for (int epoch = 1; epoch <= epochs; ++epoch) read(static_cast<std::uint64_t>(epoch));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double cpu = static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC;
  std::printf(
      "{\"loader\": \"autopar\", \"transform\": \"%s\", \"workers\": %d, \"images_s\": %.1f, "
      "\"images_cpu_s\": %.1f}\n",
      validation ? "validation" : "training", options.workers, static_cast<double>(images) / seconds,
      static_cast<double>(images) / cpu);
  return 0;
} catch (const std::exception& error) {
  std::cerr << "image_loader: " << error.what() << std::endl;
  return 1;
}
