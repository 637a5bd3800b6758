// Learns to go on with a text: GPT on bytes or on a vocabulary of its own, an ordinary training loop on any number of
// ranks.
//
//   mpiexec -n 4 gpt --out run --steps 500                 the licences that every Debian has, in minutes
//   mpiexec -n 4 gpt --out run --resume --steps 1000       goes on
//   gpt --out run --sample "You may "                      what it has learnt
//   gpt --size 1.3b --batch 64 --precision bf16 --plan-only --cluster examples/clusters/h100x8.toml

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <autopar/autopar.hpp>
#include <autopar/io/file.hpp>

#include "models/transformer.hpp"
#include "sampling.hpp"
#include "size.hpp"
#include "text/text_files.hpp"
#include "text/vocabulary.hpp"
#include "training/from_first.hpp"
#include "training/interrupt.hpp"
#include "training/log.hpp"
#include "training/memory.hpp"
#include "training/parameter_groups.hpp"
#include "training/peak_flops.hpp"
#include "training/run_folder.hpp"
#include "training/settings.hpp"
#include "windows.hpp"

namespace ap = autopar;

struct Settings : training::Settings {
  std::vector<std::string> data{"/usr/share/common-licenses"};
  std::string vocabulary = "bytes";
  std::string size = "tiny";
  models::TransformerSize given{.words = 0, .width = 0, .layers = 0, .heads = 0, .length = 0};
  std::int64_t held_out = 256, validate_every = 100;
  Sampling sampling;
};

void add_own_options(CLI::App& app, Settings& settings) {
  std::vector<std::string> names;
  for (const auto& [name, size] : kSizes) names.push_back(name);
  auto& given = settings.given;
  const auto model = "The model";
  app.add_option("--data", settings.data, "texts: files, and folders with all files within")->group(model);
  app.add_option("--vocabulary", settings.vocabulary,
                 "bytes; a number: so many of the text's commonest pieces (BPE); a file: those of an earlier run")
      ->group(model);
  app.add_option("--size", settings.size)->check(CLI::IsMember(names))->group(model);
  const auto add_size = [&](const char* name, std::int64_t& member, const char* text) {
    app.add_option(name, member, text)->check(CLI::PositiveNumber)->default_str("as the size")->group(model);
  };
  add_size("--layers", given.layers, "");
  add_size("--width", given.width, "");
  add_size("--heads", given.heads, "");
  add_size("--length", given.length, "tokens of a sample");
  add_size("--words", given.words, "of the table; what the vocabulary does not have is never used");
  app.add_flag("--rotary", given.rotary, "rotary positions instead of a table")->group(model);
  app.add_flag("--tied", given.tied, "the head is the table of words")->group(model);
  app.add_option("--dropout", given.dropout)->check(CLI::Range(0.0, 1.0))->group(model);
  app.add_option("--held-out", settings.held_out, "samples for validation, at most a tenth")->group(model);
  app.add_option("--validate-every", settings.validate_every, "steps")->check(CLI::PositiveNumber)->group(model);
  const auto sample = "Sampling";
  auto& sampling = settings.sampling;
  app.add_option("--sample", sampling.prompt, "go on with this text, by the newest checkpoint in --out; no training")
      ->each([&](const std::string&) { settings.resume = true; })
      ->group(sample)
      ->configurable(false);
  app.add_option("--sample-length", sampling.length, "tokens")->group(sample)->configurable(false);
  app.add_option("--temperature", sampling.temperature, "0: always the likeliest token")
      ->check(CLI::NonNegativeNumber)
      ->group(sample)
      ->configurable(false);
  app.add_option("--top-k", sampling.top_k, "draw among so many; 0: among all")
      ->check(CLI::NonNegativeNumber)
      ->group(sample)
      ->configurable(false);
}

/// That of the run, or one that is made of the text.
Vocabulary vocabulary_of(ap::World& world, const Settings& settings, const std::string& text) {
  const auto read = [&](const std::filesystem::path& file) {
    return Vocabulary::parsed(training::from_first(world, "vocabulary", [&] { return ap::read_text_file(file); }));
  };
  if (settings.resume) return read(std::filesystem::path(settings.out) / "vocabulary.txt");
  if (settings.vocabulary == "bytes") return {};
  const bool is_number = settings.vocabulary.find_first_not_of("0123456789") == std::string::npos;
  return is_number ? Vocabulary::learnt(text, std::stoll(settings.vocabulary)) : read(settings.vocabulary);
}

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
  const auto content = read_texts({settings.data.begin(), settings.data.end()});
  const auto vocabulary = vocabulary_of(world, settings, content);
  const auto size = size_of(settings.size, settings.given, vocabulary.size());
  Windows windows(vocabulary.encoded(content), size.length, settings.held_out, settings.seed,
                  {world.rank(), world.size(), device});
  auto model = made_model(world, settings, size);
  ap::optim::AdamW optimizer(training::decayed_and_not(
      model->parameters(),
      ap::optim::AdamWOptions(settings.learning_rate).betas({0.9, 0.95}).weight_decay(settings.weight_decay)));
  model->attach(optimizer);
  const auto samples = settings.batch / settings.accumulate;  // of a call
  const auto [first_text, first_next] = windows.training(0, samples);
  model->prepare(first_text, first_next);  // plans; with --plan-only it ends here

  training::RunFolder folder(world, settings);
  auto place = folder.load(model, optimizer);
  training::Work work{"tokens", settings.batch * size.length,
                      flops_of_sample(size) * static_cast<double>(settings.batch)};
  if (device.is_cuda())
    work.peak_flops = training::peak_flops(ap::describe_cluster(world, device).device.name, settings.options.precision);
  training::Log log(world, settings, folder, work, place.step);
  if (world.rank() == 0) {
    std::cout << model->plan() << model->parameter_count() << " parameters, " << vocabulary.size() << " words, "
              << windows.training_size() << " samples, " << windows.validation_size() << " held out" << std::endl;
    if (folder.is_kept()) ap::write_text_file(folder.path() / "vocabulary.txt", vocabulary.file_text());
  }

  training::Interrupt interrupt(world);
  while (place.step < settings.steps && !interrupt.is_asked()) {
    const double rate = settings.rate(place.step);
    for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
    optimizer.zero_grad();
    auto loss = torch::zeros({}, torch::TensorOptions(device).dtype(settings.fp64 ? torch::kDouble : torch::kFloat));
    for (std::int64_t call = 0; call < settings.accumulate; ++call) {
      const auto [text, next] = windows.training(place.step * settings.batch + call * samples, samples);
      auto part = model(text, next) / settings.accumulate;
      part.backward();
      loss += part.detach();
    }
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
  const auto vocabulary = vocabulary_of(world, settings, {});
  const auto size = size_of(settings.size, settings.given, vocabulary.size());
  auto model = made_model(world, settings, size);
  model->eval();
  training::RunFolder(world, settings).load(model);
  print_sample(world, model, vocabulary, settings.sampling, size.length, settings.seed);
  return 0;
}

int main(int argc, char** argv) try {
  ap::World world(argc, argv);
  Settings settings;
  CLI::App app("Trains GPT, which predicts what follows in a text, on one process or on all ranks of mpiexec.");
  training::add_options(app, settings);
  add_own_options(app, settings);
  if (const auto status = training::parse(app, settings, world, argc, argv)) return *status;
  return app.count("--sample") > 0 ? sample(world, settings) : train(world, settings);
} catch (const ap::PlanOnly&) {
  return 0;
} catch (const std::exception& error) {
  std::cerr << "gpt: " << error.what() << std::endl;
  return 1;
}
