// What `autopar run` is made of and needs no process for.

#include <catch_shim.hpp>
#include <refusal.hpp>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include <autopar/core/error.hpp>
#include <autopar/io/snapshot_folder.hpp>
#include <autopar/io/supervision.hpp>

#include "run/fault_report.hpp"
#include "run/host_list.hpp"
#include "run/host_watch.hpp"
#include "run/launcher.hpp"
#include "run/leftovers.hpp"
#include "run/output.hpp"
#include "run/starts.hpp"

using namespace autopar;
using namespace autopar::tool;
namespace fs = std::filesystem;

namespace {

std::vector<HostSlots> random_hosts(std::mt19937& random) {
  std::vector<HostSlots> hosts;
  const int count = std::uniform_int_distribution(1, 6)(random);
  for (int i = 0; i < count; ++i)
    hosts.push_back({"node" + std::to_string(i), std::uniform_int_distribution(1, 8)(random)});
  return hosts;
}

FaultReport report_of(const std::vector<std::string>& lines) {
  FaultReport report;
  for (const auto& line : lines) report.read(line);
  return report;
}

const std::vector<std::string> kHydraKilled{"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
                                            "=   PID 9022 RUNNING AT vm", "=   EXIT CODE: 9",
                                            "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)"};

/// A folder of its own.
struct Folder {
  explicit Folder(const std::string& name)
      : path(fs::temp_directory_path() / ("autopar_" + name + "_" + std::to_string(::getpid()))) {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  void put(const fs::path& file, const std::string& text) const {
    fs::create_directories((path / file).parent_path());
    std::ofstream(path / file, std::ios::binary) << text;
  }
  fs::path path;
};

}  // namespace

TEST_CASE("run: hostfiles are read in all their forms", "[tool]") {
  const auto hosts = parse_hostfile("# cluster\nnode1:4\n  node2  slots=2 # two\n\nnode-3.example\r\nnode1\n", "hosts");
  CHECK(hosts == std::vector<HostSlots>{{"node1", 5}, {"node2", 2}, {"node-3.example", 1}});
  CHECK(slots_of(hosts) == 8);
}

TEST_CASE("run: hostile hostfiles are refused with file and line", "[tool]") {
  const auto refused = [](const std::string& text) {
    return refusal([&] { static_cast<void>(parse_hostfile("node1\n" + text, "my-hosts")); });
  };
  const std::vector<std::string> wrong{"node2:0",
                                       "node2:-1",
                                       "node2:",
                                       "node2:4x",
                                       "node2:1e3",
                                       "node2:99999999999999999999",
                                       ":4",
                                       "-x",
                                       "--help",
                                       "node2 slots=",
                                       "node2 4",
                                       "node2:2 slots=2",
                                       "no/de",
                                       "n;rm -rf",
                                       "$(true)",
                                       "node2 slots=2 more",
                                       "\x1b[31mnode",
                                       std::string("a\0b", 3),
                                       "node2,n3",
                                       "node2:1:2",
                                       std::string(300, 'a')};
  for (const auto& line : wrong) {
    CAPTURE(line);
    CHECK(contains(refused(line), "my-hosts, line 2: "));
  }
  const auto most = std::to_string(kMostSlots);
  CHECK(contains(refused("node2:" + most), "all hosts together"));
  CHECK(contains(refusal([] { static_cast<void>(parse_hostfile("# nobody\n\n", "my-hosts")); }), "names no host"));
}

TEST_CASE("run: the first slots of hosts keep order and count", "[tool]") {
  std::mt19937 random(7);
  for (int i = 0; i < 500; ++i) {
    const auto hosts = random_hosts(random);
    const int count = std::uniform_int_distribution(0, slots_of(hosts) + 3)(random);
    const auto first = first_slots(hosts, count);
    REQUIRE(slots_of(first) == std::min(count, slots_of(hosts)));
    REQUIRE(first.size() <= hosts.size());
    for (std::size_t k = 0; k < first.size(); ++k) {
      REQUIRE(first[k].host == hosts[k].host);
      REQUIRE(first[k].slots >= 1);
      if (k + 1 < first.size()) REQUIRE(first[k].slots == hosts[k].slots);
    }
    for (const auto kind : {LauncherKind::kHydra, LauncherKind::kOpenMpi}) {
      if (count > 0) REQUIRE(parse_hostfile(hostfile_text(first, kind), "written") == first);
    }
  }
}

TEST_CASE("run: launchers are known by their version, and get their own options", "[tool]") {
  CHECK(launcher_kind("HYDRA build details:\n  Version: 4.0.2") == LauncherKind::kHydra);
  CHECK(launcher_kind("Intel(R) MPI Library for Linux* OS, Version 2021.9") == LauncherKind::kHydra);
  CHECK(launcher_kind("mpiexec (OpenRTE) 4.1.4\n") == LauncherKind::kOpenMpi);
  CHECK(launcher_kind("mpirun (Open MPI) 5.0.3\n") == LauncherKind::kOpenMpi);
  CHECK_FALSE(launcher_kind("slurm 23.02.6"));
  CHECK_FALSE(launcher_kind(""));

  CHECK(first_signal(LauncherKind::kHydra, SIGTERM) == SIGTERM);
  CHECK(first_signal(LauncherKind::kOpenMpi, SIGTERM) == SIGUSR1);

  const Launcher hydra{LauncherKind::kHydra, "mpiexec", {"-bind-to", "core"}};
  CHECK(hydra.job(3, "/run/hosts", {"./train", "-n", "5"}) ==
        Command{"mpiexec", "-bind-to", "core", "-f", "/run/hosts", "-n", "3", "./train", "-n", "5"});
  CHECK(hydra.job(3, "", {"x"}) == Command{"mpiexec", "-bind-to", "core", "-n", "3", "x"});
  CHECK(hydra.on_host("node1", {"true"}) ==
        Command{"mpiexec", "-bind-to", "core", "-hosts", "node1", "-n", "1", "true"});
  const Launcher open_mpi{LauncherKind::kOpenMpi, "mpirun", {}};
  CHECK(open_mpi.job(2, "/run/hosts", {"x"}) ==
        Command{"mpirun", "-x", "AUTOPAR_RUN", "--hostfile", "/run/hosts", "-n", "2", "x"});
  CHECK(open_mpi.on_host("node1", {"true"}) == Command{"mpirun", "--host", "node1", "-n", "1", "true"});
}

TEST_CASE("run: all ways in which ranks say who failed", "[tool]") {
  const auto check = [](const std::string& line, FaultKind kind, std::optional<int> rank, const std::string& action,
                        const std::string& message) {
    CAPTURE(line);
    const auto fault = fault_in(line);
    REQUIRE(fault);
    CHECK(*fault == Fault{kind, rank, action, message});
  };
  const std::string gone = "its process has ended without leaving the World",
                    vain = "the others have waited for it in vain";
  const std::string end = "; the ranks cannot go on together: end the job and start it again";
  check("[02:53:48.821 error rank 0/3 Transport] rank 1 failed: " + gone + "; rank 0 is in or after 'step 3'",
        FaultKind::kEnded, 1, "step 3", gone);
  check("[02:53:48.821 error rank 0/3 Transport] rank 1 failed: " + gone + "; rank 0 has made no call",
        FaultKind::kEnded, 1, "", gone);
  check("error: rank 12 failed: " + gone + " (noticed by rank 0 in 'forward of stage 1')" + end, FaultKind::kEnded, 12,
        "forward of stage 1", gone);
  check("[02:53:51.018 error rank 1/3 World] rank 1 failed in 'its program': left by an exception after 'step 2'",
        FaultKind::kTold, 1, "its program", "left by an exception after 'step 2'");
  check("bar 30 %[02:53:52.309 error rank 1/3 World] rank 1 failed in 'forward of stage 1': out of memory",
        FaultKind::kTold, 1, "forward of stage 1", "out of memory");
  check("  what():  rank 1 failed in 'step 3': no such layer (noticed by rank 0 in 'step 3')" + end, FaultKind::kTold,
        1, "step 3", "no such layer");
  check(
      "[02:53:55.258 error rank 2/3 World] rank 2 failed in 'step 3': rank 2 has waited 2.0 s for rank 1 in 'step 3' "
      "and gives up (stall_timeout)",
      FaultKind::kStalled, 1, "step 3", vain);
  check("error: rank 0 has waited 2.0 s for rank 1 in 'step 0' and gives up (AUTOPAR_START_TIMEOUT)",
        FaultKind::kStalled, 1, "step 0", vain);
  check("[1:2:3 error rank 0/2 World] rank 0 failed in 'all_reduce': rank 0 gave up waiting for rank 1 (stall_timeout)",
        FaultKind::kStalled, 1, "all_reduce", vain);
  check(
      "[1:2:3 error rank 0/2 World] rank 0 failed in 'all_reduce': rank 0 gave up waiting for another member "
      "(stall_timeout)",
      FaultKind::kStalled, std::nullopt, "all_reduce", vain);
  const std::string give_up = "error: rank 2 has waited 2 s for MPI to start and gives up (AUTOPAR_START_TIMEOUT): ";
  check(give_up + "rank 1 has not begun to make a World; see what that process does before it makes its World",
        FaultKind::kStalled, 1, "start of MPI", "has not begun to make a World");
  check(give_up + "ranks 1 and 3 have not begun to make a World; see", FaultKind::kStalled, std::nullopt,
        "start of MPI", "ranks 1 and 3 have not begun to make a World");
}

TEST_CASE("run: what a program prints of its own is no failure of a rank", "[tool]") {
  for (const auto* line :
       {"", "rank 3 failed: the quiz", "epoch 3: rank 1 failed in 'validation': 12 samples", "error: no such layer",
        "[02:53:54.058 warning rank 0/3 Transport] has waited 1.0 s for rank 1 in 'step 3'",
        "[02:53:54.058 error rank 0/3 Session] the model is large", "[x error rank ", "[x error rank 0/3 World] rank ",
        "[x error rank 0/3 World] rank 1 failed in '", "[x error rank 0/3 World] rank -1 failed: x",
        "rank 99999999999 failed: x; the ranks cannot go on together: ", " has waited  for rank x in '"}) {
    CAPTURE(line);
    CHECK_FALSE(fault_in(line));
    CHECK_FALSE(report_of({line}).is_lost());
  }
}

TEST_CASE("run: random bytes with the words of failures are read without harm", "[tool]") {
  const std::vector<std::string> words{"rank ",
                                       "1",
                                       " failed",
                                       " in '",
                                       "': ",
                                       "[x error rank ",
                                       "0/3",
                                       " World] ",
                                       " has waited ",
                                       " for rank ",
                                       "' and gives up (",
                                       " for MPI to start and gives up (AUTOPAR_START_TIMEOUT): ",
                                       "; the ranks cannot go on together: ",
                                       "its process has ended",
                                       " is in or after '",
                                       "(noticed by rank ",
                                       "');",
                                       "\xff",
                                       " gave up waiting for ",
                                       "(stall_timeout)",
                                       "Abort(",
                                       ") on node ",
                                       "application called MPI_Abort(",
                                       "(signal ",
                                       "99999999999999999999",
                                       "-1"};
  std::mt19937 random(3);
  std::uniform_int_distribution<std::size_t> pick(0, words.size() - 1);
  for (int i = 0; i < 20'000; ++i) {
    std::string line;
    for (int k = 0; k < 12; ++k) line += words[pick(random)];
    const auto report = report_of({line, "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: " + line});
    if (report.fault() && report.fault()->rank) REQUIRE(*report.fault()->rank >= 0);
    const int status = report.status(9);
    REQUIRE((status >= 1 && status <= 255));
    REQUIRE(report.status(0) == 0);
  }
}

TEST_CASE("run: the status is the program's, not that of a rank which the launcher has killed", "[tool]") {
  const std::string prefix = "[02:53:51.018 error rank 1/3 World] rank 1 failed";
  auto killed = kHydraKilled;
  CHECK(report_of(killed).status(9) == 137);
  CHECK(report_of(killed).is_lost());
  killed.insert(killed.begin(), prefix + ": its process has ended without leaving the World; rank 0 has made no call");
  CHECK(report_of(killed).status(9) == 137);
  auto thrown = kHydraKilled;
  thrown.insert(thrown.begin(), prefix + " in 'its program': left by an exception after 'step 2'");
  CHECK(report_of(thrown).status(9) == 1);
  thrown.insert(
      thrown.begin() + 1,
      "Abort(3) on node 1 (rank 1 in comm 496): application called MPI_Abort(comm=0x84000001, 3) - process 1");
  CHECK(report_of(thrown).status(9) == 3);
  CHECK(report_of({}).status(5) == 5);
  CHECK(report_of({}).status(143) == 143);
  const auto open_mpi =
      report_of({"mpirun noticed that process rank 2 with PID 0 on node vm exited on signal 9 (Killed)."});
  CHECK(open_mpi.status(137) == 137);
  REQUIRE(open_mpi.fault());
  CHECK(described(*open_mpi.fault()) == "rank 2 failed: its process was killed by signal 9");
}

TEST_CASE("run: the first rank to be named stays, and the launcher's word counts where none has spoken", "[tool]") {
  auto report = report_of(kHydraKilled);
  CHECK_FALSE(report.fault());
  report.blame(2);
  REQUIRE(report.fault());
  CHECK(described(*report.fault()) == "rank 2 failed: its process was killed by signal 9");
  report.read("[1:2:3 error rank 1/3 World] rank 1 failed in 'step 3': out of memory");
  report.read("[1:2:3 error rank 0/3 World] rank 0 failed in 'step 3': another");
  CHECK(described(*report.fault()) == "rank 1 failed in 'step 3': out of memory");
}

TEST_CASE("run: random histories of starts keep the limits", "[tool]") {
  std::mt19937 random(11);
  const auto draw = [&](int least, int most) { return std::uniform_int_distribution(least, most)(random); };
  for (int history = 0; history < 5000; ++history) {
    StartLimits limits;
    limits.ranks = draw(1, 8);
    limits.min_ranks = draw(1, limits.ranks);
    limits.max_restarts = draw(0, 5);
    Starts starts(limits);
    std::vector<std::optional<std::int64_t>> failures;
    bool is_over = starts.place(draw(limits.min_ranks, 12)) != NextStart::kRestart;
    REQUIRE_FALSE(is_over);
    while (!is_over) {
      starts.begin();
      REQUIRE(starts.number() <= limits.max_restarts + 1);
      REQUIRE(starts.ranks() >= limits.min_ranks);
      REQUIRE(starts.ranks() <= limits.ranks);
      StartEnd end{draw(0, 9) == 0 ? 0 : draw(1, 255), std::nullopt, draw(0, 9) == 0};
      if (draw(0, 4) > 0) end.step = draw(0, 20);
      const auto next = starts.after(end);
      const bool is_same = !failures.empty() && failures.back() == end.step;
      if (end.status == 0) {
        REQUIRE(next == NextStart::kFinished);
      } else if (end.is_asked) {
        REQUIRE(next == NextStart::kInterrupted);
      } else if (is_same) {
        REQUIRE(next == NextStart::kSameFault);
      } else {
        REQUIRE((next == NextStart::kRestart) == (starts.number() <= limits.max_restarts));
      }
      failures.push_back(end.step);
      is_over = next != NextStart::kRestart;
      if (is_over) break;
      const int slots = draw(0, 12);
      const auto placed = starts.place(slots);
      REQUIRE((placed == NextStart::kRestart) == (slots >= limits.min_ranks));
      if (placed == NextStart::kRestart) REQUIRE(starts.ranks() == std::min(slots, limits.ranks));
      is_over = placed != NextStart::kRestart;
    }
  }
}

TEST_CASE("run: a host has the slots that its devices and its answer leave", "[tool]") {
  CHECK(usable_slots({{"a", 4}, 0, 0, true}) == 4);
  CHECK(usable_slots({{"a", 4}, 0, 0, false}) == 0);
  CHECK(usable_slots({{"a", 4}, 4, 4, true}) == 4);
  CHECK(usable_slots({{"a", 4}, 4, 3, true}) == 3);
  CHECK(usable_slots({{"a", 2}, 8, 7, true}) == 2);
  CHECK(usable_slots({{"a", 8}, 2, 2, true}) == 8);  // more ranks than devices from the first
  CHECK(usable_slots({{"a", 4}, 4, 0, true}) == 0);
  CHECK(loss_of({{"a", 4}, 4, 3, true}) == "host a has 3 of its 4 devices");
  CHECK(loss_of({{"a", 4}, 4, 3, false}) == "host a does not answer");
  CHECK(loss_of({{"a", 4}, 2, 2, true}).empty());
}

TEST_CASE("run: output is cut into lines as a person sees them", "[tool]") {
  std::vector<std::string> lines;
  LineCutter cutter([&](std::string_view line) { lines.emplace_back(line); });
  const std::string text = "one\r\ntwo\n\nold text\rnew\n10 %\r20 %\r\n" + std::string(10'000, 'x') + "\nlast";
  std::mt19937 random(5);
  for (std::size_t at = 0; at < text.size();) {
    const auto size = std::uniform_int_distribution<std::size_t>(1, 7)(random);
    cutter.add(std::string_view(text).substr(at, size));
    at += size;
  }
  cutter.finish();
  REQUIRE(lines.size() == 7);
  CHECK(lines[0] == "one");
  CHECK(lines[1] == "two");
  CHECK(lines[2].empty());
  CHECK(lines[3] == "new");
  CHECK(lines[4] == "20 %");
  CHECK(lines[5] == std::string(4096, 'x'));
  CHECK(lines[6] == "last");
  LastLines last;
  for (int i = 0; i < 1000; ++i) last.add(std::to_string(i));
  CHECK(last.lines().size() == 200);
  CHECK(last.lines().front() == "800");
}

TEST_CASE("run: processes of a job are found by their environment", "[tool]") {
  const Folder proc("tool_proc");
  const auto variable = [](const std::string& job) { return "AUTOPAR_RUN=" + to_text({"/x", job, 1, false}); };
  const std::string end(1, '\0');
  proc.put("11/environ", "A=1" + end + variable("mine") + end + "PMI_RANK=2" + end);
  proc.put("11/stat", "11 (a b) c) S 10 1 1");
  proc.put("12/environ", variable("mine") + end);
  proc.put("13/environ", variable("other") + end + "PMI_RANK=0" + end);
  proc.put("14/environ", "X=" + variable("mine") + end);
  proc.put("15/environ", "AUTOPAR_RUN=mine" + end);
  proc.put("16/environ", "");
  proc.put("17/environ", variable("mine") + end + "OMPI_COMM_WORLD_RANK=x" + end);
  proc.put("self/environ", variable("mine") + end);
  proc.put("99999999999999999999/environ", variable("mine") + end);
  auto found = processes_of("mine", proc.path);
  std::ranges::sort(found, {}, &JobProcess::process);
  REQUIRE(found.size() == 3);
  CHECK(found[0].process == 11);
  CHECK(found[0].parent == 10);
  CHECK(found[0].rank == 2);
  CHECK(found[1].process == 12);
  CHECK_FALSE(found[1].rank);
  CHECK_FALSE(found[2].rank);
  CHECK(processes_of("mine", proc.path / "nowhere").empty());
}

TEST_CASE("run: snapshots of supervisors that are gone are removed, and no others", "[tool]") {
  const Folder shm("tool_shm");
  const auto mine = shm.path / "autopar-7-mine";
  {
    const SnapshotFolder own(mine);
    struct stat status {};
    REQUIRE(::stat(mine.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0700);
    REQUIRE(::stat((mine / "supervisor").c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);

    std::string process, start, rest;
    std::ifstream file(mine / "supervisor");
    file >> process >> start;
    std::getline(file >> std::ws, rest);
    CHECK(process == std::to_string(::getpid()));
    shm.put("autopar-7-later/supervisor", process + " " + std::to_string(std::stoull(start) + 1) + " " + rest + "\n");
    shm.put("autopar-7-gone/supervisor", "4194999 5 " + rest + "\n");
    shm.put("autopar-7-gone/rank0/page", "x");
    shm.put("autopar-7-elsewhere/supervisor", "4194999 5 another boot\n");
    shm.put("autopar-7-nobody/page", "x");
    shm.put("autopar-7-damaged/supervisor", "x y z\n");
    shm.put("autopar-77-gone/supervisor", "4194999 5 " + rest + "\n");
    shm.put("target/supervisor", "4194999 5 " + rest + "\n");
    fs::create_symlink(shm.path / "target", shm.path / "autopar-7-link");
    fs::create_directory(shm.path / "autopar-7-inner");
    fs::create_symlink(shm.path / "target" / "supervisor", shm.path / "autopar-7-inner" / "supervisor");
    CHECK(remove_stale_snapshots(shm.path / "autopar-7-next") == 2);
  }
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(shm.path)) left.push_back(entry.path().filename().string());
  std::ranges::sort(left);
  CHECK(left == std::vector<std::string>{"autopar-7-damaged", "autopar-7-elsewhere", "autopar-7-inner",
                                         "autopar-7-link", "autopar-7-nobody", "autopar-77-gone", "target"});
  CHECK(fs::exists(shm.path / "target" / "supervisor"));
}
