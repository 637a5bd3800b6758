// BERT's pretraining: hidden tokens are guessed, and whether a text follows another, on any number of ranks.
//
//   make_pretraining_data /usr/share/cmake-3.25/Help --format prose --vocab-size 8000 --out data
//   mpiexec -n 4 bert_pretraining --data data --out run                     a small BERT, in minutes
//   mpiexec -n 4 bert_pretraining --out run --resume --steps 2000           goes on
//   bert_pretraining --config bert-4.9b.json --batch 64 --plan-only --cluster examples/clusters/v100-32x8.toml

#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <autopar/autopar.hpp>
#include <autopar/io/file.hpp>
#include <autopar/training/interrupt.hpp>
#include <autopar/training/log.hpp>
#include <autopar/training/memory.hpp>
#include <autopar/training/parameter_groups.hpp>
#include <autopar/training/peak_flops.hpp>
#include <autopar/training/run_folder.hpp>

#include "batches.hpp"
#include "bert_data/wordpiece.hpp"
#include "command_line/settings.hpp"
#include "config.hpp"
#include "models/bert.hpp"

namespace ap = autopar;
namespace training = ap::training;
using Model = ap::AutoParallel<models::BertForPreTraining>;
using models::BertForPreTrainingImpl;

struct Settings : command_line::Settings {
  std::string config, data, optimizer = "lamb";
  std::string load_weights, init_from, export_to;
  bool phase2 = false;
  std::int64_t validate_every = 200, validation_samples = 2000;
  std::int64_t length = 128, predictions = 20;  ///< of plans without data
};

void add_own_options(CLI::App& app, Settings& settings) {
  const auto model = "The model";
  app.add_option(
         "--config", settings.config,
         "BERT's JSON file (hidden_size, num_hidden_layers, …); without one 2 layers of 128 with the vocabulary "
         "of --data")
      ->envname("BERT_CONFIG")
      ->check(CLI::ExistingFile)
      ->group(model);
  app.add_option("--load-weights", settings.load_weights,
                 "start with those of a .safetensors file, named as Hugging Face's BertForPreTraining")
      ->group(model)
      ->configurable(false);
  app.add_option("--init-from", settings.init_from,
                 "start with the weights of another run's checkpoint (RUN/step-00001000), with a new optimizer")
      ->group(model)
      ->configurable(false);
  app.add_flag("--phase2", settings.phase2,
               "with --init-from: its optimizer's state as well; steps, learning rate and data begin anew")
      ->group(model)
      ->configurable(false);
  app.add_option("--export", settings.export_to, "write the weights there at the end, as --load-weights reads them")
      ->group(model)
      ->configurable(false);
  app.add_option("--optimizer", settings.optimizer)->check(CLI::IsMember({"lamb", "adamw"}))->group(model);
  const auto data = "The data";
  app.add_option("--data", settings.data,
                 "a folder with shards *training*.hdf5, and *validation*.hdf5 if there are any, as "
                 "make_pretraining_data and NVIDIA's scripts write them")
      ->group(data);
  app.add_option("--validate-every", settings.validate_every, "steps")->check(CLI::PositiveNumber)->group(data);
  app.add_option("--validation-samples", settings.validation_samples, "at most")
      ->check(CLI::PositiveNumber)
      ->group(data);
  app.add_option("--seq-length", settings.length, "of a plan without --data")->check(CLI::PositiveNumber)->group(data);
  app.add_option("--max-predictions", settings.predictions, "of a plan without --data")
      ->check(CLI::PositiveNumber)
      ->group(data);
}

/// Of the file, or small: as BERT-tiny (Turc et al. 2019).
models::BertConfig config_of(const Settings& settings) {
  if (!settings.config.empty()) return parse_bert_config(ap::read_text_file(settings.config), settings.config);
  models::BertConfig config;
  config.hidden_size = 128;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.intermediate_size = 512;
  const auto vocabulary = std::filesystem::path(settings.data) / "vocab.txt";
  if (!settings.data.empty() && std::filesystem::exists(vocabulary)) {
    constexpr std::int64_t kMultiple = 8;  // what tensor cores like
    config.vocab_size = (bert_data::Vocabulary::read(vocabulary).size() + kMultiple - 1) / kMultiple * kMultiple;
  }
  return config;
}

void require_consistent(const Settings& settings) {
  if (settings.data.empty() && !settings.options.plan_only) {
    throw ap::InvalidArgument("--data is missing: the folder of shards that make_pretraining_data writes");
  }
  if (settings.phase2 && settings.init_from.empty()) {
    throw ap::InvalidArgument("--phase2 goes on from a checkpoint of phase 1: name it with --init-from");
  }
  if (settings.resume && !(settings.init_from.empty() && settings.load_weights.empty())) {
    throw ap::InvalidArgument("--resume takes the weights of its own run: leave --init-from and --load-weights out");
  }
  if (!settings.init_from.empty() && !settings.load_weights.empty()) {
    throw ap::InvalidArgument("--init-from and --load-weights both bring weights: leave one out");
  }
}

void require_room(const models::BertConfig& config, std::int64_t length) {
  if (length <= config.max_position_embeddings) return;
  throw ap::InvalidArgument("samples of " + std::to_string(length) +
                            " tokens have no room in a model of max_position_embeddings " +
                            std::to_string(config.max_position_embeddings));
}

Model made_model(ap::World& world, const Settings& settings, const models::BertConfig& config) {
  torch::manual_seed(settings.seed);
  const auto make = [&] {
    models::BertForPreTraining net(config);
    if (settings.fp64) net->to(torch::kDouble);
    return net;
  };
  return {world, make, settings.options};
}

/// Weights decay, biases and norms do not.
std::unique_ptr<torch::optim::Optimizer> made_optimizer(const Settings& settings,
                                                        const std::vector<at::Tensor>& parameters) {
  const auto made = [&](auto options, auto* optimizer) -> std::unique_ptr<torch::optim::Optimizer> {
    options.weight_decay(settings.weight_decay).eps(1e-6);
    return std::make_unique<std::remove_pointer_t<decltype(optimizer)>>(training::decayed_and_not(parameters, options),
                                                                        options);
  };
  if (settings.optimizer == "lamb")
    return made(ap::optim::LAMBOptions(settings.learning_rate), static_cast<ap::optim::LAMB*>(nullptr));
  return made(ap::optim::AdamWOptions(settings.learning_rate), static_cast<ap::optim::AdamW*>(nullptr));
}

/// What a checkpoint brought of it gives way to what this start was told.
void set_weight_decay(const Settings& settings, torch::optim::Optimizer& optimizer) {
  const auto set = [&](auto* kind) {
    double decay = settings.weight_decay;
    for (auto& group : optimizer.param_groups()) {
      static_cast<std::remove_pointer_t<decltype(kind)>&>(group.options()).weight_decay(std::exchange(decay, 0));
    }
  };
  if (settings.optimizer == "lamb")
    set(static_cast<ap::optim::LAMBOptions*>(nullptr));
  else
    set(static_cast<ap::optim::AdamWOptions*>(nullptr));
}

/// Where the run stands: at its newest checkpoint, or at the start with what --init-from and --load-weights bring.
training::Place start(const Settings& settings, training::RunFolder& folder, Model& model,
                      torch::optim::Optimizer& optimizer) {
  const auto place = folder.load(model, optimizer);
  if (!settings.load_weights.empty()) {
    model->load(settings.load_weights);
  } else if (settings.phase2) {
    model->load(settings.init_from, optimizer);
  } else if (!settings.init_from.empty()) {
    model->load(settings.init_from);
  }
  set_weight_decay(settings, optimizer);
  return place;
}

at::Tensor step(const Settings& settings, Model& model, torch::optim::Optimizer& optimizer, BertBatches& batches) {
  optimizer.zero_grad();
  at::Tensor values;  // of the loss and its two parts
  for (std::int64_t call = 1; call <= settings.accumulate; ++call) {
    std::optional<ap::NoSyncGuard> until_last;
    if (call < settings.accumulate) until_last.emplace(model->no_sync());
    const auto batch = batches.next(settings.batch / settings.accumulate);
    const auto losses =
        model(batch.input_ids, batch.segment_ids, batch.input_mask, batch.positions, batch.labels, batch.next_sentence);
    (losses.loss / settings.accumulate).backward();
    const auto part = torch::stack({losses.loss.detach(), losses.masked_lm, losses.next_sentence});
    values = values.defined() ? values + part : part;
  }
  if (settings.clip > 0) model->clip_grad_norm_(settings.clip);
  optimizer.step();
  return values / settings.accumulate;
}

/// Loss, and shares of right answers, over held-out samples.
training::Values validation(const Settings& settings, Model& model, BertBatches& batches) {
  const torch::NoGradGuard no_grad;
  model->eval();
  batches.reader().seek(0);
  const auto total = std::min(settings.validation_samples, batches.reader().rows());
  double loss = 0, masked = 0, masked_right = 0, next_right = 0;
  for (std::int64_t seen = 0; seen < total;) {
    const auto samples = std::min(settings.batch / settings.accumulate, total - seen);
    const auto batch = batches.next(samples);
    const auto answers = model->call(&BertForPreTrainingImpl::answers, batch.input_ids, batch.segment_ids,
                                     batch.input_mask, batch.positions, batch.labels, batch.next_sentence);
    loss += answers.loss.item<double>() * static_cast<double>(samples);
    masked += answers.masked.item<double>();
    masked_right += answers.masked_right.item<double>();
    next_right += answers.next_right.item<double>();
    seen += samples;
  }
  model->train();
  const auto samples = static_cast<double>(total);
  return {{"validation_loss", loss / samples},
          {"validation_mlm_accuracy", masked_right / masked},
          {"validation_nsp_accuracy", next_right / samples}};
}

training::Work work_of(const ap::World& world, const Settings& settings, const models::BertConfig& config,
                       const bert_data::PretrainingReader& reader) {
  const double flops = models::bert_flops(config, reader.length(), reader.predictions());
  training::Work work{"sequences", settings.batch, flops * static_cast<double>(settings.batch)};
  const auto device = ap::device(world);
  if (device.is_cuda())
    work.peak_flops = training::peak_flops(ap::describe_cluster(world, device).device.name, settings.options.precision);
  return work;
}

/// The loop. @return the program's exit status
int run(ap::World& world, const Settings& settings, Model& model, torch::optim::Optimizer& optimizer,
        BertBatches& batches, std::optional<BertBatches>& held_out, training::RunFolder& folder, training::Log& log,
        training::Place place) {
  const auto device = ap::device(world);
  training::Interrupt interrupt(world);
  while (place.step < settings.steps && !interrupt.is_asked()) {
    const double rate = settings.rate(place.step);
    training::set_learning_rate(optimizer, rate);
    const auto losses = step(settings, model, optimizer, batches);
    ++place.step;
    place.taken += settings.batch;

    if (log.is_due(place.step)) {
      const auto value = [&](int i) { return losses[i].item<double>(); };
      log.step(place.step, {{"loss", value(0)}, {"mlm", value(1)}, {"nsp", value(2)}, {"lr", rate}},
               training::peak_memory(device));
    }
    const bool is_last = place.step == settings.steps;
    if (held_out && (place.step % settings.validate_every == 0 || is_last))
      log.write(place.step, validation(settings, model, *held_out));
    if (place.step % settings.save_every == 0 || is_last) folder.save(place, model, optimizer);
  }
  if (interrupt.exit_status() == 0) return 0;
  folder.save(place, model, optimizer);
  log.say("interrupted after step " + std::to_string(place.step) +
          (folder.is_kept() ? ", which is saved: --resume goes on" : ", and nothing is kept, as there is no --out"));
  return interrupt.exit_status();
}

int train(ap::World& world, const Settings& settings, const models::BertConfig& config) {
  training::RunFolder folder(world, settings.folder());
  const auto batches_of = [&](const char* part, bool in_order) {
    const bert_data::ShardLimits limits{config.vocab_size, config.type_vocab_size};
    return BertBatches(world, ap::device(world), {settings.data, part, limits, settings.seed, in_order});
  };
  auto batches = batches_of("training", false);
  const auto& reader = batches.reader();
  require_room(config, reader.length());
  std::optional<BertBatches> held_out;
  if (!bert_data::shards_in(settings.data, "validation").empty()) held_out.emplace(batches_of("validation", true));

  auto model = made_model(world, settings, config);
  const auto optimizer = made_optimizer(settings, model->parameters());
  model->attach(*optimizer);
  const auto first = batches.next(settings.batch / settings.accumulate);
  model->prepare(first.input_ids, first.segment_ids, first.input_mask, first.positions, first.labels,
                 first.next_sentence);
  const auto place = start(settings, folder, model, *optimizer);
  batches.reader().seek(place.taken);
  training::Log log(world, folder.path(), settings.log(work_of(world, settings, config, reader)), place.step);
  if (world.rank() == 0) {
    std::cout << model->plan() << model->parameter_count() << " parameters; " << reader.rows() << " samples of "
              << reader.length() << " tokens, " << (held_out ? held_out->reader().rows() : 0) << " held out"
              << std::endl;
  }
  const int status = run(world, settings, model, *optimizer, batches, held_out, folder, log, place);
  if (status == 0 && !settings.export_to.empty())
    model->export_weights(settings.export_to, torch::kFloat);  // as Hugging Face's models have them
  return status;
}

/// Prints the plan of a batch as the data have it, or as --seq-length and --max-predictions say.
int plan(ap::World& world, const Settings& settings, const models::BertConfig& config) {
  auto length = settings.length, predictions = settings.predictions;
  if (!settings.data.empty()) {
    const bert_data::PretrainingReader reader({.folder = settings.data});
    length = reader.length();
    predictions = reader.predictions();
  }
  require_room(config, length);
  auto model = made_model(world, settings, config);
  const auto optimizer = made_optimizer(settings, model->parameters());
  model->attach(*optimizer);
  const auto batch = BertBatch::of_sizes(settings.batch / settings.accumulate / world.size(), length, predictions);
  const auto begin = std::chrono::steady_clock::now();
  model->prepare(batch.input_ids, batch.segment_ids, batch.input_mask, batch.positions, batch.labels,
                 batch.next_sentence);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  if (world.rank() == 0) {
    std::cout << model->parameter_count() << " parameters, " << length << " tokens, " << predictions
              << " predictions; captured and planned in " << spent.count() << " s\n"
              << model->plan() << std::endl;
  }
  return 0;
}

int main(int argc, char** argv) try {
  ap::World world(argc, argv);
  Settings settings;
  settings.batch = 64;
  settings.decay = "root";
  settings.lowest_rate = 0;
  settings.weight_decay = 0.01;
  CLI::App app("Pretrains BERT on masked words and next sentences, on one process or on all ranks of mpiexec.");
  command_line::add_options(app, settings);
  add_own_options(app, settings);
  if (const auto status = command_line::parse(app, settings, world, argc, argv)) return *status;
  const auto config = config_of(settings);
  require_consistent(settings);
  return settings.options.plan_only ? plan(world, settings, config) : train(world, settings, config);
} catch (const ap::PlanOnly&) {
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bert_pretraining: " << error.what() << std::endl;
  return 1;
}
