#include <catch_shim.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include "tool_run.hpp"

using namespace autopar;
using test::check_trouble;
using test::run_tool;

TEST_CASE("run: bad arguments are one line, and nothing is started", "[tool]") {
  const test::ToolFolder folder("tool_run");
  folder.put("hosts", "a:2\nb\n");
  folder.put("bad-hosts", "a\nb:x\n");
  folder.put("mpiexec", "#!/bin/sh\necho slurm 23.02\n");
  folder.put("no-program", "text");
  std::filesystem::permissions(folder.at("mpiexec"), std::filesystem::perms::owner_all);
  const auto refused = [&](std::vector<std::string> words, const std::vector<std::string>& parts) {
    words.insert(words.begin(), {"run", "--folder", folder.at("out")});
    check_trouble(run_tool(std::move(words)), parts);
    CHECK_FALSE(std::filesystem::exists(folder.at("out")));
  };
  refused({"--", "true"}, {"-n is required"});
  refused({"-n", "0", "--", "true"}, {"-n 0 is not from 1 to"});
  refused({"-n", "-3", "--", "true"}, {"-n -3"});
  refused({"-n", "4x", "--", "true"}, {"4x"});
  refused({"-n", "2", "--min-ranks", "3", "--", "true"}, {"--min-ranks 3 is not from 1 to 2"});
  refused({"-n", "2", "--min-ranks", "-1", "--", "true"}, {"--min-ranks -1"});
  refused({"-n", "2", "--min-ranks", "0", "--", "true"}, {"--min-ranks 0"});
  refused({"-n", "2", "--max-restarts", "-1", "--", "true"}, {"--max-restarts -1"});
  refused({"-n", "2", "--spares", "1", "--", "true"}, {"--spares needs a --hostfile"});
  refused({"-n", "2"}, {"the program is missing"});
  refused({"-n", "2", "--"}, {"the program is missing"});
  refused({"-n", "2", "true"}, {"behind '--'"});
  refused({"-n", "2", "true", "--option"}, {"behind '--'"});
  refused({"-n", "2", "--", folder.at("nowhere")}, {folder.at("nowhere"), "no program"});
  refused({"-n", "2", "--", folder.at("no-program")}, {"no program"});
  refused({"-n", "2", "--", "no-such-program-anywhere"}, {"no-such-program-anywhere"});
  refused({"-n", "2", "--mpiexec", folder.at("none"), "--", "true"}, {folder.at("none"), "--mpiexec"});
  refused({"-n", "2", "--mpiexec", folder.at("mpiexec"), "--", "true"}, {"slurm 23.02", "neither MPICH"});
  refused({"-n", "2", "--hostfile", folder.at("none"), "--", "true"}, {folder.at("none")});
  refused({"-n", "2", "--hostfile", folder.at("bad-hosts"), "--", "true"}, {"bad-hosts, line 2", "'x'"});
  refused({"-n", "4", "--hostfile", folder.at("hosts"), "--", "true"}, {"has 3 slots for -n 4"});
  refused({"-n", "2", "--spares", "2", "--hostfile", folder.at("hosts"), "--", "true"},
          {"has 3 slots for -n 2 and --spares 2"});
  refused({"-n", "2", "--min-rank", "1", "--", "true"}, {"did you mean '--min-ranks'?"});
  check_trouble(run_tool({"run", "-n", "1", "--folder", "a\x1b[31m", "--", "true"}), {"--folder"});
}

TEST_CASE("run: help says what it does and needs nothing", "[tool]") {
  const auto result = run_tool({"run", "--help"});
  CHECK(result.status == 0);
  for (const auto* word :
       {"--min-ranks", "--spares", "--hostfile", "--max-restarts", "--folder", "-- ./train", "Exit status"})
    CHECK_THAT(result.out, Catch::Matchers::Contains(word));
}
