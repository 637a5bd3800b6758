#include "tool.hpp"

#include <catch_shim.hpp>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <autopar/io/cluster_file.hpp>
#include <autopar/io/config.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/log_config.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/io/profile_file.hpp>

#include "../unit/tool/tool_run.hpp"
#include "damage.hpp"

using namespace autopar;
using test::Damage;
using test::fuzz;
using test::peak_kib;
using test::run_tool;
using test::ToolFolder;

namespace {

/// So many damaged files of each kind, through its reader.
void fuzz_readers(int rounds, unsigned seed) {
  const ToolFolder folder("fuzz_readers");
  REQUIRE(folder.plan({"--batch", "32", "--out", folder.at("plan.json")}).status == 0);
  fuzz(folder.text("plan.json"), rounds, seed + 1, [](const std::string& text) { (void)parse_plan(text, "f"); });
  fuzz(folder.text("profile.json"), rounds, seed + 2, [](const std::string& text) { (void)parse_profile(text, "f"); });
  fuzz(folder.text("cluster.toml"), rounds, seed + 3, [](const std::string& text) { (void)parse_cluster(text, "f"); });
  fuzz("stages = 2\nreplicas = [2, 1]\nschedule = \"gpipe\"\ndevice_memory = \"16 GiB\"\nmemory_margin = 0.2\n", rounds,
       seed + 5, [](const std::string& text) {
         ConfigSources sources;
         sources.text = text;
         (void)resolve_options({}, sources);
       });
  fuzz(
      "global_pattern = \"%v {rank}\"\n[[sink]]\nname = \"a\"\ntype = \"rotating_file_sink_mt\"\nbase_filename = "
      "\"a.{rank}\"\nmax_size = \"1M\"\nmax_files = 3\nranks = [0, 3]\n[[pattern]]\nname = \"p\"\nvalue = "
      "\"%n\"\n[[logger]]\nname = \"Planner\"\nsinks = [\"a\"]\nlevel = \"info\"\npattern = \"p\"\n",
      rounds, seed + 6, [](const std::string& text) { (void)parse_log_config(text, "logging.toml"); });
}

/// So many commands, of which one file each is damaged.
void fuzz_commands(int rounds, unsigned seed) {
  const ToolFolder folder("fuzz_commands");
  REQUIRE(folder.plan({"--batch", "32", "--out", folder.at("plan.json")}).status == 0);
  folder.put("autopar.toml", "stages = 2\nmicrobatches = 4\nmax_microbatches = 8\nmemory_margin = 0.1\n");
  Damage damage(seed);
  int done = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::vector<std::string> files{"plan.json", "profile.json", "cluster.toml", "autopar.toml"};
    const std::string victim = files[damage.below(files.size())], good = folder.text(victim);
    folder.put(victim, damage.on(good));
    const std::string plan = folder.at("plan.json"), profile = folder.at("profile.json"),
                      cluster = folder.at("cluster.toml");
    const std::vector<std::vector<std::string>> commands{
        {"plan", profile, cluster, "--batch", "32", "--options", folder.at("autopar.toml"), "--max-microbatches", "8"},
        {"check", plan, profile, cluster},
        {"simulate", plan, profile, cluster, "--trace", folder.at("t.json")},
        {"report", plan, profile, cluster, "--quick", "--out", folder.at("t.html")},
        {"diff", plan, folder.at("plan.json")}};
    const auto result = run_tool(commands[victim == "autopar.toml" ? 0 : damage.below(commands.size())]);
    CAPTURE(round, victim, result.err);
    REQUIRE((result.status >= 0 && result.status <= 2));
    if (result.status == 2) {
      REQUIRE(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    } else {
      ++done;
    }
    folder.put(victim, good);
  }
  CHECK(done > rounds / 14);
}

}  // namespace

TEST_CASE("file readers: damaged file is read or refused, no crash", "[fuzz]") { fuzz_readers(4000, 0); }

TEST_CASE("tool on damaged files: exit code, and one line if it is 2", "[fuzz]") { fuzz_commands(700, 11); }

TEST_CASE("damaged files: no crash in many reads and commands", "[.nightly]") {
  fuzz_readers(100'000, 100);
  fuzz_commands(10'000, 111);
}

TEST_CASE("file readers: memory grows only with the file's length", "[fuzz]") {
  const ToolFolder folder("fuzz_size");
  const long before = peak_kib();
  for (const std::string& text : test::deep_texts()) {
    CHECK_THROWS_AS(parse_plan(text, "f"), ConfigError);
    CHECK_THROWS_AS(parse_profile(text, "f"), ConfigError);
    CHECK_THROWS_AS(parse_cluster(text, "f"), ConfigError);
  }
  std::string numbers = "{\"version\":[1";
  for (int i = 0; i < (1 << 20); ++i) numbers += ",1";
  CHECK_THROWS_AS(parse_plan(numbers + "]}", "f"), ConfigError);
  CHECK_THROWS_AS(parse_profile(numbers + "]}", "f"), ConfigError);
  // Huge counts in short files must not be believed.
  for (const std::string count : {"16777216", "2147483647", "1e18"}) {
    std::string cluster = folder.text("cluster.toml");
    for (std::size_t at = 0; (at = cluster.find("= 4", at)) != std::string::npos; ++at)
      cluster.replace(at + 2, 1, count);
    folder.put("cluster.toml", cluster);
    CHECK(folder.plan({"--batch", "32"}).status == 2);
    folder.write();
  }
  CHECK(peak_kib() - before < test::kMostKib);
}
