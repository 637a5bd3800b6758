// Learns to go on with a text: GPT on bytes or on a vocabulary of its own, an ordinary training loop on any number of
// ranks.
//
//   mpiexec -n 4 gpt --out run --steps 500                 the licences that every Debian has, in minutes
//   mpiexec -n 4 gpt --out run --resume --steps 1000       goes on
//   gpt --out run --sample "You may "                      what it has learnt
//   gpt --size 1.3b --batch 64 --precision bf16 --plan-only --cluster examples/clusters/h100x8.toml

#include <algorithm>
#include <iostream>
#include <string>

#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <autopar/autopar.hpp>
#include <autopar/io/file.hpp>
#include <autopar/training/accumulate.hpp>
#include <autopar/training/interrupt.hpp>
#include <autopar/training/log.hpp>
#include <autopar/training/memory.hpp>
#include <autopar/training/parameter_groups.hpp>
#include <autopar/training/peak_flops.hpp>
#include <autopar/training/run_folder.hpp>

#include "command_line/settings.hpp"
#include "corpus.hpp"
#include "data/windows.hpp"
#include "models/transformer.hpp"
#include "sampling.hpp"
#include "settings.hpp"
#include "size.hpp"

namespace ap = autopar;
namespace training = ap::training;

ap::AutoParallel<models::Transformer> made_model(ap::World& world, const Settings& settings,
                                                 const models::TransformerSize& size) {
  torch::manual_seed(settings.seed);
  const auto make = [&] {
    models::Transformer net(size);
    models::initialise_as_gpt2(net);
    if (settings.fp64) net->to(torch::kDouble);
    return net;
  };
  return {world, make, settings.options};
}

/// The mean loss of all that is held out.
double validation_loss(ap::AutoParallel<models::Transformer>& model, const Windows& windows, std::int64_t batch) {
  const torch::NoGradGuard no_grad;
  model->eval();
  double sum = 0;
  for (std::int64_t first = 0; first < windows.validation_size(); first += batch) {
    const auto count = std::min(batch, windows.validation_size() - first);
    const auto [text, next] = windows.validation(first, count);
    sum += model(text, next).item<double>() * static_cast<double>(count);
  }
  model->train();
  return sum / static_cast<double>(windows.validation_size());
}

int train(ap::World& world, const Settings& settings) {
  const auto device = ap::device(world);
  training::RunFolder folder(world, settings.folder());
  const auto [vocabulary, tokens] = read_corpus(settings);
  const auto size = size_of(settings.size, settings.given, vocabulary.size());
  Windows windows(tokens, size.length, settings.held_out, settings.seed, {world.rank(), world.size(), device});
  auto model = made_model(world, settings, size);
  ap::optim::AdamW optimizer(training::decayed_and_not(
      model->parameters(),
      ap::optim::AdamWOptions(settings.learning_rate).betas({0.9, 0.95}).weight_decay(settings.weight_decay)));
  model->attach(optimizer);
  const auto samples = settings.batch / settings.accumulate;  // of a call
  const auto [first_text, first_next] = windows.training(0, samples);
  model->prepare(first_text, first_next);
  if (world.rank() == 0) {
    std::cout << model->plan() << model->parameter_count() << " parameters, " << vocabulary.size() << " words, "
              << windows.training_size() << " samples, " << windows.validation_size() << " held out" << std::endl;
  }
  if (settings.options.plan_only) return 0;

  if (folder.is_kept() && world.rank() == 0)
    ap::write_text_file(vocabulary_file(folder.path()), vocabulary.file_text());
  auto place = folder.load(model, optimizer);
  training::Work work{"tokens", settings.batch * size.length,
                      flops_of_sample(size) * static_cast<double>(settings.batch)};
  if (device.is_cuda())
    work.peak_flops = training::peak_flops(ap::describe_cluster(world, device).device.name, settings.options.precision);
  training::Log log(world, folder.path(), settings.log(work), place.step);
  training::Interrupt interrupt(world);
  while (place.step < settings.steps && !interrupt.is_asked()) {
    const double rate = settings.rate(place.step);
    training::set_learning_rate(optimizer, rate);
    optimizer.zero_grad();
    const auto loss = training::accumulate(model, settings.accumulate, [&](std::int64_t part) {
      const auto [text, next] = windows.training(place.step * settings.batch + part * samples, samples);
      return model(text, next);
    });
    if (settings.clip > 0) model->clip_grad_norm_(settings.clip);
    optimizer.step();
    const auto step = ++place.step;

    if (log.is_due(step)) log.step(step, {{"loss", loss.item<double>()}, {"lr", rate}}, training::peak_memory(device));
    if (step % settings.validate_every == 0 || step == settings.steps)
      log.write(step, {{"validation_loss", validation_loss(model, windows, samples)}});
    if (step % settings.save_every == 0 || step == settings.steps) folder.save(place, model, optimizer);
  }
  if (interrupt.exit_status() == 0) return 0;
  folder.save(place, model, optimizer);
  log.say("interrupted after step " + std::to_string(place.step) +
          (folder.is_kept() ? ", which is saved: --resume goes on" : ", and nothing is kept, as there is no --out"));
  return interrupt.exit_status();
}

int sample(ap::World& world, Settings settings) {
  settings.options.inference = true;
  auto run = settings.folder();
  run.start = training::Start::kResume;
  training::RunFolder folder(world, run);
  const auto vocabulary = read_vocabulary(vocabulary_file(settings.out));
  const auto size = size_of(settings.size, settings.given, vocabulary.size());
  auto model = made_model(world, settings, size);
  model->eval();
  folder.load(model);
  print_sample(world, model, vocabulary, settings.sampling, size.length, settings.seed);
  return 0;
}

int main(int argc, char** argv) try {
  ap::World world(argc, argv);
  Settings settings;
  CLI::App app("Trains GPT, which predicts what follows in a text, on one process or on all ranks of mpiexec.");
  command_line::add_options(app, settings);
  add_own_options(app, settings);
  if (const auto status = command_line::parse(app, settings, world, argc, argv)) return *status;
  if (settings.learning_rate == 0) settings.learning_rate = kSizes.at(settings.size).learning_rate;
  if (!settings.write_tokens.empty()) {
    if (world.rank() == 0) write_corpus(read_corpus(settings), settings.write_tokens);
    return 0;
  }
  return app.count("--sample") > 0 ? sample(world, settings) : train(world, settings);
} catch (const ap::PlanOnly&) {
  return 0;
} catch (const std::exception& error) {
  std::cerr << "gpt: " << error.what() << std::endl;
  return 1;
}
