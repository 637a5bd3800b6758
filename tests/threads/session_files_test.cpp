#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <sys/stat.h>

#include <torch/nn.h>
#include <torch/types.h>

#include <autopar/autopar.hpp>
#include <autopar/core/printable.hpp>
#include <autopar/io/cost_file.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/io/profile_file.hpp>
#include <autopar/io/supervision.hpp>
#include <autopar/plan/report/print.hpp>
#include <autopar/runtime/loopback.hpp>
#include <autopar/torch/device.hpp>

#include <catch_shim.hpp>
#include <nets.hpp>
#include <temp_folder.hpp>

#include "torch/cost/measured/profiler.hpp"

// The files that options name: plan, profile, report, graph and trace.
namespace session_files_test {

namespace ap = autopar;
namespace fs = std::filesystem;

struct NetImpl : nets::MeanSquare<nets::Linears> {
  explicit NetImpl(int64_t hidden = 6) : MeanSquare(4, {{"first", hidden}, {"second", 3}}, torch::relu) {}
};
TORCH_MODULE(Net);

/// Two steps on each rank. @return rank 0's plan
ap::Plan train(int ranks, const ap::Options& options, int64_t hidden = 6) {
  ap::Plan plan;
  ap::loopback::run(ranks, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, Net(hidden), options);
    for (int step = 0; step < 2; ++step) model(torch::ones({4, 4})).backward();
    if (world.rank() == 0) plan = model->plan();
  });
  return plan;
}

/// What `work` throws, or nothing.
std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const ap::Error& error) {
    return error.what();
  }
  return "";
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

bool contains(const std::string& text, const std::string& part) { return count(text, part) > 0; }

TEST_CASE("plan file: written if missing, read if present", "[files]") {
  const TempFolder folder;
  ap::Options options{.stages = 2, .microbatches = 2, .plan_file = folder / "plan.json"};
  const auto made = train(2, options);
  const auto stored = ap::read_plan(options.plan_file);
  CHECK(stored == made);
  CHECK(stored.microbatches == 2);

  // What stands in the file is run, whatever a planner would choose.
  auto changed = stored;
  changed.microbatches = 4;
  ap::write_plan(options.plan_file, changed);
  CHECK(train(2, {.plan_file = options.plan_file}) == changed);
  CHECK(ap::read_plan(options.plan_file) == changed);

  options.load_plan = false;
  options.save_plan = false;
  CHECK(train(2, options).microbatches == 2);
  CHECK(ap::read_plan(options.plan_file) == changed);
}

TEST_CASE("plan file: a restart of autopar run with other ranks plans again, and leaves it", "[files]") {
  const TempFolder folder;
  const ap::Options options{.plan_file = folder / "plan.json"};
  const auto made = train(3, options);
  const auto restart = [](std::int64_t start) {
    const auto text = ap::to_text({.folder = "/nowhere", .job = "test", .start = start});
    ::setenv(ap::kSupervisionVariable, text.c_str(), 1);
  };
  restart(1);
  CHECK(contains(refusal([&] { train(2, options); }), "start as many ranks, or remove the plan to plan again"));
  restart(2);
  CHECK(train(2, options).world == 2);
  CHECK(ap::read_plan(options.plan_file) == made);
  CHECK(train(3, options) == made);
  ::unsetenv(ap::kSupervisionVariable);
}

TEST_CASE("plan file: another model, world or version is refused", "[files]") {
  const TempFolder folder;
  const ap::Options options{.stages = 2, .plan_file = folder / "plan.json"};
  const auto made = train(2, options);

  const auto other_world = refusal([&] { train(3, {.plan_file = options.plan_file}); });
  CAPTURE(other_world);
  CHECK(contains(other_world, "2 ranks"));
  CHECK(contains(other_world, "3"));

  const auto other_model = refusal([&] { train(2, {.plan_file = options.plan_file}, 7); });
  CAPTURE(other_model);
  CHECK(contains(other_model, "another model"));
  CHECK(contains(other_model, std::to_string(made.model)));

  auto text = ap::read_text_file(options.plan_file);
  const std::string version = "\"version\": " + std::to_string(made.version);
  REQUIRE(contains(text, version));
  text.replace(text.find(version), version.size(), "\"version\": 999");
  ap::write_text_file(options.plan_file, text);
  const auto other_version = refusal([&] { train(2, options); });
  CAPTURE(other_version);
  CHECK(contains(other_version, "999"));
  CHECK(contains(other_version, std::to_string(made.version)));
  CHECK(contains(other_version, "plan.json"));
}

TEST_CASE("plan file: every schedule runs, misplaced stages are refused", "[files]") {
  const TempFolder folder;
  const auto file = [&](ap::ScheduleKind schedule) { return folder / (ap::name_of(schedule) + ".json").c_str(); };
  for (const auto kind : ap::kScheduleKinds) {
    CAPTURE(ap::name_of(kind));
    const auto made = train(2, {.stages = 2, .microbatches = 3, .schedule = kind, .plan_file = file(kind)});
    CHECK(made.schedule == kind);
    if (wants_chunks(kind)) CHECK(made.stages.size() >= 4);
    CHECK(train(2, {.plan_file = file(kind)}) == made);
  }
  for (const ap::ScheduleKind schedule : {ap::ScheduleKind::kInterleaved, ap::ScheduleKind::kZbV}) {
    auto elsewhere = ap::read_plan(file(schedule));
    std::swap(elsewhere.stages[0].mesh, elsewhere.stages[1].mesh);
    ap::write_plan(file(schedule), elsewhere);
    const auto refused = refusal([&] { train(2, {.plan_file = file(schedule)}); });
    CAPTURE(refused);
    CHECK(contains(refused, "stages[2].ranks: stage 2 is not where"));
  }
  ::setenv("AUTOPAR_SCHEDULE", "zb-h1", 1);
  const auto plan = train(2, {.stages = 2});
  ::unsetenv("AUTOPAR_SCHEDULE");
  CHECK(plan.schedule == ap::ScheduleKind::kZbH1);
}

TEST_CASE("profile, report and graph files: written when planned", "[files]") {
  const TempFolder folder;
  const auto plan = train(2, {.stages = 2,
                              .profile_file = folder / "profile.json",
                              .graph_file = folder / "graph.dot",
                              .report_file = folder / "report.txt"});
  const auto profile = ap::read_profile(folder / "profile.json");
  CHECK(profile.hash == plan.model);
  CHECK(profile.parameters.size() == 4);
  CHECK(ap::read_text_file(folder / "report.txt") == ap::file_mark("report", plan.model) + "\n" + ap::to_text(plan));

  const auto graph = ap::read_text_file(folder / "graph.dot");
  CAPTURE(graph);
  CHECK(graph.starts_with("// " + ap::file_mark("graph", plan.model) + "\ndigraph"));
  CHECK(contains(graph, "label=\"stage 0\""));
  CHECK(contains(graph, "label=\"stage 1\""));
  CHECK(count(graph, "aten::linear") == 2);
  CHECK(count(graph, "aten::relu") == 1);
  CHECK(contains(graph, "input0 -> op0 [label=\"Float[B, 4]\"]"));
  CHECK(contains(graph, "-> output0;"));
}

struct Block : torch::nn::Module {
  Block() : a(register_module("a", torch::nn::Linear(4, 4))), b(register_module("b", torch::nn::Linear(4, 4))) {}
  torch::Tensor forward(const torch::Tensor& x) { return b(torch::relu(a(x))); }
  torch::nn::Linear a, b;
};

struct Blocks : torch::nn::Module {
  Blocks() {
    for (int i = 0; i < 2; ++i) layers->push_back(Block());
    register_module("layers", layers);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) x = layer->as<Block>()->forward(x);
    return x.pow(2).mean();
  }
  torch::nn::ModuleList layers;
};

TEST_CASE("graph_file: boxes of modules lie in one another", "[files]") {
  const TempFolder folder;
  ap::loopback::run(1, [&](ap::World& world) {
    ap::AutoParallel<Blocks> model(world, [] { return Blocks(); }, {.graph_file = folder / "graph.dot"});
    model(torch::ones({4, 4})).backward();
  });
  // What is in a box, by its label: operators and boxes, in order.
  std::map<std::string, std::vector<std::string>> inside;
  std::vector<std::string> open;
  std::istringstream lines(ap::read_text_file(folder / "graph.dot"));
  const std::regex label("^ *label=\"(.*)\";$"), op("^ *op[0-9]+ \\[label=\"([^\"]*)\"(, tooltip=\"([^\"]*)\")?\\];$");
  std::set<std::string> clusters;
  for (std::string line; std::getline(lines, line);) {
    std::smatch found;
    if (line.find("subgraph cluster_") != std::string::npos) CHECK(clusters.insert(line).second);
    if (std::regex_match(line, found, label)) {
      if (!open.empty()) inside[open.back()].push_back(found[1]);
      open.push_back(found[1]);
    } else if (std::regex_match(line, found, op)) {
      inside[open.back()].push_back(found[1]);
      if (open.back() != "stage 0") CHECK(found[3] == open.back());
    } else if (line.ends_with("}") && !open.empty()) {
      open.pop_back();
    }
  }
  CHECK(open.empty());
  using List = std::vector<std::string>;
  CHECK(inside["layers"] == List{"layers.0", "layers.1"});
  CHECK(inside["layers.0"] == List{"aten::relu", "layers.0.a", "layers.0.b"});
  CHECK(inside["layers.1.b"] == List{"aten::linear"});
  CHECK(std::ranges::count(inside["stage 0"], "layers") == 1);
}

TEST_CASE("graph_after: graph shows the program after the named pass", "[files]") {
  const TempFolder folder;
  const auto written = [&](const std::string& pass) {
    train(2, {.stages = 2, .graph_file = folder / "graph.dot", .graph_after = pass, .log_level = "off"});
    return ap::read_text_file(folder / "graph.dot");
  };
  const auto first = written("hoist_parameter_casts"), linear = written("fold_linear");
  CHECK(contains(first, "\n// the program after hoist_parameter_casts\ndigraph"));
  CHECK(count(first, "aten::linear") == 0);
  CHECK(count(linear, "aten::linear") == 2);
  CHECK_FALSE(contains(linear, "stage 0"));
  CHECK(contains(written("fold_pointwise"), "at the place of fold_pointwise, which did not run"));
  const auto refused = refusal([&] { train(2, {.graph_after = "fold_linaer"}); });
  CHECK(contains(refused, "did you mean 'fold_linear'?"));
}

TEST_CASE("foreign output file: replaced only where allowed", "[files]") {
  const TempFolder folder;
  const auto path = folder / "mine";
  const std::vector<std::function<void(ap::Options&)>> names{
      [&](ap::Options& options) { options.profile_file = path; },
      [&](ap::Options& options) { options.graph_file = path; },
      [&](ap::Options& options) { options.report_file = path; },
      [&](ap::Options& options) { options.plan_file = path, options.load_plan = false; },
      [&](ap::Options& options) { options.costs = ap::CostChoice::kProfiled, options.cost_file = path; },
      [&](ap::Options& options) { options.trace_file = path; }};
  for (std::size_t i = 0; i < names.size(); ++i) {
    ap::Options options;
    names[i](options);
    CAPTURE(i);
    ap::write_text_file(path, "my thesis");
    const auto refused = refusal([&] { train(1, options); });
    CAPTURE(refused);
    CHECK(contains(refused, "was not written by autopar"));
    CHECK(contains(refused, "overwrite = true"));
    CHECK(ap::read_text_file(path) == "my thesis");
    options.overwrite = true;
    CHECK_NOTHROW(train(1, options));
    CHECK(contains(ap::read_text_file(path).substr(0, 256), "autopar "));
    options.overwrite = false;
    CHECK_NOTHROW(train(1, options));          // its own
    if (!options.cost_file.empty()) continue;  // costs are of all models
    CHECK(contains(refusal([&] { train(1, options, 7); }), "holds an autopar "));
  }
}

TEST_CASE("plan file: partition of another program is refused by field", "[files]") {
  const TempFolder folder;
  const ap::Options options{.stages = 2, .plan_file = folder / "plan.json"};
  const auto made = train(2, options);
  const auto refused = [&](const std::string& field, const std::function<void(ap::Plan&)>& damage) {
    auto plan = made;
    damage(plan);
    ap::write_plan(options.plan_file, plan);
    const auto text = refusal([&] { train(2, {.plan_file = options.plan_file}); });
    CAPTURE(field, text);
    CHECK(contains(text, "the plan: " + field + ": "));
  };
  refused("stages[1].ops", [](ap::Plan& plan) { plan.stages[1].ops = plan.stages[0].ops; });
  refused("stages[0].ops", [](ap::Plan& plan) { plan.stages[0].ops.pop_back(); });
  refused("stages[0].ops", [](ap::Plan& plan) { plan.stages[0].ops.push_back(1'000'000); });
  refused("stages[1].atoms", [](ap::Plan& plan) { plan.stages[1].atoms.push_back(plan.stages[0].atoms[0]); });
}

TEST_CASE("profiled costs: measured once, again if the file is damaged", "[files]") {
  const TempFolder folder;
  const ap::Options options{.microbatches = 2, .costs = ap::CostChoice::kProfiled, .cost_file = folder / "costs.json"};
  static_cast<void>(train(2, options));
  const auto text = ap::read_text_file(options.cost_file);
  CHECK(contains(text, "\"device\":\"cpu: "));
  CHECK(count(text, "\"structure\"") >= 4);  // linear, relu, linear, pow, mean: some of them in one atom
  CHECK(count(text, "\"ranks\":2") == 1);    // the one sum that two ranks can make

  static_cast<void>(train(2, options));
  CHECK(ap::read_text_file(options.cost_file) == text);  // nothing is measured twice

  ap::write_text_file(options.cost_file, text.substr(0, text.size() / 2));
  static_cast<void>(train(2, options));
  const auto again = ap::read_text_file(options.cost_file);
  CHECK(count(again, "\"structure\"") == count(text, "\"structure\""));
  CHECK(contains(again, "\"checksum\""));
}

/// XDG_CACHE_HOME while it lives.
struct CacheHome {
  explicit CacheHome(const std::string& folder) { ::setenv("XDG_CACHE_HOME", folder.c_str(), 1); }
  ~CacheHome() {
    if (before.empty())
      ::unsetenv("XDG_CACHE_HOME");
    else
      ::setenv("XDG_CACHE_HOME", before.c_str(), 1);
  }
  std::string before = std::getenv("XDG_CACHE_HOME") == nullptr ? "" : std::getenv("XDG_CACHE_HOME");
};

TEST_CASE("profiled costs: cached per user unless a file is named", "[files]") {
  const TempFolder folder;
  const CacheHome home(folder / "home");
  const auto kept = [&] {
    std::vector<fs::path> files;
    const fs::path cache = fs::path(folder / "home") / "autopar";
    if (fs::exists(cache)) files.assign(fs::directory_iterator(cache), fs::directory_iterator());
    return files;
  };
  static_cast<void>(train(2, {.costs = ap::CostChoice::kProfiled, .cost_file = "none"}));
  static_cast<void>(train(2, {.costs = ap::CostChoice::kProfiled, .cost_file = folder / "named.json"}));
  static_cast<void>(train(2, {.costs = ap::CostChoice::kRoofline}));
  CHECK(kept().empty());
  static_cast<void>(train(2, {.costs = ap::CostChoice::kProfiled}));
  REQUIRE(kept().size() == 1);
  const auto file = kept()[0];
  const auto text = ap::read_text_file(file);
  static_cast<void>(train(2, {.costs = ap::CostChoice::kProfiled}));
  CHECK(ap::read_text_file(file) == text);  // nothing is measured twice
  static_cast<void>(train(2, {.costs = ap::CostChoice::kProfiled}, 7));
  CHECK(count(ap::read_text_file(file), "\"structure\"") > count(text, "\"structure\""));  // what is new is added
  ap::write_text_file(file, text.substr(0, text.size() / 2));
  static_cast<void>(train(2, {.costs = ap::CostChoice::kProfiled}));
  CHECK(count(ap::read_text_file(file), "\"structure\"") == count(text, "\"structure\""));
  REQUIRE(kept().size() == 1);
}

TEST_CASE("unwritable cache folder: training still runs", "[files]") {
  const TempFolder folder;
  ap::write_text_file(folder / "home", "a file where a folder is wanted");
  const CacheHome home(folder / "home");
  CHECK_NOTHROW(train(2, {.costs = ap::CostChoice::kProfiled}));
}

/// Two steps on each rank, as `train`. @return what the ranks warn of
std::vector<std::string> warnings(int ranks, const ap::Options& options) {
  std::vector<std::string> lines;
  std::mutex mutex;
  ap::loopback::run(ranks, [&](ap::World& world) {
    world.log().set_writer([&](const std::string& line) {
      const std::lock_guard lock(mutex);
      if (!contains(line, "differ from rank 0's")) lines.push_back(line);  // parameters that each rank drew
    });
    ap::AutoParallel<Net> model(world, Net(6), options);
    for (int step = 0; step < 2; ++step) model(torch::ones({4, 4})).backward();
  });
  return lines;
}

std::size_t count(const std::vector<std::string>& lines, const std::string& part) {
  return static_cast<std::size_t>(std::ranges::count_if(lines, [&](const auto& line) { return contains(line, part); }));
}

TEST_CASE("symlink at the cost file's name: replaced, its target stays", "[files]") {
  const TempFolder folder;
  const CacheHome home(folder / "home");
  const fs::path cache = fs::path(folder / "home") / "autopar";
  static_cast<void>(train(2, {.costs = ap::CostChoice::kProfiled}));
  REQUIRE(fs::exists(cache));
  const auto file = fs::directory_iterator(cache)->path();
  ap::write_text_file(folder / "thesis", ap::read_text_file(file));
  const auto text = ap::read_text_file(folder / "thesis");
  fs::remove(file);
  fs::create_symlink(folder / "thesis", file);
  const auto refused = warnings(2, {.costs = ap::CostChoice::kProfiled});
  CAPTURE(refused);
  CHECK(count(refused, file.string() + " is not used: it is a link") == 1);
  CHECK_FALSE(fs::is_symlink(file));
  CHECK(ap::read_text_file(folder / "thesis") == text);
  CHECK(warnings(2, {.costs = ap::CostChoice::kProfiled}).empty());  // what was made again is used
}

TEST_CASE("world-writable cache: refused once, usable by the remedy", "[files]") {
  const TempFolder folder;
  const CacheHome home(folder / "home");
  const fs::path cache = fs::path(folder / "home") / "autopar";
  fs::create_directories(cache);
  fs::permissions(cache, fs::perms(0777));
  const auto refused = warnings(2, {.costs = ap::CostChoice::kProfiled});
  REQUIRE(count(refused, "the cache " + cache.string() + " is not used: others may write to it") == 1);
  CHECK(fs::is_empty(cache));
  const auto at = refused[0].find("chmod 700");
  REQUIRE(at != std::string::npos);
  REQUIRE(std::system(refused[0].substr(at).c_str()) == 0);
  CHECK(warnings(2, {.costs = ap::CostChoice::kProfiled}).empty());
  CHECK_FALSE(fs::is_empty(cache));
}

TEST_CASE("unwritable optional files: one warning, training continues", "[files]") {
  const TempFolder folder;
  ap::write_text_file(folder / "file", "no folder");
  for (const auto& nowhere : {fs::path("/dev/full"), folder / "file" / "below", fs::path(folder / "")}) {
    for (const int ranks : {1, 2}) {
      const bool measures = ranks == 1 && nowhere == "/dev/full";  // which takes seconds
      ap::Options options{.microbatches = 2, .costs = measures ? ap::CostChoice::kProfiled : ap::CostChoice::kRoofline};
      options.plan_file = options.profile_file = options.graph_file = options.report_file = nowhere;
      options.load_plan = false;
      options.trace_file = nowhere;
      options.cost_file = nowhere;
      const auto lines = warnings(ranks, options);
      CAPTURE(nowhere.string(), ranks, lines);
      for (const std::string option : {"plan_file", "profile_file", "graph_file", "report_file"})
        CHECK(count(lines, "the file of " + option + " is not written, and training goes on without it") == 1);
      CHECK(count(lines, "the file of trace_file is not written") == 1);
      if (measures) CHECK(count(lines, "the file of cost_file is not written") == 1);
    }
  }
}

TEST_CASE("unwritable files with plan_only: are an error", "[files]") {
  const TempFolder folder;
  ap::write_text_file(folder / "file", "no folder");
  const auto text = refusal([&] { train(1, {.report_file = folder / "file" / "below", .plan_only = true}); });
  CHECK(contains(text, "cannot write the file"));
}

TEST_CASE("named pipe as input file: is refused by name", "[files]") {
  const TempFolder folder;
  const auto pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (const int ranks : {1, 2}) {
    const std::string reason = "pipe: it is a pipe, and must be a regular file";
    CHECK(contains(refusal([&] { train(ranks, {.plan_file = pipe}); }), reason));
    CHECK(contains(refusal([&] { train(ranks, {.cluster_file = pipe}); }), reason));
    const auto lines = warnings(ranks, {.microbatches = 2, .costs = ap::CostChoice::kProfiled, .cost_file = pipe});
    CHECK(count(lines, reason) == 1);
  }
}

/// A module in a module of a name that a terminal would obey.
struct OddNetImpl : nets::MeanSquare<nets::Linears> {
  OddNetImpl() : MeanSquare(4, {{"a\nb\x1b[2J\x7f\xff", 3}}) {}
};
TORCH_MODULE(OddNet);

TEST_CASE("module names: escaped in graphs, reports, profiles, messages", "[files]") {
  const TempFolder folder;
  const ap::Options options{.plan_file = folder / "plan.json",
                            .profile_file = folder / "profile.json",
                            .graph_file = folder / "graph.dot",
                            .report_file = folder / "report.txt"};
  std::string message;
  ap::loopback::run(1, [&](ap::World& world) {
    ap::AutoParallel<OddNet> model(world, OddNet(), options);
    model(torch::ones({4, 4})).backward();
    message = refusal([&] { model(torch::ones({4, 5})); });
  });
  const auto graph = ap::read_text_file(folder / "graph.dot");
  CAPTURE(graph, message);
  CHECK(contains(graph, "a\\\\nb\\\\u001b[2J\\\\u007f\\\\u00ff"));  // dot wants each backslash twice
  for (const auto* name : {"plan.json", "profile.json", "graph.dot", "report.txt"}) {
    const auto text = ap::read_text_file(folder / name);
    CAPTURE(name);
    CHECK_FALSE(contains(text, "\x1b"));
    CHECK_FALSE(contains(text, "a\nb"));
  }
  CHECK(ap::printable(graph) == graph);
  CHECK_FALSE(message.empty());
  CHECK(ap::printable_line(message) == message);
}

TEST_CASE("plan: follows the costs in cost_file", "[files]") {
  const TempFolder folder;
  ap::Options options{.stages = 2, .costs = ap::CostChoice::kProfiled, .cost_file = folder / "costs.json"};
  static_cast<void>(train(2, options));
  ap::CostOrigin origin;
  ap::loopback::run(2, [&](ap::World& world) {
    const c10::Device cpu(c10::kCPU);
    if (world.rank() == 0) origin = ap::cost::cost_origin(world, ap::describe_cluster(world, cpu), cpu);
  });
  auto costs = ap::read_costs(options.cost_file, origin);
  for (auto& [structure, atom] : costs.atoms) {
    atom.forward = ap::CostCurve({{1, 1}, {2, 1}});
    atom.backward = ap::CostCurve({{1, 2}, {2, 2}});
  }
  ap::write_costs(options.cost_file, costs, origin);
  const auto plan = train(2, options);
  CHECK(plan.step >= ap::Seconds(3));  // one micro-batch takes three seconds an atom
  options.costs = ap::CostChoice::kRoofline;
  CHECK(train(2, options).step < ap::Seconds(1));
}

TEST_CASE("plan_only: first call plans, writes files, says so", "[files]") {
  const TempFolder folder;
  const fs::path clusters = fs::path(__FILE__).parent_path() / "../../examples/clusters";
  ::setenv("AUTOPAR_PLAN_ONLY", (clusters / "a100-40x8.toml").c_str(), 1);
  const auto message =
      refusal([&] { train(1, {.plan_file = folder / "plan.json", .report_file = folder / "report.txt"}); });
  ::unsetenv("AUTOPAR_PLAN_ONLY");
  CAPTURE(message);
  CHECK(contains(message, "plan_only"));
  CHECK(contains(message, "plan.json"));
  const auto plan = ap::read_plan(folder / "plan.json");
  CHECK(plan.world == 8);
  CHECK(plan.device == "A100-40");
  CHECK(contains(ap::read_text_file(folder / "report.txt"), "8 ranks of A100-40"));
}

}  // namespace session_files_test
