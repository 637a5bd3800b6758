// Clothes in ten classes: an ordinary training loop that runs on any number of ranks.
//
//   mpiexec -n 4 fashion_mnist
//   mpiexec -n 4 fashion_mnist --model mlp --stages 2 --replicas 2

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <iostream>

#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <autopar/autopar.hpp>
#include <autopar/training/from_first.hpp>
#include <autopar/training/progress.hpp>

#include "command_line/command_line.hpp"
#include "data/fashion_mnist.hpp"
#include "models.hpp"

namespace ap = autopar;
namespace training = ap::training;

struct Settings {
  std::string model = "cnn";
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::string loss_file;
  std::string save;
  int epochs = 2;
  int64_t steps = 0;
  int64_t batch = 256;
  double learning_rate = 1e-2;
  uint64_t seed = 1;
  bool fp64 = false;
  ap::Options options;
};

/// Rises to one within the first fifth of the training, then falls to zero (Smith & Topin 2018, "super-convergence").
double one_cycle(int64_t step, int64_t steps) {
  const double at = static_cast<double>(step + 1) / static_cast<double>(steps);
  constexpr double kRise = 0.2;
  return at < kRise ? at / kRise : (1 - at) / (1 - kRise);
}

/// On rank 0, before anything is trained for it; all ranks throw alike.
std::ofstream opened_loss_file(ap::World& world, const std::string& path) {
  std::ofstream file;
  training::from_first(world, "opening the loss file", [&] {
    if (!path.empty()) file.open(path);
    if (!file) throw ap::ConfigError("--loss-file cannot be written: " + std::string(std::strerror(errno)), path);
    return std::string();
  });
  file << std::setprecision(17);
  return file;
}

template <class Net>
void train(ap::World& world, const Settings& settings, std::ostream& losses) {
  const bool first = world.rank() == 0;
  const auto dtype = settings.fp64 ? torch::kDouble : torch::kFloat;
  const auto device = ap::device(world);
  const auto loader = [&](const char* part) {
    return ShardedLoader(read_fashion_mnist(settings.data, part), settings.batch, world.rank(), world.size(), dtype,
                         device);
  };
  auto train_loader = loader("train");
  auto test_loader = loader("t10k");

  torch::manual_seed(settings.seed);
  ap::AutoParallel<Net> model(
      world,
      [&] {
        Net net;
        net->to(dtype);
        return net;
      },
      settings.options);
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(settings.learning_rate).weight_decay(1e-2));
  model->attach(optimizer);

  const int64_t steps_of_epoch = (train_loader.size() + settings.batch - 1) / settings.batch;
  int64_t step = 0;
  for (int epoch = 1; epoch <= settings.epochs; ++epoch) {
    model->train();
    train_loader.start(settings.seed + static_cast<uint64_t>(epoch));
    training::Progress progress("epoch " + std::to_string(epoch), "samples", train_loader.size(), first);
    while (auto batch = train_loader.next()) {
      const double rate = settings.learning_rate * one_cycle(step, settings.epochs * steps_of_epoch);
      for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
      optimizer.zero_grad();
      const auto [loss, correct] = model(batch->images, batch->labels);
      loss.backward();
      optimizer.step();
      if (step == 0 && first) std::cout << model->plan() << std::endl;
      const double value = loss.template item<double>();
      losses << value << '\n';
      std::ostringstream text;
      text << std::fixed << std::setprecision(4) << "loss " << value;
      progress.advance(batch->global_samples, text.str());
      if (++step == settings.steps) return;
    }

    model->eval();
    torch::NoGradGuard no_grad;
    test_loader.start(std::nullopt);
    int64_t right = 0, seen = 0;
    while (auto batch = test_loader.next()) {
      right += std::get<1>(model(batch->images, batch->labels)).template item<int64_t>();
      seen += batch->global_samples;
    }
    if (first) {
      std::cout << "epoch " << epoch << ": test accuracy " << std::fixed << std::setprecision(2)
                << 100.0 * static_cast<double>(right) / static_cast<double>(seen) << " %" << std::endl;
    }
  }
  if (!settings.save.empty()) model->save(settings.save, optimizer);
}

int main(int argc, char** argv) try {
  ap::World world(argc, argv);
  Settings settings;
  CLI::App app("Trains a small network on Fashion-MNIST with autopar.");
  app.add_option("--model", settings.model, "cnn (residual, batch norm) or mlp")->check(CLI::IsMember({"cnn", "mlp"}));
  app.add_option("--data", settings.data, "folder of the data set");
  app.add_option("--epochs", settings.epochs)->check(CLI::PositiveNumber);
  app.add_option("--steps", settings.steps, "stop after so many optimizer steps; 0 = never");
  app.add_option("--batch", settings.batch, "samples of a step, all ranks together")->check(CLI::PositiveNumber);
  app.add_option("--lr", settings.learning_rate, "the highest learning rate of the cycle")->check(CLI::PositiveNumber);
  app.add_option("--seed", settings.seed);
  app.add_option("--loss-file", settings.loss_file, "write the loss of every step there");
  app.add_option("--save", settings.save, "write a checkpoint there at the end");
  app.add_flag("--fp64", settings.fp64, "train in double precision");
  app.add_option("--stages", settings.options.stages, "force the number of stages");
  app.add_option("--replicas", settings.options.replicas, "force the replicas of each stage")->delimiter(',');
  app.add_option("--microbatches", settings.options.microbatches, "force the number of micro-batches");
  if (const auto status = command_line::ended_by(app, argc, argv, world.rank() == 0)) return *status;
  std::ofstream losses;
  try {
    losses = opened_loss_file(world, settings.loss_file);
  } catch (const ap::InvalidArgument& error) {
    if (world.rank() == 0) std::cerr << "fashion_mnist: " << error.what() << std::endl;
    return 2;
  }
  if (settings.model == "cnn")
    train<Cnn>(world, settings, losses);
  else
    train<Mlp>(world, settings, losses);
  if (losses.is_open() && !losses.flush()) {
    std::cerr << "fashion_mnist: " << settings.loss_file << ": the losses could not all be written" << std::endl;
    return 2;
  }
  return 0;
} catch (const ap::PlanOnly&) {
  return 0;
} catch (const std::exception& error) {
  std::cerr << "fashion_mnist: " << error.what() << std::endl;
  return 1;
}
