#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <autopar/plan/options.hpp>
#include <autopar/runtime/world.hpp>
#include <autopar/training/log.hpp>
#include <autopar/training/run_folder.hpp>

namespace CLI {
class App;
}

namespace command_line {

/// What all long trainings can be told.
struct Settings {
  std::int64_t steps = 1000;    ///< of the optimizer, those of earlier starts included
  std::int64_t batch = 32;      ///< samples of a step, all ranks together
  std::int64_t accumulate = 1;  ///< calls that a step's samples come in
  double learning_rate = 1e-3;  ///< the highest
  std::int64_t warmup = 100;
  std::string decay = "cosine";
  double lowest_rate = 0.1;  ///< at the end, as a part of the highest
  double weight_decay = 0.1;
  double clip = 1;  ///< largest norm of all gradients; 0: as it is
  bool fp64 = false;
  std::uint64_t seed = 1;
  std::string out{};  ///< the run's folder; empty: nothing is kept
  std::int64_t save_every = 1000;
  std::int64_t keep = 3;  ///< checkpoints
  std::int64_t log_every = 10;
  bool resume = false;
  autopar::Options options{};
  std::string given{};  ///< what `parse` has read, as JSON: the run's folder keeps it

  [[nodiscard]] double rate(std::int64_t step) const;  ///< of a step, counted from 0
  [[nodiscard]] autopar::training::RunFolderOptions folder() const;
  [[nodiscard]] autopar::training::LogOptions log(const autopar::training::Work& work) const;
};

/// Adds the options of all programs, with the settings' values as defaults. Those of autopar itself that have none can
/// be given as AUTOPAR_* and in autopar.toml.
void add_options(CLI::App& app, Settings& settings);

/// Reads the command line; with --resume, what it does not say is as at the run's start (`settings.json` in --out).
/// With --plan-only for a --cluster, `batch` becomes what as many of its devices bring as there are ranks here.
/// Rank 0 speaks for all. Collective.
/// @return the program's exit status where it ends here: after --help, or a mistake
[[nodiscard]] std::optional<int> parse(CLI::App& app, Settings& settings, autopar::World& world, int argc, char** argv);

}  // namespace command_line
