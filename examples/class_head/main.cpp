// Many classes: a backbone that each rank runs on its own samples, and a head whose weight is whole on each rank or
// cut over all of them (TorchShard's experiment), by hand or as autopar plans it. Real images, Fashion-MNIST, in as
// many synthetic classes as wanted.
//
//   mpiexec -n 4 class_head --classes 10 --steps 500                                 trains, and says how well
//   mpiexec -n 4 class_head --sweep 1000,10000,100000 --plot heads.svg               memory and time against classes
//   mpiexec -n 4 class_head --sweep 1000000 --data noise                             the same where no images are

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <autopar/autopar.hpp>
#include <autopar/shard/gradients.hpp>
#include <autopar/torch/device.hpp>

#include "command_line/command_line.hpp"
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
  std::string precision = "fp32";
  uint64_t seed = 1;

  torch::optim::SGDOptions sgd() const { return torch::optim::SGDOptions(learning_rate).momentum(0.9); }
};

/// Of ten labels as many classes: an image's label, and a number of its own, say which it is.
Dataset in_classes(Dataset data, int64_t classes) {
  if (classes == 10) return data;
  const auto own = torch::arange(data.size()).mul(2654435761).bitwise_right_shift(7);
  data.labels = data.labels.add(own.mul(10)).remainder(classes);
  return data;
}

/// Noise in place of images, for times and memory where there is no data set.
Dataset noise() {
  constexpr int64_t kSamples = 4096, kClasses = 10;
  const auto generator = at::detail::createCPUGenerator(0);
  return {torch::randint(256, {kSamples, 1, 28, 28}, generator, torch::kByte),
          torch::randint(kClasses, {kSamples}, generator, torch::kLong)};
}

struct BackboneImpl : torch::nn::Module {
  explicit BackboneImpl(int64_t width)
      : first(register_module("first", torch::nn::Linear(28 * 28, width))),
        second(register_module("second", torch::nn::Linear(width, width))) {}
  Tensor forward(const Tensor& images) { return torch::relu(second(torch::relu(first(images.flatten(1))))); }
  torch::nn::Linear first, second;
};
TORCH_MODULE(Backbone);

/// Of what runs while it lives: matrix products in bf16.
class Bf16 {
 public:
  Bf16(torch::Device device, bool is_on) : device_(device.type()), is_on_(is_on) {
    if (!is_on) return;
    at::autocast::set_autocast_dtype(device_, torch::kBFloat16);
    at::autocast::set_autocast_enabled(device_, true);
  }
  Bf16(const Bf16&) = delete;
  Bf16& operator=(const Bf16&) = delete;
  ~Bf16() {
    if (!is_on_) return;
    at::autocast::set_autocast_enabled(device_, false);
    at::autocast::clear_cache();
  }

 private:
  torch::DeviceType device_;
  bool is_on_;
};

/// The most of any rank.
double most_of(ap::World& world, double mine) {
  std::vector<double> all(static_cast<size_t>(world.size()), 0);
  all[static_cast<size_t>(world.rank())] = mine;
  world.all_reduce_sum(all, "measurements");
  return *std::max_element(all.begin(), all.end());
}

/// The network as anybody writes it. In AutoParallel its head is cut, or not, as the planner finds.
struct NetImpl : torch::nn::Module {
  NetImpl(int64_t width, int64_t classes)
      : backbone(register_module("backbone", Backbone(width))),
        head(register_module("head", torch::nn::Linear(width, classes))) {}
  Tensor forward(const Tensor& images, const Tensor& labels) {
    return torch::nn::functional::cross_entropy(head(backbone(images)), labels);
  }
  Tensor classes_of(const Tensor& images) { return head(backbone(images)).argmax(1); }
  Backbone backbone;
  torch::nn::Linear head;
};

/// What is trained: a step on own samples gives the loss of all; `top_1` the part of own samples that are found.
struct Training {
  virtual ~Training() = default;
  virtual Tensor step(const ShardedLoader::Batch& batch) = 0;
  virtual double top_1(const ShardedLoader::Batch& batch) = 0;
};

/// A backbone on each rank, and a head of the kind, both placed by hand.
class ByHand : public Training {
 public:
  ByHand(HeadKind kind, const Settings& settings, int64_t classes, const ap::Groups& groups, torch::Device device)
      : world_(groups.world),
        device_(device),
        in_bf16_(settings.precision == "bf16"),
        backbone_(settings.width),
        head_(kind, settings.width, classes, groups) {
    backbone_->to(device);
    head_.layer->to(device);
    auto parameters = backbone_->parameters();
    const auto of_head = head_.layer->parameters();
    parameters.insert(parameters.end(), of_head.begin(), of_head.end());
    optimizer_ = std::make_unique<torch::optim::SGD>(parameters, settings.sgd());
  }
  Tensor step(const ShardedLoader::Batch& batch) override {
    optimizer_->zero_grad();
    auto loss = [&] {
      const Bf16 bf16(device_, in_bf16_);
      return head_.loss(backbone_(batch.images), batch.labels);
    }();
    loss.backward();
    ap::sum_gradients(backbone_->parameters(), world_);
    ap::sum_gradients(head_.layer->parameters(), head_.holders());
    optimizer_->step();
    return loss;
  }
  double top_1(const ShardedLoader::Batch& batch) override {
    return head_.top_1(backbone_(batch.images).detach(), batch.labels);
  }

 private:
  ap::Group world_;
  torch::Device device_;
  bool in_bf16_;
  Backbone backbone_;
  Head head_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
};

/// The ordinary network in AutoParallel.
class Automatic : public Training {
 public:
  Automatic(ap::World& world, const Settings& settings, int64_t classes)
      : model_(
            world, [&] { return NetImpl(settings.width, classes); },
            ap::Options{.precision = settings.precision == "bf16" ? ap::Precision::kBf16 : ap::Precision::kModule}),
        optimizer_(model_->parameters(), settings.sgd()) {
    model_->attach(optimizer_);
  }
  Tensor step(const ShardedLoader::Batch& batch) override {
    optimizer_.zero_grad();
    auto loss = model_(batch.images, batch.labels);
    loss.backward();
    optimizer_.step();
    return loss;
  }
  double top_1(const ShardedLoader::Batch& batch) override {
    const torch::NoGradGuard no_grad;
    const auto found = model_->call(&NetImpl::classes_of, batch.images);
    return found.eq(batch.labels).to(torch::kDouble).mean().item<double>();
  }

 private:
  ap::AutoParallel<NetImpl> model_;
  torch::optim::SGD optimizer_;
};

/// Trains one head, and says what it took.
Row train(ap::World& world, const ap::Groups& groups, const Settings& settings, const Dataset& images,
          const std::string& kind, int64_t classes) {
  const auto device = ap::device(world);
  ShardedLoader loader(in_classes(images, classes), settings.batch, world.rank(), world.size(), torch::kFloat, device);
  const PeakMemory memory(device);

  torch::manual_seed(settings.seed);
  std::unique_ptr<Training> training;
  if (kind == "automatic") {
    training = std::make_unique<Automatic>(world, settings, classes);
  } else {
    training = std::make_unique<ByHand>(Head::kind_named(kind), settings, classes, groups, device);
  }

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
    row.loss = training->step(*batch).item<double>();  // waits for the device
    milliseconds.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    if (settings.sweep.empty() && step >= settings.steps * 9 / 10) {
      const auto own = static_cast<double>(batch->labels.size(0));
      right += own * training->top_1(*batch);
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
  options
      .add_option("--head", settings.heads,
                  "dense, row, column or chunked (column, and logits are never whole), each by hand; "
                  "automatic (the plan's choice)")
      ->delimiter(',')
      ->check(CLI::IsMember({"dense", "row", "column", "chunked", "automatic"}));
  options.add_option("--classes", settings.classes, "10: Fashion-MNIST's own; others are made of these");
  options.add_option("--sweep", settings.sweep, "numbers of classes: a table of each with each head")->delimiter(',');
  options.add_option("--plot", settings.plot, "an SVG image of the table");
  options.add_option("--steps", settings.steps)->check(CLI::PositiveNumber)->capture_default_str();
  options.add_option("--batch", settings.batch, "samples of all ranks together")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  options.add_option("--width", settings.width, "features")->check(CLI::PositiveNumber)->capture_default_str();
  options.add_option("--lr", settings.learning_rate)->capture_default_str();
  options.add_option("--precision", settings.precision, "of matrix products")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  options.add_option("--seed", settings.seed)->capture_default_str();
  options.add_option("--data", settings.data, "folder of Fashion-MNIST; noise: random images")->capture_default_str();
  if (const auto status = command_line::ended_by(options, argc, argv, world.rank() == 0)) return *status;
  if (!settings.sweep.empty() && options.count("--head") == 0)
    settings.heads = {"dense", "row", "column", "chunked", "automatic"};

  const auto groups = ap::init_groups(world, world.size());
  const auto images = settings.data == "noise" ? noise() : read_fashion_mnist(settings.data, "train");
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
