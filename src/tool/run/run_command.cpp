#include "run_command.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include <autopar/core/error.hpp>
#include <autopar/core/printable.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/folder_lock.hpp>

#include "host_list.hpp"
#include "launcher.hpp"
#include "process.hpp"
#include "questions.hpp"
#include "supervisor.hpp"

namespace autopar::tool {

namespace {

bool is_program(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

/// Whether a shell would find it; launchers also look into the working directory.
bool is_found(const std::string& program, bool also_here) {
  if (program.find('/') != std::string::npos) return is_program(program);
  if (also_here && is_program("./" + program)) return true;
  for (const auto& variable : inherited_environment()) {
    if (!variable.starts_with("PATH=")) continue;
    std::istringstream folders(variable.substr(5));
    for (std::string folder; std::getline(folders, folder, ':');) {
      if (is_program((folder.empty() ? "." : folder) + "/" + program)) return true;
    }
  }
  return false;
}

void require_sane(const RunSettings& settings) {
  const auto require = [](const std::string& option, int value, int least, int most) {
    if (value >= least && value <= most) return;
    throw InvalidArgument(option + ' ' + std::to_string(value) + " is not from " + std::to_string(least) + " to " +
                          std::to_string(most));
  };
  require("-n", settings.ranks, 1, kMostSlots);
  require("--min-ranks", settings.fewest(), 1, settings.ranks);
  require("--spares", settings.spares, 0, kMostSlots);
  require("--max-restarts", settings.max_restarts, 0, kMostSlots);
  if (settings.spares > 0 && settings.hostfile.empty())
    throw InvalidArgument("--spares needs a --hostfile: spares are slots of it");
  if (settings.program.empty())
    throw InvalidArgument("the program is missing; the order is 'autopar run -n N -- ./train ARGUMENTS'");
  if (!is_found(settings.program.front(), true))
    throw InvalidArgument("'" + settings.program.front() + "' is no program that can be run");
  if (settings.folder.empty() || printable_line(settings.folder) != settings.folder)
    throw InvalidArgument("--folder '" + settings.folder + "' is no name of printable characters");
}

/// The first N + S slots.
std::vector<HostSlots> hosts_of(const RunSettings& settings) {
  if (settings.hostfile.empty()) return {};
  constexpr std::int64_t kMostBytes = 16 << 20;
  const auto hosts = parse_hostfile(read_text_file(settings.hostfile, Bytes(kMostBytes)), settings.hostfile);
  const int slots = slots_of(hosts), needed = settings.ranks + settings.spares;
  if (slots < needed) {
    throw ConfigError("has " + std::to_string(slots) + " slots for -n " + std::to_string(settings.ranks) +
                          (settings.spares == 0 ? "" : " and --spares " + std::to_string(settings.spares)),
                      settings.hostfile);
  }
  return first_slots(hosts, needed);
}

Launcher launcher_of(const RunSettings& settings, Signals& signals) {
  const auto& program = settings.mpiexec;
  if (!is_found(program, false))
    throw InvalidArgument("'" + program + "' is no program that can be run; --mpiexec names MPI's own");
  const auto answer = answers_of({{program, "--version"}}, inherited_environment(), signals).front();
  const auto kind = launcher_kind(answer.output + answer.complaints);
  if (!kind) {
    const auto said = answer.output + answer.complaints;
    throw InvalidArgument("'" + program + " --version' says neither MPICH (HYDRA) nor Open MPI, but '" +
                          said.substr(0, said.find('\n')) + "'; --mpiexec names another");
  }
  return {*kind, program, settings.mpiexec_arguments};
}

}  // namespace

int run_supervised(const RunSettings& settings, const Console& console) {
  require_sane(settings);
  auto hosts = hosts_of(settings);
  Signals signals;
  auto launcher = launcher_of(settings, signals);
  const FolderLock lock(settings.folder);
  return Supervisor(settings, std::move(launcher), std::move(hosts), console, signals).run();
}

}  // namespace autopar::tool
