#include "leftovers.hpp"

#include <charconv>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <thread>

#include <sys/stat.h>
#include <unistd.h>

#include <autopar/core/error.hpp>
#include <autopar/io/snapshot_folder.hpp>
#include <autopar/io/supervision.hpp>

namespace autopar::tool {

namespace fs = std::filesystem;

namespace {

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool is_own(const fs::path& path, mode_t kind) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && (status.st_mode & S_IFMT) == kind && status.st_uid == ::geteuid();
}

/// What an environment, as /proc has it, says of the job and of the rank.
struct JobWords {
  std::vector<std::string> told;
  std::optional<int> rank;

  explicit JobWords(const std::string& environment) {
    std::istringstream entries(environment);
    for (std::string entry; std::getline(entries, entry, '\0');) {
      const auto value = entry.find('=') + 1;
      const auto name = entry.substr(0, value);
      if (name == std::string(kSupervisionVariable) + "=") told.push_back(entry);
      if (name != "PMI_RANK=" && name != "OMPI_COMM_WORLD_RANK=") continue;
      int number = 0;
      const auto [end, error] = std::from_chars(entry.data() + value, entry.data() + entry.size(), number);
      if (error == std::errc() && end == entry.data() + entry.size()) rank = number;
    }
  }

  [[nodiscard]] bool are_of(const std::string& job) const {
    try {
      const auto read = supervision(told);
      return read && read->job == job;
    } catch (const Error&) {
      return false;  // not of this program's making
    }
  }
};

/// 0: it is gone. The second value of its line is a name in brackets, which may hold anything.
::pid_t parent_of(const fs::path& process) {
  const auto line = content_of(process / "stat");
  const auto name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream values(line.substr(name_end + 1));
  std::string state;
  ::pid_t parent = 0;
  return values >> state >> parent ? parent : 0;
}

}  // namespace

std::vector<JobProcess> processes_of(const std::string& job, const fs::path& proc) {
  std::vector<JobProcess> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(proc, error)) {
    const auto name = entry.path().filename().string();
    ::pid_t process = 0;
    const auto [end, problem] = std::from_chars(name.data(), name.data() + name.size(), process);
    if (problem != std::errc() || end != name.data() + name.size() || process == ::getpid()) continue;
    if (!is_own(entry.path(), S_IFDIR)) continue;
    const JobWords words(content_of(entry.path() / "environ"));
    if (words.are_of(job)) found.push_back({process, parent_of(entry.path()), words.rank});
  }
  return found;
}

std::vector<JobProcess> kill_processes_of(const std::string& job, double limit) {
  constexpr std::chrono::milliseconds kPause(50);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit);
  auto left = processes_of(job);
  while (!left.empty()) {
    for (const auto& each : left) ::kill(each.process, SIGKILL);
    if (std::chrono::steady_clock::now() >= end) break;
    std::this_thread::sleep_for(kPause);
    left = processes_of(job);
  }
  return left;
}

SnapshotFolder::SnapshotFolder(fs::path path) : path_(std::move(path)) {
  remove_stale_snapshots(path_);
  if (make_private_folder(path_)) own_snapshot_folder(path_);
}

SnapshotFolder::~SnapshotFolder() {
  std::error_code ignored;
  if (is_own(path_, S_IFDIR)) fs::remove_all(path_, ignored);
}

}  // namespace autopar::tool
