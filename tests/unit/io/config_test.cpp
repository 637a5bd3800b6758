#include <autopar/io/config.hpp>

#include <catch_shim.hpp>
#include <refusal.hpp>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/schedule/traits.hpp>

using namespace autopar;

namespace {

ResolvedOptions resolve_all(const std::string& toml, std::vector<std::string> environment = {}, Options code = {}) {
  return resolve_options(code, {toml, "autopar.toml", std::move(environment)});
}

Options resolve(const std::string& toml, std::vector<std::string> environment = {}, Options code = {}) {
  return resolve_all(toml, std::move(environment), std::move(code)).options;
}

template <class Expected>
Expected error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Expected& error) {
    return error;
  }
  FAIL("no error was thrown");
  throw std::logic_error("unreachable");
}

}  // namespace

TEST_CASE("resolve_options: each source overrides the one before") {
  CHECK(resolve("").stages == 0);
  CHECK(resolve("stages = 2").stages == 2);
  CHECK(resolve("stages = 2", {}, {.stages = 3}).stages == 3);
  CHECK(resolve("stages = 2", {"AUTOPAR_STAGES=4"}, {.stages = 3}).stages == 4);
  CHECK(resolve("stages = 2", {"OTHER_STAGES=4", "PATH=/bin"}).stages == 2);
}

TEST_CASE("resolve_options: every type is read from file, environment") {
  const auto from_file = resolve(R"(
replicas = [2, 1]
batch_dims = [0, -1]
local_indices = [1, 2]
schedule = "gpipe"
device_memory = "16 GiB"
memory_margin = 0.25
plan_only = true
stall_timeout = 5
)");
  CHECK(from_file.replicas == std::vector<int>{2, 1});
  CHECK(from_file.batch_dims == std::vector<int>{0, kShared});
  CHECK(from_file.local_indices == std::vector<int>{1, 2});
  CHECK_THROWS_AS(resolve("local_indices = -1"), ConfigError);
  CHECK(from_file.schedule == ScheduleKind::kGPipe);
  CHECK(from_file.device_memory == Bytes(std::int64_t{16} << 30));
  CHECK(from_file.memory_margin == 0.25);
  CHECK(from_file.plan_only);
  CHECK(from_file.stall_timeout == Seconds(5));
  const auto from_environment =
      resolve("", {"AUTOPAR_REPLICAS=2,1", "AUTOPAR_DEVICE_MEMORY=16GiB", "AUTOPAR_PLAN_ONLY=1",
                   "AUTOPAR_MEMORY_MARGIN=0.25", "AUTOPAR_SCHEDULE=gpipe", "AUTOPAR_BATCH_DIMS=0,-1",
                   "AUTOPAR_LOCAL_INDICES=1,2", "AUTOPAR_STALL_TIMEOUT=5"});
  CHECK(from_environment == from_file);
  CHECK(resolve("replicas = 2").replicas == std::vector<int>{2});
}

TEST_CASE("resolve_options: tensor_parallel is a number or auto") {
  CHECK(resolve("tensor_parallel = 4").tensor_parallel == 4);
  CHECK(resolve("tensor_parallel = \"auto\"").tensor_parallel == 0);
  CHECK_THROWS_AS(resolve("tensor_parallel = \"all\""), ConfigError);
  CHECK_THROWS_AS(resolve("stages = \"auto\""), ConfigError);
}

TEST_CASE("resolve_options: AUTOPAR_PLAN_ONLY takes a cluster file") {
  const auto options = resolve("", {"AUTOPAR_PLAN_ONLY=examples/a100.toml"});
  CHECK(options.plan_only);
  CHECK(options.cluster_file == "examples/a100.toml");
  CHECK(options.profile_file == "autopar_profile.json");
  CHECK(options.plan_file == "autopar_plan.json");
  CHECK_FALSE(options.load_plan);
  const auto named = resolve("plan_file = \"p.json\"\nprofile_file = \"q.json\"\n", {"AUTOPAR_PLAN_ONLY=a100.toml"});
  CHECK(named.profile_file == "q.json");
  CHECK(named.plan_file == "p.json");
  CHECK(named.load_plan);
  const auto later = resolve("", {"AUTOPAR_PLAN_ONLY=a100.toml", "AUTOPAR_PROFILE_FILE=q.json"});
  CHECK(later.profile_file == "q.json");
}

TEST_CASE("resolve_options: the command line overrides everything") {
  ConfigSources sources;
  sources.text = "stages = 2\nmicrobatches = 3\n";
  sources.environment = {"AUTOPAR_STAGES=4"};
  sources.arguments = {"stages=5", "memory-margin=0.25"};
  const auto options = resolve_options({.stages = 3}, sources).options;
  CHECK(options.stages == 5);
  CHECK(options.microbatches == 3);
  CHECK(options.memory_margin == 0.25);
  sources.arguments = {"max-microbatches=many"};
  const auto error = error_of<ConfigError>([&] { (void)resolve_options({}, sources); });
  CHECK(contains(error.what(), "--max-microbatches: "));
  sources.arguments = {"stages"};
  CHECK(contains(error_of<ConfigError>([&] { (void)resolve_options({}, sources); }).what(), "KEY=VALUE"));
}

TEST_CASE("resolve_options: an unknown key names the nearest one") {
  const auto error = error_of<ConfigError>([] { (void)resolve("\nmicrobatchs = 2\n"); });
  CHECK(error.key() == "microbatchs");
  CHECK(error.nearest() == "microbatches");
  CHECK(error.line() == 2);
  CHECK(contains(error.what(), "autopar.toml:2"));
  const auto variable = error_of<ConfigError>([] { (void)resolve("", {"AUTOPAR_SHEDULE=gpipe"}); });
  CHECK(variable.nearest() == "schedule");
  CHECK(contains(variable.what(), "AUTOPAR_SHEDULE"));
}

TEST_CASE("resolve_options: a wrong type or value is named with its key") {
  CHECK(contains(error_of<ConfigError>([] { (void)resolve("stages = \"two\""); }).what(), "whole number"));
  CHECK(contains(error_of<ConfigError>([] { (void)resolve("stages = 2.5"); }).what(), "whole number"));
  CHECK(contains(error_of<ConfigError>([] { (void)resolve("stages = -1"); }).what(), "-1 is out of range"));
  CHECK(contains(error_of<ConfigError>([] { (void)resolve("memory_margin = 1.0"); }).what(), "out of range"));
  CHECK(contains(error_of<ConfigError>([] { (void)resolve("replicas = [1, \"x\"]"); }).what(), "whole numbers"));
  CHECK(contains(error_of<ConfigError>([] { (void)resolve("stages = "); }).what(), "autopar.toml:1"));
  CHECK(contains(error_of<ConfigError>([] { (void)resolve("[stages]\nx = 1"); }).what(), "expected"));
  CHECK(error_of<ConfigError>([] { (void)resolve("schedule = \"gpip\""); }).nearest() == "gpipe");
  CHECK(contains(error_of<ConfigError>([] { (void)resolve("", {"AUTOPAR_STAGES=2x"}); }).what(), "number"));
  CHECK(contains(error_of<ConfigError>([] { (void)resolve("", {"AUTOPAR_STAGES=nan"}); }).what(), "whole number"));
  CHECK(contains(error_of<InvalidArgument>([] { (void)resolve("", {}, {.zero = 7}); }).what(), "zero"));
  CHECK(contains(error_of<InvalidArgument>([] { (void)resolve("min_microbatches = 8\nmax_microbatches = 4"); }).what(),
                 "exceeds"));
}

namespace {

/// An unknown word is refused where it stands, with the known ones and the nearest.
void check_refused(const std::string& key, const std::string& word, const std::string& known,
                   const std::string& nearest) {
  CAPTURE(key, word);
  const auto error = error_of<ConfigError>([&] { (void)resolve("\n" + key + " = \"" + word + "\"\n"); });
  const std::string text = key + ": '" + word + "' is not one of " + known;
  CHECK_THAT(error.what(), Catch::Matchers::Contains(text) && Catch::Matchers::Contains("autopar.toml:2"));
  CHECK(error.key() == key);
  CHECK(error.nearest() == nearest);
  auto variable = "AUTOPAR_" + key;
  std::ranges::transform(variable, variable.begin(), [](unsigned char c) { return std::toupper(c); });
  const auto outside = error_of<ConfigError>([&] { (void)resolve("", {variable + "=" + word}); });
  CHECK_THAT(outside.what(), Catch::Matchers::Contains(text) && Catch::Matchers::Contains(variable));
}

}  // namespace

TEST_CASE("resolve_options: an unknown word names the known ones") {
  check_refused("sequence_parallel", "onn", "auto | on | off", "on");
  check_refused("class_head", "hole", "auto | whole | chunked", "whole");
  check_refused("fusion", "offf", "auto | on | off", "off");
  check_refused("cuda_graphs", "on", "auto | off", "off");
  check_refused("offload", "optimiser", "auto | none | optimizer", "optimizer");
  check_refused("schedule", "zb-h", "auto | gpipe | 1f1b | interleaved | zb-h1 | zb-v | synth", "zb-h1");
  check_refused("precision", "bf32", "module | tf32 | bf16 | bf16-compute | fp16 | fp8", "tf32");
  check_refused("reduce_dtype", "fp23", "auto | fp32 | bf16", "fp32");
  check_refused("batch_norm", "exakt", "microbatch | exact", "exact");
  check_refused("device", "cud", "auto | cpu | cuda", "cuda");
  check_refused("costs", "profile", "auto | roofline | profiled", "profiled");
  const auto no_text = error_of<ConfigError>([] { (void)resolve("fusion = true"); });
  CHECK(contains(no_text.what(), "expected text in quotes"));
  const auto empty = error_of<ConfigError>([] { (void)resolve("recompute = \"\""); });
  CHECK(contains(empty.what(), "recompute: is empty; use 'auto', 'none', 'full' or names of modules"));
}

TEST_CASE("resolve_options: words are read, shown and compared as text") {
  const std::vector<std::pair<std::string, std::string>> words{
      {"sequence_parallel", "on"}, {"class_head", "chunked"}, {"fusion", "off"},      {"cuda_graphs", "off"},
      {"offload", "none"},         {"schedule", "zb-h1"},     {"recompute", "a,b.0"}, {"precision", "bf16-compute"},
      {"reduce_dtype", "bf16"},    {"batch_norm", "exact"},   {"device", "cpu"},      {"costs", "roofline"}};
  std::string file;
  for (const auto& [key, word] : words) file += key + " = \"" + word + "\"\n";
  const Options read = resolve(file);
  const Options in_code{.sequence_parallel = Switch::kOn,
                        .class_head = ClassHead::kChunked,
                        .fusion = Switch::kOff,
                        .cuda_graphs = CudaGraphs::kOff,
                        .offload = Offload::kNone,
                        .schedule = ScheduleKind::kZbH1,
                        .recompute = RecomputeOption::of_modules({"a", "b.0"}),
                        .precision = Precision::kBf16Compute,
                        .reduce_dtype = ReduceDtype::kBf16,
                        .batch_norm = BatchNorm::kExact,
                        .device = DeviceChoice::kCpu,
                        .costs = CostChoice::kRoofline};
  CHECK(read == in_code);
  CHECK(resolve("", {}, in_code) == in_code);
  const auto shown = describe_options(in_code), usual = describe_options({});
  for (const auto& row : words) CHECK(std::ranges::count(shown, row) == 1);
  for (const char* key : {"offload", "schedule", "recompute", "reduce_dtype", "costs", "device"})
    CHECK(std::ranges::count(usual, std::pair<std::string, std::string>(key, "auto")) == 1);
  CHECK(std::ranges::count(usual, std::pair<std::string, std::string>("precision", "module")) == 1);
  // Code is stronger than the file, the environment than code.
  CHECK(resolve("schedule = \"gpipe\"", {}, in_code).schedule == ScheduleKind::kZbH1);
  CHECK(resolve("", {"AUTOPAR_SCHEDULE=auto", "AUTOPAR_RECOMPUTE=none"}, in_code).schedule == std::nullopt);
  CHECK(resolve("", {"AUTOPAR_RECOMPUTE=none"}, in_code).recompute == Recompute::kNever);
}

TEST_CASE("resolve_options: a value that its type does not have is refused") {
  const auto error = error_of<InvalidArgument>([] { (void)resolve("", {}, {.fusion = static_cast<Switch>(7)}); });
  CHECK(contains(error.what(), "Options::fusion"));
}

TEST_CASE("resolve_options: RaNNC's keys are understood, with a note") {
  const auto out = resolve_options({}, {R"(
mem_margin = 0.2
partition_num = 2
replica_num = 3
pipeline_num = 4
min_pipeline = 2
max_pipeline = 8
opt_param_factor = 1
deployment_file = "plan.json"
save_deployment = false
load_deployment = true
trace_events = true
checkpointing = true
auto_parallel = false
)",
                                        "autopar.toml",
                                        {"RANNC_MAX_PIPELINE=16", "RANNC_CONF_DIR=/tmp"}});
  CHECK(out.options.memory_margin == 0.2);
  CHECK(out.options.stages == 2);
  CHECK(out.options.replicas == std::vector<int>{3});
  CHECK(out.options.microbatches == 4);
  CHECK(out.options.min_microbatches == 2);
  CHECK(out.options.max_microbatches == 16);
  CHECK(out.options.optimizer_state_factor == 1);
  CHECK(out.options.plan_file == "plan.json");
  CHECK_FALSE(out.options.save_plan);
  CHECK(out.options.trace_file == "autopar_trace.json");
  CHECK(out.options.recompute == Recompute::kAlways);
  CHECK(out.notes.size() == 14);
  for (const auto& alias : rannc_aliases()) CHECK_FALSE(alias.meaning.empty());
}

namespace {

/// What options become by one of RaNNC's keys, as "name = value" of those that differ from `before`.
std::string effect_of(const std::string& toml, const Options& before = {}) {
  const auto out = resolve(toml);
  const auto old = describe_options(before), now = describe_options(out);
  std::string text;
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (now[i] != old[i]) text += (text.empty() ? "" : "; ") + now[i].first + " = " + now[i].second;
  }
  return text;
}

}  // namespace

TEST_CASE("resolve_options: each key of RaNNC's manual, and its type") {
  struct Key {
    std::string name, value, effect, wrong;
  };
  // Table 1 of the manual's chapter "Configurations", and then its example, in their order.
  const std::vector<Key> keys = {
      {"mem_margin", "0.2", "memory_margin = 0.20000000000000001", "'a'"},
      {"save_deployment", "false", "save_plan = false", "'yes'"},
      {"load_deployment", "false", "load_plan = false", "3"},
      {"deployment_file", "'/tmp/rannc_deployment.bin'", "plan_file = /tmp/rannc_deployment.bin", "3"},
      {"min_pipeline", "2", "min_microbatches = 2", "'2'"},
      {"max_pipeline", "32", "max_microbatches = 32", "2.5"},
      {"opt_param_factor", "3", "optimizer_state_factor = 3", "'3'"},
      {"trace_events", "true", "trace_file = autopar_trace.json", "1"},
      {"event_trace_file", "'/tmp/rannc_event_trace.json'", "trace_file = /tmp/rannc_event_trace.json", "true"},
      {"profiling", "true", "log_level = info", "'on'"},
      {"dump_graph", "true", "graph_file = autopar_graph.dot", "'net'"},
      {"dump_graph_prefix", "'graph_dump'", "", "7"},
      {"partition_num", "2", "stages = 2", "true"},
      {"replica_num", "1", "replicas = 1", "'a'"},
      {"pipeline_num", "1", "microbatches = 1", "-1"},
      {"validate_comm", "false", "", "3"},
      {"display_comm_value", "true", "log_level = warn,Executor=trace", "0"},
      {"profiling_iter", "1", "", "true"},
      {"consolidate_grads", "false", "", "'a'"},
      {"checkpointing", "true", "recompute = full", "1"},
      {"checkpointing_no_last", "false", "", "1"},
      {"auto_parallel", "false", "", "1"},
      {"p2p_comm", "true", "", "1"},
      {"min_partition_num", "5", "", "false"},
      {"max_partition_num", "30", "", "1.5"},
      {"do_uncoarsening", "true", "", "1"},
      {"save_graph_profile", "true", "profile_file = autopar_profile.json", "'p'"},
      {"load_graph_profile", "false", "", "1"},
      {"verify_recomp", "false", "verify_capture = false", "1"},
      {"coarsen_by_time", "false", "", "1"},
      {"skip_grad_scaling", "false", "", "1"},
  };
  for (const auto& key : keys) {
    CAPTURE(key.name);
    CHECK(effect_of(key.name + " = " + key.value) == key.effect);
    const auto resolved = resolve_all(key.name + " = " + key.value);
    REQUIRE(resolved.notes.size() == 1);
    CHECK(contains(resolved.notes[0], "option '" + key.name + "' is RaNNC's name: "));
    const auto refused = refusal([&] { (void)resolve(key.name + " = " + key.wrong); });
    CHECK(contains(refused, "autopar.toml:1: " + key.name + ": "));

    std::string name = "RANNC_" + key.name, value = key.value;
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
    value.erase(std::remove(value.begin(), value.end(), '\''), value.end());
    CHECK(describe_options(resolve("", {name + "=" + value})) ==
          describe_options(resolve(key.name + " = " + key.value)));
  }
}

TEST_CASE("resolve_options: a switch and its file, in either order") {
  CHECK(effect_of("trace_events = false\nevent_trace_file = 'x'").empty());
  CHECK(effect_of("event_trace_file = 'x'\ntrace_events = false").empty());
  CHECK(effect_of("trace_events = true\nevent_trace_file = 'x'") == "trace_file = x");
  CHECK(effect_of("event_trace_file = 'x'\ntrace_events = true") == "trace_file = x");
  CHECK(effect_of("dump_graph_prefix = 'x'\ndump_graph = true") == "graph_file = x.dot");
  CHECK(effect_of("dump_graph = true\ndump_graph_prefix = 'x'") == "graph_file = x.dot");
  CHECK(effect_of("dump_graph = false\ndump_graph_prefix = 'x'").empty());
  CHECK(effect_of("graph_profile_file = 'x'\nsave_graph_profile = false").empty());
  CHECK(effect_of("save_graph_profile = true\ngraph_profile_file = 'x'") == "profile_file = x");
  CHECK(resolve("trace_events = false", {"RANNC_EVENT_TRACE_FILE=x"}).trace_file.empty());
  CHECK(resolve("event_trace_file = 'x'", {"RANNC_TRACE_EVENTS=1"}).trace_file == "x");
  CHECK(resolve("trace_events = false", {"AUTOPAR_TRACE_FILE=x"}).trace_file == "x");
}

TEST_CASE("resolve_options: offload_params moves the optimizer") {
  CHECK(resolve("offload_params = true").offload == Offload::kOptimizer);
  CHECK_FALSE(resolve("offload_params = false").offload.has_value());
}

TEST_CASE("resolve_options: whether someone set log_level") {
  CHECK_FALSE(resolve_all("").sets_log_level);
  CHECK_FALSE(resolve_all("stages = 2").sets_log_level);
  CHECK(resolve_all("log_level = 'warn'").sets_log_level);
  CHECK(resolve_all("profiling = true").sets_log_level);
  CHECK_FALSE(resolve_all("profiling = false").sets_log_level);
  CHECK(resolve_all("", {}, {.log_level = "info"}).sets_log_level);
  CHECK(resolve_all("", {"AUTOPAR_LOG_LEVEL=warn"}).sets_log_level);
}

TEST_CASE("resolve_options: RaNNC's zero means not forced") { CHECK(resolve("replica_num = 0").replicas.empty()); }

TEST_CASE("describe_options: equal for equal values") {
  CHECK(describe_options({}) == describe_options(resolve("stages = 0")));
  CHECK(describe_options({}) != describe_options({.stages = 1}));
}

TEST_CASE("process_config_sources: cache folder follows XDG, then HOME") {
  const auto value_of = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const auto cache = value_of("XDG_CACHE_HOME"), home = value_of("HOME");
  ::setenv("XDG_CACHE_HOME", "/somewhere", 1);
  ::setenv("HOME", "/home/someone", 1);
  CHECK(process_config_sources().cache_folder == "/somewhere/autopar");
  ::setenv("XDG_CACHE_HOME", "not/absolute", 1);
  CHECK(process_config_sources().cache_folder == "/home/someone/.cache/autopar");
  ::unsetenv("XDG_CACHE_HOME");
  CHECK(process_config_sources().cache_folder == "/home/someone/.cache/autopar");
  ::unsetenv("HOME");
  CHECK(process_config_sources().cache_folder.empty());
  if (!cache.empty()) ::setenv("XDG_CACHE_HOME", cache.c_str(), 1);
  if (!home.empty()) ::setenv("HOME", home.c_str(), 1);
}

TEST_CASE("resolve_options: stall warning after timeout is refused") {
  CHECK_NOTHROW(resolve_options({.stall_warning = Seconds(5), .stall_timeout = Seconds(5)}, {}));
  CHECK_NOTHROW(resolve_options({.stall_timeout = Seconds(5)}, {}));
  for (const auto& options :
       {Options{.stall_warning = Seconds(700)}, Options{.stall_warning = Seconds(3), .stall_timeout = Seconds(1.5)}}) {
    try {
      static_cast<void>(resolve_options(options, {}));
      FAIL("accepted");
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      CHECK(text.find("stall_warning = ") == 0);
      CHECK(text.find("exceeds stall_timeout = ") != std::string::npos);
    }
  }
}

TEST_CASE("start_timeout: read from the environment alone") {
  CHECK(start_timeout({}) == Seconds(120));
  CHECK(start_timeout({"AUTOPAR_STAGES=2", "AUTOPAR_START_TIMEOUT=2.5"}) == Seconds(2.5));
  CHECK(resolve("", {"AUTOPAR_START_TIMEOUT=2.5"}).stall_timeout == Options{}.stall_timeout);
  for (const std::string value : {"soon", "0", "-3", "", "nan"}) {
    CAPTURE(value);
    const auto error = error_of<ConfigError>([&] { (void)start_timeout({"AUTOPAR_START_TIMEOUT=" + value}); });
    CHECK(contains(error.what(), "AUTOPAR_START_TIMEOUT"));
  }
  const auto error = error_of<ConfigError>([] { (void)resolve("start_timeout = 5"); });
  CHECK(contains(error.what(), "only the environment"));
}
