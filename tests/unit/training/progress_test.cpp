#include <autopar/training/progress.hpp>

#include <fstream>
#include <string>

#include "catch_shim.hpp"
#include "temp_folder.hpp"
#include "training/terminal.hpp"

namespace progress_test {

namespace fs = std::filesystem;
using autopar::training::duration_text;
using autopar::training::launcher_output;
using autopar::training::short_number;

/// A process of a folder like /proc.
void add_process(const fs::path& proc, int process, const std::string& name, int parent, const fs::path& output) {
  const auto folder = proc / std::to_string(process);
  fs::create_directories(folder / "fd");
  std::ofstream(folder / "stat") << process << " (" << name << ") S " << parent << " 1 1 0 -1\n";
  fs::create_symlink(output, folder / "fd/1");
}

TEST_CASE("launcher_output: of mpiexec, wherever it is among the ancestors") {
  const TempFolder temp;
  const auto proc = temp / "proc";
  add_process(proc, 40, "sh", 1, "/dev/pts/9");
  add_process(proc, 50, "mpiexec.hydra", 40, "/dev/pts/7");
  add_process(proc, 51, "hydra_pmi_proxy", 50, "pipe:[1]");
  add_process(proc, 52, "my (odd) name) S 40", 51, "pipe:[2]");
  add_process(proc, 60, "train", 40, "/dev/pts/9");
  add_process(proc, 70, "mpirun", 40, "/tmp/log");
  add_process(proc, 71, "train", 70, "/dev/pts/8");
  CHECK(launcher_output(proc, 52) == "/dev/pts/7");
  CHECK(launcher_output(proc, 71) == "/tmp/log");
  CHECK(launcher_output(proc, 60).empty());
  CHECK(launcher_output(proc, 999).empty());
  add_process(proc, 80, "loop", 80, "pipe:[3]");
  CHECK(launcher_output(proc, 80).empty());
  std::ofstream(proc / "60/stat") << "60 train";
  CHECK(launcher_output(proc, 60).empty());
}

TEST_CASE("duration_text, short_number: about three digits") {
  CHECK(duration_text(4.06) == "4.1 s");
  CHECK(duration_text(725) == "12 min");
  CHECK(duration_text(12'000) == "3 h 20 min");
  CHECK(duration_text(187'000) == "2 d 3 h");
  CHECK(short_number(0.5) == "0.50");
  CHECK(short_number(12.34) == "12.3");
  CHECK(short_number(812) == "812");
  CHECK(short_number(12'340) == "12.3k");
  CHECK(short_number(4'561'000) == "4.56M");
  CHECK(short_number(999'700) == "1.00M");
}

}  // namespace progress_test
