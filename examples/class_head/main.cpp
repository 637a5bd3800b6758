// Many classes: a backbone that each rank runs on its own samples, and a head whose weight is whole on each rank or
// cut over all of them (TorchShard's experiment). Real images, Fashion-MNIST, in as many synthetic classes as wanted.
//
//   mpiexec -n 4 class_head --classes 10 --steps 500                                 trains, and says how well
//   mpiexec -n 4 class_head --sweep 1000,10000,100000 --plot heads.svg               memory and time against classes

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <vector>

#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <autopar/shard/gradients.hpp>
#include <autopar/torch/device.hpp>

#include "data/fashion_mnist.hpp"
#include "head.hpp"
#include "memory.hpp"
#include "plot.hpp"

namespace ap = autopar;
using torch::Tensor;

struct Settings {
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::vector<std::string> heads{"column"};
  int64_t classes = 10;
  std::vector<int64_t> sweep;
  std::string plot;
  int64_t steps = 100;
  int64_t batch = 64;
  int64_t width = 256;
  double learning_rate = 0.05;
  uint64_t seed = 1;
};

/// Of ten labels as many classes: an image's label, and a number of its own, say which it is.
Dataset in_classes(Dataset data, int64_t classes) {
  if (classes == 10) return data;
  const auto own = torch::arange(data.size()).mul(2654435761).bitwise_right_shift(7);
  data.labels = data.labels.add(own.mul(10)).remainder(classes);
  return data;
}

struct BackboneImpl : torch::nn::Module {
  explicit BackboneImpl(int64_t width)
      : first(register_module("first", torch::nn::Linear(28 * 28, width))),
        second(register_module("second", torch::nn::Linear(width, width))) {}
  Tensor forward(const Tensor& images) { return torch::relu(second(torch::relu(first(images.flatten(1))))); }
  torch::nn::Linear first, second;
};
TORCH_MODULE(Backbone);

/// The most of any rank.
double most_of(ap::World& world, double mine) {
  std::vector<double> all(static_cast<size_t>(world.size()), 0);
  all[static_cast<size_t>(world.rank())] = mine;
  world.all_reduce_sum(all, "measurements");
  return *std::max_element(all.begin(), all.end());
}

/// Trains one head, and says what it took.
Row train(ap::World& world, const ap::Groups& groups, const Settings& settings, const Dataset& images,
          const std::string& kind, int64_t classes) {
  const auto device = ap::device(world);
  ShardedLoader loader(in_classes(images, classes), settings.batch, world.rank(), world.size(), torch::kFloat, device);
  const PeakMemory memory(device);

  torch::manual_seed(settings.seed);
  Backbone backbone(settings.width);
  Head head(Head::kind_named(kind), settings.width, classes, groups);
  backbone->to(device);
  head.layer->to(device);
  auto parameters = backbone->parameters();
  const auto of_head = head.layer->parameters();
  parameters.insert(parameters.end(), of_head.begin(), of_head.end());
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(settings.learning_rate).momentum(0.9));

  Row row{classes, kind};
  std::vector<double> milliseconds;
  double right = 0, seen = 0;
  uint64_t epoch = settings.seed;
  loader.start(epoch);
  for (int64_t step = 0; step < settings.steps; ++step) {
    auto batch = loader.next();
    if (!batch) {
      loader.start(++epoch);
      batch = loader.next();
    }
    const auto begin = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    const auto features = backbone(batch->images);
    const auto loss = head.loss(features, batch->labels);
    loss.backward();
    ap::sum_gradients(backbone->parameters(), groups.world);
    ap::sum_gradients(head.layer->parameters(), head.holders());
    optimizer.step();
    row.loss = loss.item<double>();  // waits for the device
    milliseconds.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    if (settings.sweep.empty() && step >= settings.steps * 9 / 10) {
      const auto own = static_cast<double>(batch->labels.size(0));
      right += own * head.top_1(features.detach(), batch->labels);
      seen += own;
    }
  }
  std::nth_element(milliseconds.begin(), milliseconds.begin() + static_cast<std::ptrdiff_t>(milliseconds.size() / 2),
                   milliseconds.end());
  row.milliseconds = most_of(world, milliseconds[milliseconds.size() / 2]);
  row.mebibytes = most_of(world, static_cast<double>(memory.bytes()) / (1 << 20));
  std::vector<double> counts{right, seen};
  world.all_reduce_sum(counts, "accuracy");
  if (world.rank() == 0 && counts[1] > 0)
    std::printf("top-1 of the last tenth of the steps: %.1f %%\n", 100 * counts[0] / counts[1]);
  return row;
}

int main(int argc, char** argv) try {
  ap::World world(argc, argv);
  Settings settings;
  CLI::App options("Trains a head of many classes, whole on each rank or cut over all of them");
  options.add_option("--head", settings.heads, "dense, row, column or chunked (column, and logits are never whole)")
      ->delimiter(',')
      ->check(CLI::IsMember({"dense", "row", "column", "chunked"}));
  options.add_option("--classes", settings.classes, "10: Fashion-MNIST's own; others are made of these");
  options.add_option("--sweep", settings.sweep, "numbers of classes: a table of each with each head")->delimiter(',');
  options.add_option("--plot", settings.plot, "an SVG image of the table");
  options.add_option("--steps", settings.steps)->check(CLI::PositiveNumber)->capture_default_str();
  options.add_option("--batch", settings.batch, "samples of all ranks together")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  options.add_option("--width", settings.width, "features")->check(CLI::PositiveNumber)->capture_default_str();
  options.add_option("--lr", settings.learning_rate)->capture_default_str();
  options.add_option("--seed", settings.seed)->capture_default_str();
  options.add_option("--data", settings.data, "folder of Fashion-MNIST")->capture_default_str();
  try {
    options.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return world.rank() == 0 ? options.exit(error) : error.get_exit_code();
  }
  if (!settings.sweep.empty() && options.count("--head") == 0) settings.heads = {"dense", "row", "column", "chunked"};

  const auto groups = ap::init_groups(world, world.size());
  const auto images = read_fashion_mnist(settings.data, "train");
  std::vector<Row> rows;
  auto numbers = settings.sweep;
  if (world.rank() == 0) std::printf("   classes  head       ms/step  peak MiB      loss\n");
  if (settings.sweep.empty()) numbers = {settings.classes};
  for (const int64_t classes : numbers) {
    for (const auto& head : settings.heads) {
      rows.push_back(train(world, groups, settings, images, head, classes));
      const Row& row = rows.back();
      if (world.rank() == 0)
        std::printf("%10ld  %-8s %9.2f %9.1f %9.5f\n", static_cast<long>(row.classes), row.head.c_str(),
                    row.milliseconds, row.mebibytes, row.loss);
    }
  }
  if (world.rank() == 0 && !settings.plot.empty()) std::ofstream(settings.plot) << plot_of(rows);
  return 0;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return 1;
}
