// Which of 1000 things an image shows: ResNets on ImageNet, or any folder of JPEGs, on one process or many.
//
//   jpeg_folder /tmp/clothes                                                     a small folder, from Fashion-MNIST
//   mpiexec -n 2 imagenet --data /tmp/clothes --model resnet18 --width 0.25 --image-size 32 --epochs 5 --out run
//   mpiexec -n 2 imagenet --out run --resume                                     goes on
//   mpiexec -n 8 imagenet --data /data/imagenet --batch 2048 --precision bf16 --out run         GPUs
//   imagenet --model resnet152x8 --batch 1024 --plan-only --cluster examples/clusters/v100-32x32.toml

#include <iostream>
#include <optional>
#include <string>

#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <autopar/autopar.hpp>
#include <autopar/training/interrupt.hpp>
#include <autopar/training/log.hpp>
#include <autopar/training/memory.hpp>
#include <autopar/training/parameter_groups.hpp>
#include <autopar/training/peak_flops.hpp>
#include <autopar/training/run_folder.hpp>

#include "data.hpp"
#include "models/resnet.hpp"
#include "scores.hpp"
#include "settings.hpp"
#include "unreadable_images.hpp"

namespace ap = autopar;
namespace training = ap::training;
using images::ImageLoader;
using Model = ap::AutoParallel<models::ResNet>;

Model made_model(ap::World& world, const Settings& settings) {
  torch::manual_seed(settings.seed);
  const auto make = [&] {
    models::ResNet net(settings.network(), settings.label_smoothing);
    if (settings.fp64) net->to(torch::kDouble);
    return net;
  };
  return {world, make, settings.options};
}

/// Plans with a batch that nothing has been read into.
void prepare(ap::World& world, const Settings& settings, Model& model) {
  const auto samples =
      settings.batch * (world.rank() + 1) / world.size() - settings.batch * world.rank() / world.size();
  if (samples == 0) {
    throw ap::InvalidArgument("--batch " + std::to_string(settings.batch) + " is less than an image for each of " +
                              std::to_string(world.size()) + " ranks");
  }
  const auto device = ap::device_of(world, settings.options.device);
  const auto type = torch::dtype(settings.fp64 ? torch::kDouble : torch::kFloat).device(device);
  model->prepare(
      torch::empty({samples, 3, settings.image_size, settings.image_size}, type, at::MemoryFormat::ChannelsLast),
      torch::zeros({samples}, torch::dtype(torch::kLong).device(device)));
  if (world.rank() == 0)
    std::cout << model->plan() << settings.model << ", " << model->parameter_count() << " parameters" << std::endl;
}

/// Mean loss and accuracies in %, of all images of val/. Collective.
training::Values validate(Model& model, const Data& data) {
  const torch::NoGradGuard no_grad;
  model->eval();
  auto sums = torch::zeros({3}, torch::kDouble);
  std::int64_t seen = 0;
  data.validation->start(0);
  while (const auto batch = data.validation->next()) {
    const auto [loss, first, five] = model->call(scores, data.taken(batch->images), data.taken(batch->labels));
    sums += torch::stack({loss.to(torch::kDouble), first.to(torch::kDouble), five.to(torch::kDouble)}).cpu();
    seen += batch->global_samples;
  }
  model->train();
  const auto of = [&](int i) { return sums[i].item<double>() / static_cast<double>(seen); };
  return {{"validation_loss", of(0)}, {"top1", 100 * of(1)}, {"top5", 100 * of(2)}};
}

training::Work work_of(ap::World& world, const Settings& settings, c10::Device device) {
  constexpr double kForwardAndBackward = 6;  // operations for each multiply-add of the forward
  training::Work work{"images", settings.batch,
                      kForwardAndBackward * settings.network().multiply_adds(settings.image_size) *
                          static_cast<double>(settings.batch)};
  if (device.is_cuda())
    work.peak_flops = training::peak_flops(ap::describe_cluster(world, device).device.name, settings.options.precision);
  return work;
}

/// A training from where it stands to its end, or to Ctrl-C.
class Training {
 public:
  /// @param optimizer  of a model that is deployed
  Training(ap::World& world, const Settings& settings, const Data& data, Model& model, ap::optim::SGD& optimizer,
           training::RunFolder& folder)
      : world_(world),
        settings_(settings),
        data_(data),
        model_(model),
        optimizer_(optimizer),
        folder_(folder),
        interrupt_(world),
        place_(folder_.load(model, optimizer)),
        log_(world, folder_.path(), settings.log(work_of(world, settings, data.device)), place_.step) {}

  /// @return the program's exit status
  int run() {
    while (!is_done()) {
      run_epoch();
      if (interrupt_.exit_status() != 0) break;
      end_epoch();
    }
    if (unreadable_.count() > 0) {
      say(std::to_string(unreadable_.count()) + " images could not be read, and others took their places: see above");
    }
    return interrupt_.exit_status();
  }

 private:
  [[nodiscard]] bool is_done() const { return place_.step >= settings_.steps; }
  void say(const std::string& text) {
    if (world_.rank() == 0) log_.say(text);
  }
  void tell_unreadable(const ImageLoader& loader) {
    unreadable_.tell(world_, loader, [&](const std::string& text) { say(text); });
  }

  void run_epoch() {
    auto& loader = *data_.training;
    loader.start(static_cast<std::uint64_t>(place_.epoch), place_.taken / settings_.batch);
    while (!is_done() && !interrupt_.is_asked()) {
      const auto batch = loader.next();
      if (!batch) break;
      step(*batch);
      if (place_.step % settings_.save_every == 0) folder_.save(place_, model_, optimizer_);
    }
    tell_unreadable(loader);
    if (interrupt_.exit_status() == 0) return;
    folder_.save(place_, model_, optimizer_);
    say("interrupted after step " + std::to_string(place_.step) +
        (folder_.is_kept() ? ", which is saved: --resume goes on" : ", and nothing is kept, as there is no --out"));
  }

  void step(const ImageLoader::Batch& batch) {
    const double rate = settings_.rate(place_.step);
    training::set_learning_rate(optimizer_, rate);
    optimizer_.zero_grad();
    auto loss = model_(data_.taken(batch.images), data_.taken(batch.labels));
    loss.backward();
    if (settings_.clip > 0) model_->clip_grad_norm_(settings_.clip);
    optimizer_.step();
    place_.taken += batch.global_samples;
    if (!log_.is_due(++place_.step)) return;
    const auto images = static_cast<double>(data_.training->folder().size());
    log_.step(place_.step,
              {{"loss", loss.item<double>()},
               {"lr", rate},
               {"epoch", static_cast<double>(place_.epoch) + static_cast<double>(place_.taken) / images},
               {"waited_s", data_.training->waited()}},
              training::peak_memory(data_.device));
  }

  void end_epoch() {
    if (place_.taken / settings_.batch >= data_.training->batches()) {
      ++place_.epoch;
      place_.taken = 0;
    }
    if (data_.validation) {
      const auto values = validate(model_, data_);
      tell_unreadable(*data_.validation);
      log_.write(place_.step, values);
      folder_.save_best(place_, "top1", values[1].second, model_);
    }
    folder_.save(place_, model_, optimizer_);
  }

  ap::World& world_;
  const Settings& settings_;
  const Data& data_;
  Model& model_;
  ap::optim::SGD& optimizer_;
  training::RunFolder& folder_;
  training::Interrupt interrupt_;
  training::Place place_;
  training::Log log_;
  UnreadableImages unreadable_;
};

int run(ap::World& world, Settings& settings) {
  if (settings.options.plan_only) {
    settings.options.optimizer_state_factor = 1;  // momentum
    auto model = made_model(world, settings);
    prepare(world, settings, model);
    return 0;
  }
  const auto data = opened(world, settings);
  const auto classes = static_cast<std::int64_t>(data.training->folder().classes.size());
  if (settings.classes == 0) settings.classes = classes;
  if (settings.classes < classes)
    throw ap::InvalidArgument("--classes " + std::to_string(settings.classes) + " is less than the " +
                              std::to_string(classes) + " of " + settings.data);
  settings.count_steps(data.training->batches());
  settings.options.inference = settings.only_validates;
  std::optional<training::RunFolder> folder;  // looked at before minutes go into a plan
  auto run_folder = settings.folder();
  if (settings.only_validates) run_folder.start = training::Start::kResume;
  if (!settings.only_validates || settings.resume) folder.emplace(world, run_folder);
  auto model = made_model(world, settings);
  if (!settings.load_weights.empty() && !settings.resume) model->load(settings.load_weights);
  int status = 0;
  if (settings.only_validates) {
    if (folder) folder->load(model);
    const auto values = validate(model, data);
    for (const auto& [name, value] : values) {
      if (world.rank() == 0) std::cout << name << ' ' << value << (name == "top5" ? "\n" : "  ");
    }
  } else {
    ap::optim::SGD optimizer(
        model->parameters(),
        ap::optim::SGDOptions(settings.learning_rate).momentum(settings.momentum).weight_decay(settings.weight_decay));
    model->attach(optimizer);
    prepare(world, settings, model);
    status = Training(world, settings, data, model, optimizer, *folder).run();
  }
  if (!settings.export_file.empty() && status == 0) model->export_weights(settings.export_file);
  return status;
}

int main(int argc, char** argv) try {
  ap::World world(argc, argv);
  Settings settings;
  CLI::App app(
      "Trains a ResNet on a folder of JPEGs, such as ImageNet, on one process or on all ranks of mpiexec.\n"
      "The defaults are the recipe of PyTorch's examples/imagenet: SGD, 90 epochs, the rate to a tenth each 30.",
      "imagenet");
  app.footer(R"(
Examples:
  jpeg_folder /tmp/clothes                                     writes a small folder, from Fashion-MNIST
  mpiexec -n 2 imagenet --data /tmp/clothes --model resnet18 --width 0.25 --image-size 32 --batch 64 --epochs 5
  mpiexec -n 8 imagenet --data /data/imagenet --batch 2048 --lr 0.8 --precision bf16 --out run
  mpiexec -n 8 imagenet --out run --resume
  imagenet --data /data/imagenet --validate --load-weights resnet50.safetensors
More: examples/imagenet/README.md)");
  command_line::add_options(app, settings);
  add_own_options(app, settings);
  if (const auto status = command_line::parse(app, settings, world, argc, argv)) return *status;
  require_consistent(settings);
  return run(world, settings);
} catch (const ap::PlanOnly&) {
  return 0;
} catch (const std::exception& error) {
  std::cerr << "imagenet: " << error.what() << std::endl;
  return 1;
}
