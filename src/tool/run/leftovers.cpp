#include "leftovers.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <autopar/core/error.hpp>
#include <autopar/io/regular_file.hpp>
#include <autopar/io/supervision.hpp>

#include "descriptor.hpp"

namespace autopar::tool {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSupervisorFile = "supervisor";

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

/// A number of /proc/PID/stat. 0: no process.
/// @param place  counted from 1 as proc(5) does; the second value is a name in brackets, which may hold anything
std::uint64_t stat_value(const fs::path& process, int place) {
  const auto line = content_of(process / "stat");
  const auto name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream values(line.substr(name_end + 1));
  std::string skipped;
  for (int i = 3; i < place; ++i) values >> skipped;
  std::uint64_t value = 0;
  return values >> value ? value : 0;
}

/// In ticks since the host's start.
std::uint64_t start_of(::pid_t process) {
  constexpr int kPlace = 22;
  return stat_value("/proc/" + std::to_string(process), kPlace);
}

/// Where process ids mean the same: containers that share /dev/shm have ids of their own, and so has each boot.
std::string system_of_this_process() {
  std::error_code error;
  auto id = content_of("/proc/sys/kernel/random/boot_id");
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id + ' ' + fs::read_symlink("/proc/self/ns/pid", error).string();
}

/// "PROCESS START SYSTEM"
std::string this_supervisor() {
  return std::to_string(::getpid()) + ' ' + std::to_string(start_of(::getpid())) + ' ' + system_of_this_process() +
         '\n';
}

/// Whether the process that the folder's file names is certainly gone.
bool is_stale(const fs::path& folder) {
  constexpr std::size_t kMostText = 512;
  std::string text(kMostText, '\0');
  try {
    const auto file = open_regular(folder / kSupervisorFile, Links::kRefused);
    const auto got = ::pread(file.descriptor(), text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  } catch (const Error&) {
    return false;
  }
  std::istringstream values(text);
  ::pid_t process = 0;
  std::uint64_t start = 0;
  std::string system;
  if (!(values >> process >> start) || process <= 0 || start == 0 || !std::getline(values >> std::ws, system))
    return false;
  return system == system_of_this_process() && start_of(process) != start;
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
    constexpr int kParentPlace = 4;
    if (words.are_of(job))
      found.push_back({process, static_cast<::pid_t>(stat_value(entry.path(), kParentPlace)), words.rank});
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

int remove_stale_snapshots(const fs::path& path) {
  const auto name = path.filename().string();
  const auto prefix = name.substr(0, name.find('-', name.find('-') + 1) + 1);  // "autopar-UID-"
  int removed = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path.parent_path(), error)) {
    if (!entry.path().filename().string().starts_with(prefix)) continue;
    if (!is_own(entry.path(), S_IFDIR) || !is_stale(entry.path())) continue;
    std::error_code ignored;
    fs::remove_all(entry.path(), ignored);
    if (!ignored) ++removed;
  }
  return removed;
}

SnapshotFolder::SnapshotFolder(fs::path path) : path_(std::move(path)) {
  remove_stale_snapshots(path_);
  constexpr mode_t kOwnerOnly = 0700, kOwnerReads = 0600;
  if (::mkdir(path_.c_str(), kOwnerOnly) != 0) return;
  const Descriptor file(
      ::open((path_ / kSupervisorFile).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kOwnerReads));
  const auto text = this_supervisor();
  static_cast<void>(!::write(file.number(), text.data(), text.size()));
}

SnapshotFolder::~SnapshotFolder() {
  std::error_code ignored;
  if (is_own(path_, S_IFDIR)) fs::remove_all(path_, ignored);
}

}  // namespace autopar::tool
