#include <autopar/runtime/log.hpp>

#include <catch_shim.hpp>

#include <string>
#include <vector>

using namespace autopar;

namespace {
struct Recorder {
  std::vector<std::string> lines;
  Log log{Rank(2), 4};
  Recorder() {
    log.set_writer([this](const std::string& line) { lines.push_back(line); });
  }
};
}  // namespace

TEST_CASE("log: quiet by default, lines name level, rank and module") {
  Recorder recorder;
  const Logger logger = recorder.log.logger(LogModule::kPlanner);
  logger.info("nobody wants this");
  REQUIRE(recorder.lines.empty());
  REQUIRE_FALSE(logger.enabled(LogLevel::kInfo));
  logger.warn("3 stages {} %s");
  REQUIRE(recorder.lines.size() == 1);
  const std::string& line = recorder.lines.front();
  CAPTURE(line);
  REQUIRE(line.find("warning") != std::string::npos);
  REQUIRE(line.find("rank 2/4 Planner] 3 stages {} %s") != std::string::npos);
  REQUIRE(line.back() == 's');
}

TEST_CASE("log: each module has its own level") {
  Recorder recorder;
  recorder.log.set_level(LogModule::kCapture, LogLevel::kDebug);
  recorder.log.logger(LogModule::kCapture).debug("captured");
  recorder.log.logger(LogModule::kPlanner).debug("planned");
  REQUIRE(recorder.lines.size() == 1);
  recorder.log.set_level(LogLevel::kOff);
  recorder.log.logger(LogModule::kCapture).error("silenced");
  REQUIRE(recorder.lines.size() == 1);
}

TEST_CASE("log: levels and modules have names, the default is silent") {
  REQUIRE(log_level_named("warn") == LogLevel::kWarn);
  REQUIRE(log_level_named("off") == LogLevel::kOff);
  REQUIRE_FALSE(log_level_named("loud").has_value());
  REQUIRE(name_of(LogModule::kWorld) == "World");
  REQUIRE(name_of(LogModule::kCheckpoint) == "Checkpoint");
  REQUIRE_NOTHROW(Logger().error("nowhere"));
}

TEST_CASE("log: a name cannot forge a line, tables keep theirs") {
  Recorder recorder;
  const Logger logger = recorder.log.logger(LogModule::kPlanner);
  logger.warn("net.\n[00:00:00.000 error rank 0/4 World] forged \x1b[2J\x7f");
  logger.write_table(LogLevel::kWarn, "a\n  b\x1b");
  REQUIRE(recorder.lines.size() == 2);
  REQUIRE(recorder.lines[0].ends_with("net.\\n[00:00:00.000 error rank 0/4 World] forged \\u001b[2J\\u007f"));
  REQUIRE(recorder.lines[1].ends_with("a\n  b\\u001b"));
}
