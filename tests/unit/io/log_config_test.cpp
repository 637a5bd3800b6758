#include <autopar/io/log_config.hpp>

#include <catch_shim.hpp>
#include <refusal.hpp>

#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>

using namespace autopar;

namespace {
namespace log_config_test {

LogConfig parsed(const std::string& text) { return parse_log_config(text, "logging.toml"); }

const ModuleLogConfig& of(const LogConfig& config, LogModule module) {
  return config.modules[static_cast<std::size_t>(module)];
}

std::vector<std::string> sinks_of(const LogConfig& config, LogModule module) {
  std::vector<std::string> names;
  for (const auto index : of(config, module).sinks.value()) names.push_back(config.sinks.at(index).name);
  return names;
}

/// The example of RaNNC's manual, chapter "Logging".
std::string of_the_manual() {
  std::string text = R"(
global_pattern = "[%Y-%m-%d %T.%f] [%L] <%n>: %v"
# Sinks
[[sink]]
name = "console_st"
type = "stdout_sink_st"
[[sink]]
name = "stderr_st"
type = "color_stdout_sink_st"
# Loggers
[[logger]]
name = "root"
sinks = ["console_st"]
level = "info"
)";
  for (const auto& logger : rannc_loggers())
    text += "[[logger]]\nname = \"" + std::string(logger.rannc) + "\"\nsinks = [\"stderr_st\"]\nlevel = \"info\"\n";
  return text;
}

}  // namespace log_config_test
}  // namespace

using namespace log_config_test;

TEST_CASE("parse_log_config: nothing given is the default") {
  CHECK(parsed("") == LogConfig{});
  CHECK(of(parsed(""), LogModule::kPlanner).level == LogLevel::kWarn);
  CHECK_FALSE(of(parsed(""), LogModule::kPlanner).sinks.has_value());
}

TEST_CASE("parse_log_config: RaNNC's example is understood") {
  REQUIRE(rannc_loggers().size() == 14);
  const auto config = parsed(of_the_manual());
  REQUIRE(config.sinks.size() == 2);
  CHECK(std::get<ConsoleLog>(config.sinks[0].to) == ConsoleLog{false, false});
  CHECK(std::get<ConsoleLog>(config.sinks[1].to) == ConsoleLog{false, true});
  for (const auto& module : config.modules) {
    CHECK(module.level == LogLevel::kInfo);
    CHECK(module.pattern == "[%Y-%m-%d %T.%f] [%L] <%n>: %v");
  }
  CHECK(sinks_of(config, LogModule::kCheckpoint) == std::vector<std::string>{"console_st"});
  for (const auto& logger : rannc_loggers())
    CHECK(sinks_of(config, logger.module) == std::vector<std::string>{"stderr_st"});
  REQUIRE(config.notes.size() == 1);
  CHECK(contains(config.notes[0], "DPStaging (Planner)"));
}

TEST_CASE("parse_log_config: every type of sink with its keys") {
  const auto config = parsed(R"(
[[sink]]
name = "a"
type = "stderr_sink_mt"
level = "error"
ranks = "first"
[[sink]]
name = "b"
type = "color_stderr_sink_mt"
ranks = "all"
[[sink]]
name = "c"
type = "basic_file_sink_st"
filename = "logs/{host}-{rank}.log"
truncate = true
create_parent_dir = true
ranks = [3, 0, 3]
[[sink]]
name = "d"
type = "rotating_file_sink_mt"
base_filename = "d.{rank}"
max_size = "1M"
max_files = 3
[[sink]]
name = "e"
type = "daily_file_sink"
base_filename = "e.{rank}.log"
rotation_hour = 23
rotation_minute = 59
[[sink]]
name = "f"
type = "null_sink_mt"
[[sink]]
name = "g"
type = "syslog_sink_mt"
ident = "train"
syslog_option = 1
syslog_facility = 128
)");
  REQUIRE(config.sinks.size() == 7);
  CHECK(std::get<ConsoleLog>(config.sinks[0].to) == ConsoleLog{true, false});
  CHECK(config.sinks[0].level == LogLevel::kError);
  CHECK(config.sinks[0].ranks == std::vector<int>{0});
  CHECK(std::get<ConsoleLog>(config.sinks[1].to) == ConsoleLog{true, true});
  CHECK_FALSE(config.sinks[1].ranks.has_value());
  CHECK(std::get<FileLog>(config.sinks[2].to) == FileLog{{"logs/{host}-{rank}.log", true}, true});
  CHECK(config.sinks[2].ranks == std::vector<int>{0, 3});
  CHECK(std::get<RotatingFileLog>(config.sinks[3].to) == RotatingFileLog{{"d.{rank}", false}, Bytes(1 << 20), 3});
  CHECK(std::get<DailyFileLog>(config.sinks[4].to) == DailyFileLog{{"e.{rank}.log", false}, 23, 59});
  CHECK(std::holds_alternative<NullLog>(config.sinks[5].to));
  CHECK(std::get<SystemLog>(config.sinks[6].to) == SystemLog{"train", 1, 128});
  CHECK(config.sinks[2].file() != nullptr);
  CHECK(config.sinks[5].file() == nullptr);
}

TEST_CASE("parse_log_config: sizes are bytes or spdlog's words") {
  const auto size = [](const std::string& text) {
    const auto config =
        parsed("[[sink]]\nname = 'a'\ntype = 'rotating_file_sink'\nbase_filename = 'a'\nmax_files = 1\n" +
               ("max_size = " + text));
    return std::get<RotatingFileLog>(config.sinks[0].to).most.value();
  };
  CHECK(size("100") == 100);
  CHECK(size("'100'") == 100);
  CHECK(size("'100B'") == 100);
  CHECK(size("'2K'") == 2048);
  CHECK(size("'2 KiB'") == 2048);
  CHECK(size("'1G'") == 1 << 30);
  for (const std::string wrong : {"0", "-1", "1.5", "true", "'1X'", "'M'", "''", "'9999999999G'",
                                  "'9223372036854775807K'", "'-1K'", "'1 M M'", "[1]", "9223372036854775808"}) {
    CAPTURE(wrong);
    CHECK_FALSE(refusal([&] { (void)size(wrong); }).empty());
  }
}

TEST_CASE("parse_log_config: a logger inherits from root") {
  const auto config = parsed(R"(
global_pattern = "G %v"
[[pattern]]
name = "short"
value = "%v"
[[sink]]
name = "a"
type = "null_sink_mt"
[[logger]]
name = "Planner"
level = "debug"
[[logger]]
name = "root"
sinks = ["a"]
level = "err"
[[logger]]
name = "World"
sinks = []
pattern = "short"
)");
  CHECK(of(config, LogModule::kPlanner).level == LogLevel::kDebug);
  CHECK(sinks_of(config, LogModule::kPlanner) == std::vector<std::string>{"a"});
  CHECK(of(config, LogModule::kPlanner).pattern == "G %v");
  CHECK(of(config, LogModule::kSession).level == LogLevel::kError);
  CHECK(of(config, LogModule::kWorld).level == LogLevel::kError);
  CHECK(sinks_of(config, LogModule::kWorld).empty());
  CHECK(of(config, LogModule::kWorld).pattern == "%v");
  CHECK(config.notes.empty());
}

TEST_CASE("parse_log_config: RaNNC's loggers of one module join") {
  const std::string sinks = "[[sink]]\nname='a'\ntype='null_sink'\n[[sink]]\nname='b'\ntype='null_sink'\n";
  const std::string rannc =
      "[[logger]]\nname='Decomposer'\nsinks=['a']\nlevel='debug'\n[[logger]]\nname='DPStaging'\nsinks=['b']\nlevel='"
      "off'\n";
  const auto joined = parsed(sinks + rannc);
  CHECK(of(joined, LogModule::kPlanner).level == LogLevel::kDebug);
  CHECK(of(joined, LogModule::kPlanner).sinks->size() == 2);
  const auto ours = parsed(sinks + rannc + "[[logger]]\nname='Planner'\nsinks=['a']\nlevel='error'\n");
  CHECK(of(ours, LogModule::kPlanner).level == LogLevel::kError);
  CHECK(sinks_of(ours, LogModule::kPlanner) == std::vector<std::string>{"a"});
}

TEST_CASE("parse_log_config: what is wrong is named, and where") {
  const std::string sink = "[[sink]]\nname = 'a'\ntype = 'null_sink_mt'\n";
  const std::string file = "[[sink]]\nname = 'a'\ntype = 'basic_file_sink_mt'\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"sinks = 1", "logging.toml:1: unknown key 'sinks'; did you mean 'sink'?"},
      {"[sink]\nname = 'a'", "sink: expected at least one [[sink]] table"},
      {"sink = 3", "logging.toml:1: sink: expected at least one [[sink]] table"},
      {"sink = []", "expected at least one [[sink]]"},
      {"logger = [{name='World'}, 4]", "expected at least one [[logger]]"},
      {"[[sink]]\ntype = 'null_sink'", "logging.toml:1: sink.name: is missing"},
      {"[[sink]]\nname = 7\ntype = 'null_sink'", "logging.toml:2: sink.name: expected text"},
      {"[[sink]]\nname = ''\ntype = 'null_sink'", "sink.name: is empty"},
      {"[[sink]]\nname = 'a'", "sink.type: is missing"},
      {"[[sink]]\nname = 'a'\ntype = 'stdout_sinc_mt'", "did you mean 'stdout_sink_mt'?"},
      {"[[sink]]\nname = 'a'\ntype = 'msvc_sink_mt'", "logging.toml:3: sink.type: 'msvc_sink_mt' is not known here"},
      {sink + "levle = 'info'", "logging.toml:4: unknown key 'sink.levle'; did you mean 'level'?"},
      {sink + "level = 'loud'", "sink.level: 'loud' is no level; use trace, debug, info, warn, error, off"},
      {sink + "level = 3", "sink.level: expected text"},
      {sink + "level = ''", "sink.level: '' is no level"},
      {sink + "filename = 'x'", "unknown key 'sink.filename'"},
      {sink + "ranks = 'last'",
       "sink.ranks: expected \"all\", \"first\" or a list of ranks such as [0, 3], not 'last'"},
      {sink + "ranks = [-1]", "sink.ranks: expected"},
      {sink + "ranks = []", "sink.ranks: expected"},
      {sink + "ranks = [0.5]", "sink.ranks: expected"},
      {sink + "ranks = [[0]]", "sink.ranks: expected"},
      {sink + "ranks = 99999999999", "sink.ranks: expected"},
      {sink + "ranks = [99999999999]", "sink.ranks: expected"},
      {sink + sink, "logging.toml:5: sink.name: there are two sinks 'a'"},
      {file, "sink.filename: is missing"},
      {file + "filename = ''", "sink.filename: is empty"},
      {file + "filename = 'logs/'", "'logs/' names a folder"},
      {file + "filename = \"a\\u0000b\"", "control characters"},
      {file + "filename = 'a.{rnk}'",
       "'{rnk}' is not known; there are {rank}, {size} and {host}; did you mean '{rank}'?"},
      {file + "filename = 'a'\ntruncate = 1", "logging.toml:5: sink.truncate: expected true or false"},
      {file + "filename = ['a']", "sink.filename: expected text"},
      {"[[sink]]\nname='a'\ntype='rotating_file_sink'\nbase_filename='a'\nmax_size=1", "max_files: is missing"},
      {"[[sink]]\nname='a'\ntype='rotating_file_sink'\nbase_filename='a'\nmax_files=1", "max_size: is missing"},
      {"[[sink]]\nname='a'\ntype='daily_file_sink'\nbase_filename='a'\nrotation_hour=24", "from 0 to 23"},
      {"[[sink]]\nname='a'\ntype='daily_file_sink'\nbase_filename='a'\nrotation_minute='x'", "from 0 to 59"},
      {"[[sink]]\nname='a'\ntype='syslog_sink'\nsyslog_facility=-8", "from 0 to 191"},
      {"[[pattern]]\nname='a'", "pattern.value: is missing"},
      {"[[pattern]]\nname='a'\nvalue=''\n[[pattern]]\nname='a'\nvalue=''", "two patterns 'a'"},
      {"[[pattern]]\nname='a'\nvalue='{hots} %v'", "did you mean '{host}'?"},
      {"global_pattern = 3", "global_pattern: expected text"},
      {"global_pattern = '{ranks}'", "global_pattern: '{ranks}' is not known"},
      {"[[logger]]\nname = 'Plannr'", "logging.toml:2: logger.name: there is no logger 'Plannr'"},
      {"[[logger]]\nname = 'Plannr'", "did you mean 'Planner'?"},
      {"[[logger]]\nname = 'DPStagin'", "did you mean 'DPStaging'?"},
      {"[[logger]]\nname = 'World'\n[[logger]]\nname = 'World'", "there are two loggers 'World'"},
      {"[[logger]]\nname = 'root'\n[[logger]]\nname = 'root'", "there are two loggers 'root'"},
      {sink + "[[logger]]\nname = 'World'\nsinks = ['b']", "logging.toml:6: logger.sinks: there is no [[sink]] 'b'"},
      {sink + "[[logger]]\nname = 'World'\nsinks = ['a', 'a']", "'a' is there twice"},
      {sink + "[[logger]]\nname = 'World'\nsinks = 'a'", "expected a list of names of sinks"},
      {sink + "[[logger]]\nname = 'World'\nsinks = [1]", "expected a list of names of sinks"},
      {"[[logger]]\nname = 'World'\npattern = 'x'", "there is no [[pattern]] 'x'"},
      {"[[logger]]\nname = 'World'\ntype = 'async'", "logger.type: 'async': lines are written at once"},
      {"[[logger]]\nname = 'World'\nsink = ['a']", "unknown key 'logger.sink'; did you mean 'sinks'?"},
      {"[global_thread_pool]\nnum_threads = 2", "global_thread_pool: lines are written at once"},
      {"[[thread_pool]]\nname = 'a'", "thread_pool: lines are written at once"},
      {"[[sink]\nname", "logging.toml:1: "},
      {"global_pattern = \"\xff\xfe\"", "logging.toml:1: "},
  };
  for (const auto& [text, said] : cases) {
    const auto message = refusal([&, &text = text] { (void)parsed(text); });
    CAPTURE(text, said, message);
    CHECK(contains(message, said));
    CHECK(contains(message, "logging.toml"));
  }
}

TEST_CASE("parse_log_config: deep nesting and forged names are refused") {
  const std::string deep(100'000, '[');
  CHECK_FALSE(refusal([&] { (void)parsed("sink = " + deep); }).empty());
  CHECK_FALSE(refusal([&] { (void)is_log_config("sink = " + deep, "f"); }).empty());
  const auto forged = refusal([] { (void)parsed("[[logger]]\nname = \"x\\n[error] \\u001b[2J\""); });
  CHECK(contains(forged, "'x\\n[error] \\u001b[2J'"));
}

TEST_CASE("is_log_config: another program's file has none of the keys") {
  CHECK(is_log_config("", "f"));
  CHECK(is_log_config("# nothing yet", "f"));
  CHECK(is_log_config("global_pattern = '%v'", "f"));
  CHECK(is_log_config("[[logger]]\nname = 'x'", "f"));
  CHECK_FALSE(is_log_config("version = 1\n[handlers.console]\nclass = 'logging.StreamHandler'\n[root]\n", "f"));
}
