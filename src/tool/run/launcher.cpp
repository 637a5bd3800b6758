#include "launcher.hpp"

#include <csignal>

#include <autopar/io/supervision.hpp>

namespace autopar::tool {

namespace {

void append(Command& command, const std::vector<std::string>& more) {
  command.insert(command.end(), more.begin(), more.end());
}

}  // namespace

std::optional<LauncherKind> launcher_kind(std::string_view version) {
  const auto says = [&](std::string_view text) { return version.find(text) != std::string_view::npos; };
  if (says("Open MPI") || says("OpenRTE") || says("PRRTE")) return LauncherKind::kOpenMpi;
  if (says("HYDRA") || says("Hydra") || says("Intel(R) MPI")) return LauncherKind::kHydra;
  return std::nullopt;
}

int first_signal(LauncherKind kind, int asked) { return kind == LauncherKind::kOpenMpi ? SIGUSR1 : asked; }

Command Launcher::job(int ranks, const std::string& hostfile, const Command& what) const {
  Command command{program};
  append(command, arguments);
  if (kind == LauncherKind::kOpenMpi) append(command, {"-x", kSupervisionVariable});  // Hydra hands all of them on
  if (!hostfile.empty()) append(command, {kind == LauncherKind::kOpenMpi ? "--hostfile" : "-f", hostfile});
  append(command, {"-n", std::to_string(ranks)});
  append(command, what);
  return command;
}

Command Launcher::on_host(const std::string& host, const Command& what) const {
  Command command{program};
  append(command, arguments);
  append(command, {kind == LauncherKind::kOpenMpi ? "--host" : "-hosts", host, "-n", "1"});
  append(command, what);
  return command;
}

}  // namespace autopar::tool
