#include "tool.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>

#include <autopar/core/error.hpp>
#include <autopar/core/printable.hpp>
#include <autopar/io/config.hpp>
#include <autopar/version.hpp>

#include "commands.hpp"
#include "file_kinds.hpp"
#include "run/run_command.hpp"

namespace autopar::tool {

namespace {

constexpr const char* kStatuses =
    "Exit status: 0 done; 1 check rejects the plan, or diff finds a difference; 2 bad arguments or files, or no plan "
    "fits, or the output cannot be written. Errors are one line on the error stream.";

constexpr const char* kRunHelp =
    R"(Starts the program under mpiexec, shows its output as it comes, and starts it again when a rank has died, stopped or
failed. The program goes on by itself from its newest complete checkpoint, as training::Run does.

  - A fault that comes again at the same step ends the run, and so do --max-restarts restarts.
  - With --hostfile the first N slots are used, and S more are spares. A host that does not answer, or has lost a device,
    is left out: spares step in, or fewer ranks run, down to M. Lines: 'host', 'host:4', 'host slots=4', '#' comments.
  - SIGINT, SIGTERM and SIGUSR1 go on to the program, which saves and ends; the same command goes on later. SIGHUP goes on
    as SIGTERM. A third signal kills.
  - DIR has starts.jsonl (a line for each start), start-0001.log (its last 200 lines), hosts and step.

  autopar run -n 4 -- ./train --data cifar10
  autopar run -n 16 --min-ranks 8 --spares 8 --hostfile hosts -- ./train

Exit status: 0 done; the program's, 128 + the signal if it was killed, 1 if it is unclear; 130, 143 or 138 if it was
asked to end and has saved; 2 bad arguments or files, and nothing was started: one line on the error stream says why.)";

std::string one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

void add_force(CLI::App& command, bool& force) {
  command.add_flag("--force", force, "replace files that autopar did not write, or that are of another model");
}

void add_costs(CLI::App& command, std::string& costs) {
  command.add_option("--costs", costs,
                     "JSON, written by cost_file of a training program: operators and links as measured");
}

/// Options that become settings of `ap::Options`; checked and named by the same code as autopar.toml.
void add_settings(CLI::App& command, ProblemArguments& problem) {
  const std::vector<std::pair<std::string, std::string>> keys{
      {"stages", "pipeline stages"},
      {"replicas", "of each stage, e.g. 2,1; one number for all"},
      {"microbatches", "of a step"},
      {"min-microbatches", "fewest that are tried"},
      {"max-microbatches", "most that are tried"},
      {"schedule", "auto | gpipe | 1f1b | interleaved | zb-h1 | zb-v | synth"},
      {"tensor-parallel", "auto | shards of each replica"},
      {"zero", "level"},
      {"recompute", "auto | none | full | names of modules"},
      {"device-memory", "of a rank, e.g. 16GiB, instead of the cluster's"},
      {"memory-margin", "share of it that stays free"},
      {"optimizer-state-factor", "state bytes / parameter bytes: 0 for SGD, 2 for Adam"}};
  for (const auto& [key, meaning] : keys) {
    command.add_option_function<std::string>(
        "--" + key, [&problem, key = key](const std::string& text) { problem.settings.push_back(key + "=" + text); },
        meaning);
  }
  command.add_option_function<std::vector<std::string>>(
      "--set",
      [&problem](const std::vector<std::string>& texts) {
        problem.settings.insert(problem.settings.end(), texts.begin(), texts.end());
      },
      "KEY=VALUE, any other option of autopar.toml");
  command.add_option("--options", problem.options_file, "autopar.toml; options on the command line override it");
  command.add_option("--world", problem.world, "ranks; default: all devices of the cluster")
      ->check(CLI::PositiveNumber);
  command.add_option("--devices", problem.devices, "a cluster of so many of these devices")->check(CLI::PositiveNumber);
  command.add_option("--batch", problem.batch, "samples of a step, all ranks together; default: 32 a rank")
      ->check(CLI::PositiveNumber);
  add_costs(command, problem.costs);
}

struct Commands {
  PlanArguments plan;
  ExplainArguments explain;
  CheckArguments check;
  SimulateArguments simulate;
  ReportArguments report;
  DiffArguments diff;
  TopArguments top;
  RunSettings run;
};

void add_plan(CLI::App& app, PlanArguments& arguments) {
  auto& command = *app.add_subcommand("plan", "plan a model, given by its profile, for a cluster");
  command.add_option("PROFILE", arguments.problem.profile, "JSON, written by profile_file of a training program")
      ->required();
  command.add_option("CLUSTER", arguments.problem.cluster, "TOML; see examples/clusters")->required();
  add_settings(command, arguments.problem);
  command.add_option("--out", arguments.out, "write the plan there");
  add_force(command, arguments.force);
  command.add_flag("--json", arguments.json, "print the plan as JSON instead of a table");
}

void add_explain(CLI::App& app, ExplainArguments& arguments) {
  auto& command = *app.add_subcommand(
      "explain", "why this plan, what binds, and what one more device, 10 % more memory or faster links would buy");
  command.add_option("FILES", arguments.files, "PLAN.json, or PROFILE.json CLUSTER.toml, or all three")
      ->required()
      ->expected(1, 3);
  add_settings(command, arguments.problem);
  command.add_flag("--json", arguments.json, "print JSON");
}

void add_check(CLI::App& app, CheckArguments& arguments) {
  auto& command = *app.add_subcommand(
      "check",
      "work out a plan's step, memory, lower bound and gap again, with code of its own; status 1 if they differ");
  command.add_option("PLAN", arguments.plan, "JSON")->required();
  command.add_option("PROFILE", arguments.profile, "JSON; or, without CLUSTER, an instance of benchmarks/plan_quality")
      ->required();
  command.add_option("CLUSTER", arguments.cluster, "TOML");
  add_costs(command, arguments.costs);
  command.add_option("--devices", arguments.devices, "of an instance")->check(CLI::Range(1, 1 << 30));
  command.add_option("--memory", arguments.memory, "of an instance, bytes")->check(CLI::PositiveNumber);
  command.add_option("--bandwidth", arguments.bandwidth, "of an instance, bytes/s")->check(CLI::PositiveNumber);
  command.add_option("--lower-bound", arguments.lower_bound, "of an instance: the claim to check, s")
      ->check(CLI::NonNegativeNumber);
  command.add_flag("--json", arguments.json, "print JSON");
}

void add_simulate(CLI::App& app, SimulateArguments& arguments) {
  auto& command = *app.add_subcommand("simulate", "the predicted timeline of one step, rank by rank");
  command.add_option("PLAN", arguments.plan, "JSON")->required();
  command.add_option("PROFILE", arguments.profile, "JSON")->required();
  command.add_option("CLUSTER", arguments.cluster, "TOML")->required();
  add_costs(command, arguments.costs);
  command.add_option("--trace", arguments.trace, "write a Chrome trace there (chrome://tracing, Perfetto)");
  add_force(command, arguments.force);
  command.add_flag("--json", arguments.json, "print JSON");
}

void add_report(CLI::App& app, ReportArguments& arguments) {
  auto& command = *app.add_subcommand(
      "report", "a plan as one HTML page: the model over the ranks, the step's timeline and memory, advice");
  command.add_option("PLAN,--plan", arguments.plan, "JSON")->required();
  command.add_option("PROFILE,--profile", arguments.profile, "JSON; without it the page has no model");
  command.add_option("CLUSTER,--cluster", arguments.cluster, "TOML; without it the page has nothing that takes time");
  command.add_option("--out,--output", arguments.out, "write the page there; it needs no network")->required();
  command.add_flag("--quick", arguments.quick, "only advice that takes no search");
  add_costs(command, arguments.problem.costs);
  add_force(command, arguments.force);
}

void add_diff(CLI::App& app, DiffArguments& arguments) {
  auto& command = *app.add_subcommand("diff", "what differs between two plans; status 1 if anything does");
  command.add_option("A", arguments.first, "a plan, JSON")->required();
  command.add_option("B", arguments.second, "a plan, JSON")->required();
  command.add_flag("--json", arguments.json, "print JSON");
}

void add_top(CLI::App& app, TopArguments& arguments) {
  auto& command = *app.add_subcommand("top", "how a run of autopar::training gets on: on a terminal again and again");
  command.add_option("RUN", arguments.run, "the folder of the run")->required();
  command.add_flag("--once", arguments.once, "show it once");
  command.add_option("--interval", arguments.interval, "seconds between looks")->check(CLI::Range(0.1, 3600.0));
}

void add_run(CLI::App& app, RunSettings& settings) {
  auto& command = *app.add_subcommand(
      "run",
      "start a program under mpiexec, and again when a rank is lost: autopar run -n N [OPTIONS] -- ./train ARGUMENTS");
  command.add_option("-n", settings.ranks, "N, ranks")->required();
  command.add_option("--min-ranks", settings.min_ranks,
                     "M, fewest ranks that go on when hosts or devices are gone; default: N");
  command.add_option("--spares", settings.spares, "S, slots of the hostfile that are unused at first");
  command.add_option("--hostfile", settings.hostfile, "hosts and their slots; default: this host");
  command.add_option("--max-restarts", settings.max_restarts, "after so many the run ends")->capture_default_str();
  command.add_option("--folder", settings.folder, "DIR, of this run alone: what became of each start")
      ->capture_default_str();
  command.add_flag("--allow-batch-change", settings.may_change_batch,
                   "with fewer ranks a program that feeds its own batch may go on with a smaller one");
  command.add_option("--mpiexec", settings.mpiexec, "MPICH's or Open MPI's")->capture_default_str();
  command.add_option("--mpiexec-arg", settings.mpiexec_arguments, "one more argument of mpiexec; may be repeated")
      ->allow_extra_args(false);
  command.footer(kRunHelp);
}

/// The words behind `--` are the program's own, and what follows --mpiexec-arg is no option of `run`.
std::vector<std::string> without_program(std::vector<std::string> words, RunSettings& settings) {
  if (words.empty() || words.front() != "run") return words;
  const auto end = std::ranges::find(words, "--");
  if (end != words.end()) settings.program.assign(end + 1, words.end());
  words.erase(end, words.end());
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] != "--mpiexec-arg") continue;
    words[i] += "=" + words[i + 1];
    words.erase(words.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  }
  return words;
}

/// The files of a command, in their order.
void require_kinds_of(const std::string& command, const Commands& commands) {
  const auto plan = [](const std::string& path, const char* name = "PLAN") { return FileArgument{name, "plan", path}; };
  const auto profile = [](const std::string& path) { return FileArgument{"PROFILE", "profile", path}; };
  const auto cluster = [](const std::string& path) { return FileArgument{"CLUSTER", "cluster", path}; };
  if (command == "plan") {
    const auto& problem = commands.plan.problem;
    require_kinds({profile(problem.profile), cluster(problem.cluster)}, "autopar plan PROFILE CLUSTER");
  } else if (command == "explain") {
    const auto& files = commands.explain.files;
    const std::string usage = "autopar explain [PLAN] PROFILE CLUSTER, or PLAN alone";
    if (files.size() == 1) require_kinds({plan(files[0])}, usage);
    if (files.size() == 2) require_kinds({profile(files[0]), cluster(files[1])}, usage);
    if (files.size() == 3) require_kinds({plan(files[0]), profile(files[1]), cluster(files[2])}, usage);
  } else if (command == "check") {
    const auto& check = commands.check;
    if (check.cluster.empty() && kind_of_file(check.profile) == "profile")
      throw InvalidArgument("CLUSTER is missing; the order is 'autopar check PLAN PROFILE CLUSTER'");
    if (!check.cluster.empty()) {
      require_kinds({plan(check.plan), profile(check.profile), cluster(check.cluster)},
                    "autopar check PLAN PROFILE CLUSTER");
    }
  } else if (command == "simulate") {
    const auto& simulate = commands.simulate;
    require_kinds({plan(simulate.plan), profile(simulate.profile), cluster(simulate.cluster)},
                  "autopar simulate PLAN PROFILE CLUSTER");
  } else if (command == "report") {
    const auto& report = commands.report;
    std::vector<FileArgument> files{plan(report.plan)};
    if (!report.profile.empty()) files.push_back(profile(report.profile));
    if (!report.cluster.empty()) files.push_back(cluster(report.cluster));
    require_kinds(files, "autopar report PLAN [PROFILE [CLUSTER]] --out PAGE");
  } else if (command == "diff") {
    require_kinds({plan(commands.diff.first, "A"), plan(commands.diff.second, "B")}, "autopar diff PLAN PLAN");
  }
}

/// What was not understood, with the nearest of what is known.
std::string refusal_of(const CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& words) {
  const auto like = [](const std::string& word, const std::vector<std::string>& known) {
    const auto nearest = nearest_word(word, known);
    return nearest.empty() ? "" : "; did you mean '" + nearest + "'?";
  };
  const auto used = app.get_subcommands();
  if (used.empty()) {
    if (words.empty()) return error.what();
    if (words.front().starts_with("-")) return "'" + words.front() + "' is no option, and a command comes first";
    std::vector<std::string> known;
    for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; }))
      known.push_back(command->get_name());
    return "'" + words.front() + "' is no command" + like(words.front(), known);
  }
  const auto remaining = used.front()->remaining();
  const bool lacks_program = used.front()->get_name() == "run" && std::ranges::find(words, "--") == words.end();
  if (lacks_program && !remaining.empty())
    return "the program and its arguments come behind '--': autopar run -n N -- ./train ARGUMENTS";
  const bool wants_page = used.front()->get_name() == "simulate" &&
                          std::ranges::any_of(remaining, [](const auto& word) { return word.starts_with("--html"); });
  if (wants_page) return "the page of --html is that of 'autopar report PLAN PROFILE CLUSTER --out PAGE.html'";
  const auto unknown = std::ranges::find_if(remaining, [](const auto& word) { return word.starts_with("--"); });
  if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::ExtrasError) || unknown == remaining.end())
    return error.what();
  std::vector<std::string> known;
  for (const auto* option : used.front()->get_options()) {
    for (const auto& name : option->get_lnames()) known.push_back("--" + name);
  }
  const auto word = unknown->substr(0, unknown->find('='));
  return "'" + word + "' is no option of it" + like(word, known);
}

/// What files say is shown only when nothing in it is left that a terminal would obey.
int run_command(const std::string& command, const Commands& commands, std::ostream& out, std::ostream& err) {
  std::ostringstream said, noted;
  const auto call = [&] {
    require_kinds_of(command, commands);
    if (command == "plan") return plan_command(commands.plan, said, noted);
    if (command == "explain") return explain_command(commands.explain, said, noted);
    if (command == "check") return check_command(commands.check, said);
    if (command == "simulate") return simulate_command(commands.simulate, said);
    if (command == "report") return report_command(commands.report, said);
    if (command == "top") return top_command(commands.top, said);
    if (command == "run") return run_supervised(commands.run);
    return diff_command(commands.diff, said);
  };
  int status = kTrouble;
  try {
    status = call();
  } catch (const Error& error) {
    noted << "autopar " << command << ": " << one_line(error.what()) << '\n';
  }
  err << printable(noted.str());
  out << printable(said.str());
  return status;
}

int parse_and_run(std::vector<std::string> arguments, std::ostream& out, std::ostream& err) {
  Commands commands;
  const auto words = arguments;
  arguments = without_program(std::move(arguments), commands.run);
  CLI::App app("Plans the training of a model on a cluster that need not be there, and keeps trainings running.",
               "autopar");
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  app.footer(kStatuses);
  add_plan(app, commands.plan);
  add_explain(app, commands.explain);
  add_check(app, commands.check);
  add_simulate(app, commands.simulate);
  add_report(app, commands.report);
  add_diff(app, commands.diff);
  add_top(app, commands.top);
  for (auto* command : app.get_subcommands({})) command->footer(kStatuses);
  add_run(app, commands.run);

  std::string name = "autopar";
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  try {
    app.parse(arguments);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked, out, err) == 0 ? kDone : kTrouble;
  } catch (const CLI::ParseError& error) {
    for (const auto* command : app.get_subcommands()) name += " " + command->get_name();
    err << name << ": " << printable_line(one_line(refusal_of(app, error, words))) << "; '" << name
        << " --help' shows what is known\n";
    return kTrouble;
  }
  return run_command(app.get_subcommands().front()->get_name(), commands, out, err);
}

}  // namespace

// Scripts go by the status: what did not arrive is not done.
int run(std::vector<std::string> arguments, std::ostream& out, std::ostream& err) {
  std::ostringstream text;
  const int status = parse_and_run(std::move(arguments), text, err);
  errno = 0;
  out << text.str();
  if (out.flush()) return status;
  err << "autopar: the output cannot be written: " << (errno != 0 ? std::strerror(errno) : "the stream fails") << '\n';
  return kTrouble;
}

}  // namespace autopar::tool
