#include "terminal.hpp"

#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include <sys/stat.h>
#include <unistd.h>

namespace autopar::training {

namespace {

struct Process {
  std::string name;
  pid_t parent = 0;
};

/// @source proc(5): pid (comm) state ppid …, where comm may have spaces and brackets
std::optional<Process> process_of(const std::filesystem::path& proc, pid_t process) {
  std::ifstream file(proc / std::to_string(process) / "stat");
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  const auto begin = text.find('('), end = text.rfind(')');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return std::nullopt;
  Process found{text.substr(begin + 1, end - begin - 1)};
  std::istringstream rest(text.substr(end + 1));
  std::string state;
  if (!(rest >> state >> found.parent)) return std::nullopt;
  return found;
}

bool is_launcher(std::string_view name) {
  for (const std::string_view known : {"mpiexec", "mpirun", "orterun", "prterun"}) {
    if (name.starts_with(known)) return true;  // also mpiexec.hydra
  }
  return false;
}

}  // namespace

std::string launcher_output(const std::filesystem::path& proc, pid_t process) {
  constexpr int kMostAncestors = 64;
  for (int i = 0; i < kMostAncestors && process > 0; ++i) {
    const auto found = process_of(proc, process);
    if (!found) return {};
    if (is_launcher(found->name)) {
      std::error_code error;
      return std::filesystem::read_symlink(proc / std::to_string(process) / "fd/1", error).string();
    }
    process = found->parent;
  }
  return {};
}

bool is_seen_on_terminal() {
  struct stat own {};
  if (::fstat(STDOUT_FILENO, &own) != 0 || S_ISREG(own.st_mode)) return false;
  const auto launcher = launcher_output("/proc", ::getpid());
  // Open MPI gives ranks a terminal of its own, so the launcher's output counts where there is a launcher.
  if (!launcher.empty()) return launcher.starts_with("/dev/pts/") || launcher.starts_with("/dev/tty");
  return ::isatty(STDOUT_FILENO) != 0;
}

}  // namespace autopar::training
