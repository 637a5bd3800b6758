#include <autopar/runtime/log.hpp>

#include <catch_shim.hpp>
#include <refusal.hpp>
#include <temp_folder.hpp>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/log_config.hpp>

using namespace autopar;

namespace {
namespace log_sinks_test {

LogConfig parsed(const std::string& text) { return parse_log_config(text, "logging.toml"); }

/// A sink `name` to a file, and more lines of it.
std::string file_sink(const std::string& name, const std::string& file, const std::string& more = "") {
  return "[[sink]]\nname = '" + name + "'\ntype = 'basic_file_sink_mt'\nfilename = '" + file + "'\n" + more + "\n";
}
std::string root_to(const std::string& sinks, const std::string& level = "info") {
  return "[[logger]]\nname = 'root'\nlevel = '" + level + "'\nsinks = [" + sinks + "]\n";
}

std::string host() {
  std::string name(256, '\0');
  ::gethostname(name.data(), name.size());
  return name.substr(0, name.find('\0'));
}

}  // namespace log_sinks_test
}  // namespace

using namespace log_sinks_test;

TEST_CASE("Log::configure: files, levels and patterns of modules") {
  const TempFolder folder;
  const std::string all = folder / "logs/{host}-{rank}-of-{size}.log", plans = folder / "plans.log";
  Log log(Rank(1), 2);
  const Logger early = log.logger(LogModule::kPlanner);
  const auto config = parsed(
      "global_pattern = '%n {rank}: %v'\n[[pattern]]\nname = 'p'\nvalue = '%l {host} %v'\n" +
      file_sink("all", all, "create_parent_dir = true\nlevel = 'info'") + file_sink("plans", plans, "ranks = [1, 7]") +
      root_to("'all'") + "[[logger]]\nname = 'Planner'\nlevel = 'debug'\npattern = 'p'\nsinks = ['all', 'plans']\n");
  CHECK(log.configure(config));
  CHECK_FALSE(log.configure(config));
  early.debug("tried");
  early.info("planned");
  log.logger(LogModule::kSession).info("ran");
  log.logger(LogModule::kSession).debug("nothing");
  const auto own = read_text_file(folder / ("logs/" + host() + "-1-of-2.log"));
  CHECK(own == "info " + host() + " planned\nSession 1: ran\n");
  CHECK(read_text_file(plans) == "debug " + host() + " tried\ninfo " + host() + " planned\n");

  log.set_level(LogModule::kPlanner, LogLevel::kOff);
  early.error("silenced");
  CHECK_FALSE(log.configure(config));  // of which the levels are set again
  early.info("again");
  CHECK(contains(read_text_file(plans), "again"));
  CHECK_FALSE(contains(read_text_file(plans), "silenced"));
}

TEST_CASE("Log::configure: only the ranks of a sink open it") {
  const TempFolder folder;
  const std::string file = folder / "first.log";
  const auto config = parsed(file_sink("a", file, "ranks = 'first'") + root_to("'a'"));
  Log second(Rank(1), 2);
  second.configure(config);
  second.logger(LogModule::kWorld).error("unheard");
  CHECK_FALSE(std::filesystem::exists(file));
  Log first(Rank(0), 2);
  first.configure(config);
  first.logger(LogModule::kWorld).info("heard");
  CHECK(contains(read_text_file(file), "rank 0/2 World] heard"));
}

TEST_CASE("Log::configure: a file truncates or appends") {
  const TempFolder folder;
  const std::string file = folder / "a.log";
  for (const bool truncates : {false, true}) {
    write_text_file(file, "before\n");
    Log log(Rank(0), 1);
    log.configure(parsed("global_pattern = '%v'\n" + root_to("'a'") +
                         file_sink("a", file, truncates ? "truncate = true" : "truncate = false")));
    log.logger(LogModule::kWorld).info("after");
    CHECK(read_text_file(file) == (truncates ? "after\n" : "before\nafter\n"));
  }
}

TEST_CASE("Log::configure: files rotate and change by day") {
  const TempFolder folder;
  Log log(Rank(0), 1);
  log.configure(
      parsed("[[sink]]\nname = 'r'\ntype = 'rotating_file_sink_mt'\nmax_size = 100\nmax_files = 2\n"
             "base_filename = '" +
             (folder / "r.log").string() + "'\n[[sink]]\nname = 'd'\ntype = 'daily_file_sink_mt'\nbase_filename = '" +
             (folder / "d.log").string() + "'\n" + root_to("'r', 'd'")));
  for (int i = 0; i < 20; ++i) log.logger(LogModule::kWorld).info("a line of thirty characters or so");
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "")) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  CAPTURE(names);
  REQUIRE(names.size() == 4);
  CHECK((names[0].starts_with("d_20") && names[0].ends_with(".log")));
  CHECK(names[1] == "r.1.log");
  CHECK(names[2] == "r.2.log");
  CHECK(names[3] == "r.log");
}

TEST_CASE("Log::configure: a program's writer has the consoles' lines") {
  std::vector<std::string> lines;
  Log log(Rank(0), 1);
  log.set_writer([&](const std::string& line) { lines.push_back(line); });
  log.configure(
      parsed("global_pattern = '%L %v'\n[[sink]]\nname = 'o'\ntype = 'color_stdout_sink_st'\nlevel = 'warn'\n"
             "[[sink]]\nname = 'n'\ntype = 'null_sink_st'\n" +
             root_to("'o', 'n'") + "[[logger]]\nname = 'Capture'\nsinks = ['n']\n"));
  log.logger(LogModule::kWorld).info("below the sink's level");
  log.logger(LogModule::kWorld).warn("seen");
  log.logger(LogModule::kCapture).warn("elsewhere");
  CHECK(lines == std::vector<std::string>{"W seen"});
  CHECK(log.configure({}));
  CHECK_FALSE(log.configure({}));
  log.logger(LogModule::kCapture).warn("back");
  REQUIRE(lines.size() == 2);
  CHECK(contains(lines[1], "rank 0/1 Capture] back"));
}

TEST_CASE("Log::configure: what cannot be written is named") {
  const TempFolder folder;
  const std::string pipe = folder / "pipe", file = folder / "file";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  write_text_file(file, "");
  struct Case {
    std::string config, said;
  };
  const std::string at = folder / "";
  const std::vector<Case> cases = {
      {file_sink("a", at + "none/a.log"),
       "there is no folder '" + at + "none'; create it, or set create_parent_dir = true"},
      {file_sink("a", file + "/x.log", "create_parent_dir = true"), "cannot be created"},
      {file_sink("a", pipe), "'" + pipe + "' is there and is no file"},
      {file_sink("a", at + "."), "is there and is no file"},
      {file_sink("a", "/proc/autopar.log"), "Failed opening file /proc/autopar.log"},
      {file_sink("a", file) + file_sink("b", at + "./file"), "sink 'a' writes to '" + at + "./file', too"},
      {"[[sink]]\nname='a'\ntype='rotating_file_sink'\nmax_size=9\nmax_files=1\nbase_filename='/proc/x.log'",
       "base_filename: Failed opening file /proc/x.log"},
      {"[[sink]]\nname='a'\ntype='daily_file_sink'\nbase_filename='/proc/x.log'", "base_filename: Failed opening"},
  };
  std::vector<std::string> lines;
  Log log(Rank(0), 1);
  log.set_writer([&](const std::string& line) { lines.push_back(line); });
  for (const auto& [config, said] : cases) {
    const auto message = refusal([&, &config = config] { log.configure(parsed("\n" + config)); });
    CAPTURE(config, message);
    CHECK(contains(message, said));
    CHECK(contains(message, "logging.toml:"));
    log.logger(LogModule::kWorld).warn("still here");
  }
  CHECK(lines.size() == cases.size());
}

TEST_CASE("Log::configure: ranks do not share a file unawares") {
  const TempFolder folder;
  const std::string shared = folder / "shared-{host}.log";
  const auto config = parsed(file_sink("a", shared));
  for (const int rank : {0, 1, 2}) {
    const auto message = refusal([&] { Log(Rank(rank), 3).configure(config); });
    CAPTURE(message);
    CHECK(contains(message, "logging.toml:1: sink 'a': filename: 3 ranks would write to '" + shared + "'"));
    CHECK(contains(message, "put {rank} into the name"));
    CHECK(contains(refusal([&] { Log(Rank(rank), 3).configure(parsed(file_sink("a", shared, "ranks = [1, 2]"))); }),
                   "2 ranks would write"));
    CHECK(refusal([&] { Log(Rank(rank), 3).configure(parsed(file_sink("a", shared, "ranks = [2, 3]"))); }).empty());
    CHECK(refusal([&] { Log(Rank(rank), 3).configure(parsed(file_sink("a", "/dev/null"))); }).empty());
  }
  CHECK(refusal([&] { Log(Rank(0), 1).configure(config); }).empty());
}

TEST_CASE("Log::configure: lines go on while sinks change") {
  const TempFolder folder;
  const std::string file = folder / "a.log";
  Log log(Rank(0), 1);
  log.set_writer([](const std::string&) {});
  const auto config = parsed(file_sink("a", file) + root_to("'a'"));
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([logger = log.logger(LogModule::kSession)] {
      for (int i = 0; i < 500; ++i) logger.warn("a line");
    });
  }
  for (int i = 0; i < 50; ++i) {
    log.configure(config);
    log.configure({});
  }
  for (auto& thread : threads) thread.join();
  std::istringstream written(read_text_file(file));
  for (std::string line; std::getline(written, line);) CHECK(line.ends_with("rank 0/1 Session] a line"));
}
