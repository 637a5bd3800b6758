#include "tool.hpp"

#include <catch_shim.hpp>
#include <replaced.hpp>

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include <sys/stat.h>
#include <unistd.h>

#include <autopar/core/printable.hpp>
#include <autopar/cost/profiled.hpp>
#include <autopar/io/cost_file.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/report/print.hpp>

#include "commands.hpp"
#include "tool_run.hpp"

using namespace autopar;
using Catch::Matchers::Contains;
using test::check_trouble;
using test::run_tool;
using test::ToolFolder;
using test::ToolResult;

TEST_CASE("plan: prints and writes the planner's own plan", "[tool]") {
  const ToolFolder folder("tool_plan");
  const auto result = folder.plan({"--batch", "32", "--out", folder.at("plan.json")});
  CAPTURE(result.err);
  CHECK(result.status == 0);
  CHECK(result.err.empty());
  PlanRequest request;
  request.batch = 32;
  request.runtime = runtime_capabilities();
  const Plan expected = plan_with_defaults(folder.model, folder.cluster, request);
  CHECK(result.out == to_text(expected));
  CHECK(folder.text("plan.json") == to_json(expected));
  CHECK(folder.plan({"--batch", "32", "--json"}).out == to_json(expected));
}

TEST_CASE("plan: the command line overrides the options file", "[tool]") {
  ToolFolder folder("tool_options");
  folder.cluster.device.memory = Bytes(4 << 20);
  folder.write();
  folder.put("autopar.toml", "stages = 2\nmicrobatches = 4\nmax_microbatches = 8\nschedule = \"1f1b\"\n");
  const auto planned = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--batch", "32", "--json", "--options", folder.at("autopar.toml")});
    const auto result = folder.plan(std::move(more));
    CAPTURE(result.err);
    REQUIRE(result.status == 0);
    return parse_plan(result.out, "plan");
  };
  CHECK(planned({}).stages.size() == 2);
  CHECK(planned({}).microbatches == 4);
  CHECK(planned({"--stages", "3"}).stages.size() == 3);
  CHECK(planned({"--stages", "0", "--microbatches", "2", "--replicas", "1,3"}).stages[1].mesh.replicas() == 3);
  CHECK(planned({"--set", "microbatches=2"}).microbatches == 2);
  CHECK(planned({"--world", "2"}).world == 2);
  CHECK(planned({"--devices", "6"}).world == 6);
  CHECK(planned({"--schedule", "gpipe"}).schedule == ScheduleKind::kGPipe);
  CHECK(planned({"--optimizer-state-factor", "0.5"}).optimizer_state_factor == 0.5);
  CHECK(planned({"--device-memory", "2MiB", "--memory-margin", "0"}).device_memory == Bytes(2 << 20));
}

TEST_CASE("plan: a missing batch is chosen and reported", "[tool]") {
  const ToolFolder folder("tool_batch");
  const auto result = folder.plan();
  CHECK(result.status == 0);
  CHECK_THAT(result.out, Contains("batch 128"));
  CHECK_THAT(result.err, Contains("no --batch was given") && Contains("128"));
}

TEST_CASE("check: tampered plans fail, a worse one passes", "[tool]") {
  ToolFolder folder("tool_check");
  folder.cluster.device.memory = Bytes(4 << 20);
  folder.write();
  REQUIRE(folder.plan({"--batch", "32", "--schedule", "1f1b", "--out", folder.at("plan.json")}).status == 0);
  const auto check = [&](const std::string& plan, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"check", folder.at(plan), folder.at("profile.json"), folder.at("cluster.toml")});
    return run_tool(std::move(more));
  };
  const auto good = check("plan.json");
  CAPTURE(good.out, good.err);
  CHECK(good.status == 0);
  CHECK_THAT(good.out, Contains("accepted") && Contains("lower bound, derived again") && Contains("not verified here"));
  CHECK_THAT(check("plan.json", {"--json"}).out, Contains("\"accepted\":true"));

  const Plan plan = read_plan(folder.at("plan.json"));
  Plan raised = plan;
  raised.certificate.lower_bound *= 1.001;
  raised.certificate.gap = raised.step / raised.certificate.lower_bound - 1;
  for (auto& one : raised.certificate.cases) one.seconds *= 1.001;
  write_plan(folder.at("raised.json"), raised);
  CHECK(check("raised.json").status == 1);
  CHECK_THAT(check("raised.json").out, Contains("rejected") && Contains("but it is"));
  CHECK_THAT(check("raised.json", {"--json"}).out, Contains("\"accepted\":false"));

  REQUIRE(
      folder.plan({"--batch", "32", "--stages", "4", "--microbatches", "1", "--out", folder.at("worse.json")}).status ==
      0);
  const Plan worse = read_plan(folder.at("worse.json"));
  CHECK(check("worse.json").status == 0);
  CHECK(worse.certificate.gap > plan.certificate.gap);
}

TEST_CASE("tool: measured costs apply to every command", "[tool]") {
  ToolFolder folder("tool_costs");
  for (const NodeId atom : folder.model.graph.nodes()) folder.model.graph[atom].structure = 7;
  folder.write();
  MeasuredCosts measured;
  measured.atoms[7] = {CostCurve({{1, 1.2e-3}, {2, 2.2e-3}}), CostCurve({{1, 2.5e-3}, {2, 4.5e-3}})};
  measured.links.messages[2] = CostCurve({{1, 5e-5}, {1e6, 50}});
  write_costs(folder.at("costs.json"), measured, {"somewhere", "2.11.0"});
  const std::vector<std::string> costs{"--costs", folder.at("costs.json")};
  const auto with = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), costs.begin(), costs.end());
    return run_tool(std::move(arguments));
  };
  const auto planned = folder.plan({"--batch", "32", "--out", folder.at("plan.json"), costs[0], costs[1]});
  CAPTURE(planned.err);
  REQUIRE(planned.status == 0);
  PlanRequest request;
  request.batch = 32;
  request.runtime = runtime_capabilities();
  const Plan expected =
      plan_with_defaults(folder.model, ProfiledCost(folder.cluster, measured), folder.cluster, request);
  CHECK(folder.text("plan.json") == to_json(expected));
  const std::vector<std::string> files{folder.at("plan.json"), folder.at("profile.json"), folder.at("cluster.toml")};
  CHECK(with({"check", files[0], files[1], files[2]}).status == 0);
  CHECK(run_tool({"check", files[0], files[1], files[2]}).status == 1);  // by peak rates it is another step
  const auto timeline = with({"simulate", files[0], files[1], files[2]});
  CHECK_THAT(timeline.out, Contains(readable(expected.step)));
  const auto why = with({"explain", files[0], files[1], files[2], "--batch", "32"});
  CAPTURE(why.err);
  CHECK(why.status == 0);
  CHECK_THAT(why.out, Contains("10 % faster links"));
  folder.put("costs.json", "{}");
  const auto damaged = with({"check", files[0], files[1], files[2]});
  CHECK(damaged.status == 2);
  CHECK_THAT(damaged.err, Contains("costs.json"));
}

TEST_CASE("diff: exit status and differences", "[tool]") {
  const ToolFolder folder("tool_diff");
  REQUIRE(folder.plan({"--batch", "32", "--stages", "2", "--schedule", "1f1b", "--out", folder.at("a.json")}).status ==
          0);
  REQUIRE(folder.plan({"--batch", "32", "--stages", "3", "--schedule", "gpipe", "--out", folder.at("b.json")}).status ==
          0);
  const auto same = run_tool({"diff", folder.at("a.json"), folder.at("a.json")});
  CHECK(same.status == 0);
  CHECK(same.out.empty());
  CHECK(run_tool({"diff", folder.at("a.json"), folder.at("a.json"), "--json"}).out ==
        "{\"equal\":true,\"differences\":[]}\n");
  const auto other = run_tool({"diff", folder.at("a.json"), folder.at("b.json")});
  CHECK(other.status == 1);
  CHECK_THAT(other.out, Contains("stages: 2 -> 3") && Contains("schedule: 1f1b -> gpipe") &&
                            Contains("predicted step: ") && !Contains("stage 2: "));
  CHECK(other.out.starts_with(folder.at("b.json") + " is predicted "));
  CHECK_THAT(other.out.substr(0, other.out.find('\n')),
             Contains(" as " + folder.at("a.json") + ": 2 stages x ") && Contains(" -> 3 stages x "));
  CHECK_THAT(other.out, Contains("constraints: stages=2, schedule=1f1b -> stages=3, schedule=gpipe"));
  Plan noted = read_plan(folder.at("a.json"));
  noted.notes.push_back("another note");
  write_plan(folder.at("noted.json"), noted);
  CHECK(run_tool({"diff", folder.at("a.json"), folder.at("noted.json")}).status == 1);
  Plan slower = read_plan(folder.at("a.json"));
  slower.step *= 1 + 1e-12;
  write_plan(folder.at("slower.json"), slower);
  CHECK(run_tool({"diff", folder.at("a.json"), folder.at("slower.json")}).status == 1);
}

TEST_CASE("explain: compares other tensor degrees where supported", "[tool]") {
  ToolFolder folder("tool_shards");
  folder.model.tensor_regions = {
      {{NodeId(0), NodeId(1)}, {ParameterId(0), ParameterId(1)}, 8, true, {400, 0}, {400, 0}, 1, 1}};
  folder.write();
  const auto explained = [&](int most, const std::string& degree) {
    tool::ExplainArguments arguments;
    arguments.files = {folder.at("profile.json"), folder.at("cluster.toml")};
    arguments.problem.batch = 32;
    arguments.problem.runtime.max_tensor_parallel = most;
    arguments.problem.settings = {"tensor_parallel=" + degree};
    std::ostringstream out, err;
    CHECK(tool::explain_command(arguments, out, err) == tool::kDone);
    return out.str();
  };
  CHECK_THAT(explained(1, "auto"), !Contains("tensor shards"));
  const std::string on = explained(4, "2");
  CHECK_THAT(on, Contains("x 2 shards") && Contains("tensor shards compute 1 of 1 parts of the model in slices, the "
                                                    "first of them near layer.0"));
  CHECK_THAT(on, Contains("no tensor shards: ") && Contains("4 tensor shards a replica: "));
  CHECK_THAT(on, !Contains("\n2 tensor shards a replica"));
  CHECK_THAT(explained(4, "auto"), Contains("steps by tensor shards a replica, the same for all stages: 1: "));
}

TEST_CASE("explain: the bottleneck, and what hardware changes give", "[tool]") {
  const ToolFolder folder("tool_explain");
  const auto result = run_tool({"explain", folder.at("profile.json"), folder.at("cluster.toml"), "--batch", "32"});
  CAPTURE(result.out, result.err);
  CHECK(result.status == 0);
  CHECK_THAT(result.out, Contains("binds: ") && Contains("runner-up") && Contains("one more device: ") &&
                             Contains("10 % more memory: ") && Contains("10 % faster links: "));
  // The answers are those of planning again.
  PlanRequest request;
  request.batch = 32;
  request.runtime = runtime_capabilities();
  request.world = 5;
  Cluster larger = folder.cluster;
  larger.devices = 5;
  larger.levels.back().span = 6;
  const Plan with_five = plan_with_defaults(folder.model, larger, request);
  CHECK_THAT(result.out, Contains("one more device: " + readable(with_five.step)));

  REQUIRE(folder.plan({"--batch", "32", "--out", folder.at("plan.json")}).status == 0);
  const auto alone = run_tool({"explain", folder.at("plan.json")});
  CHECK(alone.status == 0);
  CHECK_THAT(alone.out, Contains("binds: ") && Contains("give the profile"));
  const auto all = run_tool({"explain", folder.at("plan.json"), folder.at("profile.json"), folder.at("cluster.toml")});
  CAPTURE(all.err);
  CHECK(all.status == 0);
  CHECK_THAT(all.out, Contains("one more device: " + readable(with_five.step)));
  CHECK_THAT(run_tool({"explain", folder.at("profile.json"), folder.at("cluster.toml"), "--json"}).out,
             Contains("\"what_if\"") && Contains("\"binding\""));
  check_trouble(run_tool({"explain", folder.at("profile.json")}), {"is a profile, and PLAN is to be a plan"});
}

TEST_CASE("explain: keeps constraints, more hardware is never worse", "[tool]") {
  const ToolFolder folder("tool_kept");
  const std::vector<std::string> files{folder.at("plan.json"), folder.at("profile.json"), folder.at("cluster.toml")};
  REQUIRE(folder
              .plan({"--batch", "32", "--stages", "2", "--replicas", "2", "--schedule", "gpipe", "--zero", "0", "--out",
                     files[0]})
              .status == 0);
  CHECK(read_plan(files[0]).constraints ==
        std::vector<std::string>{"stages=2", "replicas=2", "schedule=gpipe", "zero=0"});
  const auto kept = run_tool({"explain", files[0], files[1], files[2]});
  CAPTURE(kept.out, kept.err);
  CHECK(kept.status == 0);
  // Two stages of two replicas each leave a fifth device idle.
  const auto step = readable(read_plan(files[0]).step);
  CHECK_THAT(kept.out, Contains("one more device: " + step + ", buys nothing, same shape"));
  CHECK_THAT(kept.out, Contains("10 % more memory: " + step + ", buys nothing, same shape"));
  CHECK_THAT(kept.out, Contains(", bubble ") && !Contains("slower") && !Contains("waiting"));
  // The command line has the last word.
  const auto freed =
      run_tool({"explain", files[0], files[1], files[2], "--stages", "0", "--replicas", "5", "--zero", "-1"});
  CAPTURE(freed.out, freed.err);
  CHECK(freed.status == 0);
  CHECK_THAT(freed.out, Contains("one more device: ") && Contains("1 stage x 5 replicas"));
  const auto plan = folder.text("plan.json");
  const auto damaged = [&](const std::string& constraint) {
    auto text = plan;
    text.replace(text.find("stages=2"), 8, constraint);
    folder.put("damaged.json", text);
    return run_tool({"explain", folder.at("damaged.json")});
  };
  check_trouble(damaged("plan_file=x"), {"constraints", "'plan_file=x' is no option that plans keep"});
  check_trouble(damaged("stages"), {"constraints"});
}

TEST_CASE("tool: swapped file arguments are named", "[tool]") {
  const ToolFolder folder("tool_swapped");
  REQUIRE(folder.plan({"--batch", "32", "--out", folder.at("plan.json")}).status == 0);
  const auto plan = folder.at("plan.json"), profile = folder.at("profile.json"), cluster = folder.at("cluster.toml");
  const auto quoted = [](const std::string& path, const std::string& rest) { return "'" + path + "' is " + rest; };
  check_trouble(run_tool({"plan", cluster, profile}),
                {quoted(cluster, "a cluster, and PROFILE is to be a profile"), "'autopar plan PROFILE CLUSTER'"});
  check_trouble(run_tool({"plan", plan, cluster}), {quoted(plan, "a plan, and PROFILE is to be a profile")});
  check_trouble(run_tool({"explain", profile, plan, cluster}),
                {quoted(profile, "a profile, and PLAN is to be a plan")});
  check_trouble(run_tool({"explain", cluster, profile}), {quoted(cluster, "a cluster, and PROFILE")});
  check_trouble(run_tool({"check", profile, plan, cluster}), {quoted(profile, "a profile, and PLAN"), "autopar check"});
  check_trouble(run_tool({"check", plan, profile}), {"CLUSTER is missing"});
  check_trouble(run_tool({"simulate", plan, cluster, profile}), {quoted(cluster, "a cluster, and PROFILE")});
  check_trouble(run_tool({"diff", plan, profile}), {quoted(profile, "a profile, and B is to be a plan")});
  check_trouble(run_tool({"diff", cluster, plan}), {quoted(cluster, "a cluster, and A is to be a plan")});
}

TEST_CASE("tool: every command has help, bad arguments get one line", "[tool]") {
  for (const std::string command : {"plan", "explain", "check", "simulate", "diff"}) {
    const auto help = run_tool({command, "--help"});
    CHECK(help.status == 0);
    CHECK_THAT(help.out, Contains("Exit status") && Contains("--json"));
    CHECK(help.err.empty());
    check_trouble(run_tool({command}), {"required", command + " --help"});
  }
  CHECK_THAT(run_tool({"--help"}).out, Contains("simulate") && Contains("Exit status"));
  check_trouble(run_tool({}), {"subcommand"});
  check_trouble(run_tool({"paln"}), {"'paln' is no command; did you mean 'plan'?"});
  check_trouble(run_tool({"simulat", "a", "b"}), {"'simulat' is no command; did you mean 'simulate'?"});
  check_trouble(run_tool({"--bogus"}), {"--bogus"});
  check_trouble(run_tool({"diff", "/no/such/plan.json", "/none"}), {"/no/such/plan.json"});
  const ToolFolder folder("tool_arguments");
  check_trouble(folder.plan({"--bogus"}), {"--bogus"});
  check_trouble(folder.plan({"--bach", "32"}), {"'--bach' is no option of it; did you mean '--batch'?", "plan --help"});
  check_trouble(folder.plan({"--stages", "two"}), {"--stages", "whole number"});
  check_trouble(folder.plan({"--stages", "-1"}), {"--stages", "out of range"});
  check_trouble(folder.plan({"--set", "stagez=2"}), {"did you mean 'stages'"});
  check_trouble(folder.plan({"--batch", "0"}), {"--batch"});
  check_trouble(folder.plan({"--batch", "99999999999999"}), {"--batch"});
  check_trouble(folder.plan({"--out", "/proc/none/plan.json", "--batch", "32"}), {"/proc/none"});
}

TEST_CASE("plan: contradictory options name both values", "[tool]") {
  const ToolFolder folder("tool_contradictions");
  check_trouble(folder.plan({"--stages", "3", "--replicas", "2,1"}), {"stages = 3", "replicas = {2,1}"});
  check_trouble(folder.plan({"--min-microbatches", "9", "--max-microbatches", "3"}), {"9", "3"});
  check_trouble(folder.plan({"--replicas", "3,2"}), {"5 ranks", "has 4"});
  check_trouble(folder.plan({"--replicas", "3", "--stages", "2"}), {"6 ranks", "has 4"});
  check_trouble(folder.plan({"--stages", "5"}), {"stages = 5", "has 4"});
  check_trouble(folder.plan({"--world", "5"}), {"world of 5", "4 devices"});
  check_trouble(folder.plan({"--tensor-parallel", "2"}), {"tensor_parallel = 2"});
  check_trouble(folder.plan({"--microbatches", "33", "--batch", "32"}), {"microbatches = 33", "32 samples"});
  check_trouble(folder.plan({"--min-microbatches", "33", "--batch", "32"}), {"min_microbatches = 33", "32 samples"});
  check_trouble(folder.plan({"--set", "stall_warning=601"}), {"stall_warning = 601", "stall_timeout = 600"});
  check_trouble(folder.plan({"--microbatches", "1000000", "--devices", "1000"}), {"1000000 micro-batches"});
}

TEST_CASE("plan: what fits no rank names the operator and a remedy", "[tool]") {
  ToolFolder folder("tool_memory");
  check_trouble(folder.plan({"--batch", "32", "--device-memory", "20KB"}),
                {"no plan fits", "(near layer.0) alone needs", "device_memory = "});
  folder.model.graph[NodeId(3)].saved = {0, 3e6};
  folder.write();
  check_trouble(folder.plan({"--batch", "32"}), {"no plan fits", "3 (near layer.3) alone needs"});
}

TEST_CASE("plan: an invalid profile is refused by name", "[tool]") {
  ToolFolder folder("tool_profiles");
  const std::string good = folder.text("profile.json");
  const auto refused = [&](const std::string& text, const std::vector<std::string>& parts) {
    folder.put("profile.json", text);
    auto all = parts;
    all.push_back("profile.json");
    check_trouble(folder.plan({"--batch", "32"}), all);
  };
  refused(replaced(good, "\"from\":0,\"to\":1", "\"from\":1,\"to\":1"), {"atom 1"});
  refused(replaced(good, "\"from\":4,\"to\":5", "\"from\":4,\"to\":1"),
          {"cycle", "atom 1", "atom 4 '4' (near layer.4)"});
  refused(replaced(good, "{\"from\":2,\"to\":3,\"value\":3,\"bytes\":[4000.0,0.0],\"differentiable\":true},", ""),
          {"disconnected", "atom 0 '0' (near layer.0)"});
  refused(replaced(good, "300000.0,0.0", "-300000.0,0.0"), {"atoms[0]", "flops"});
  refused(replaced(good, "300000.0,0.0", "0.0,-5.0"), {"atom 0", "arithmetic", "negative"});
  refused(replaced(good, "300000.0,0.0", "NaN,0.0"), {"not valid JSON"});
  refused(replaced(good, "300000.0,0.0", "1e999,0.0"), {"JSON"});
  refused(replaced(good, "[4000.0,16.0]", "[0.0,-16.0]"), {"saved bytes"});
  refused(replaced(good, "\"writer\":5", "\"writer\":-1"), {"written by no atom"});
  refused(replaced(good, "\"version\":3", "\"version\":9"), {"version"});
  refused(
      "{\"version\":3,\"hash\":\"000000000000002a\",\"loss_mode\":true,\"parameters\":[],\"atoms\":[],\"edges\":[],"
      "\"inputs\":[],\"outputs\":[]}",
      {"no atom"});
  folder.put("profile.json", replaced(good, "[4000.0,16.0]", "[1e25,16.0]"));
  check_trouble(folder.plan({"--batch", "32"}), {"2^60 bytes"});
}

TEST_CASE("plan: an invalid cluster is refused by line", "[tool]") {
  ToolFolder folder("tool_clusters");
  const std::string good = folder.text("cluster.toml");
  const auto refused = [&](const std::string& text, const std::vector<std::string>& parts) {
    folder.put("cluster.toml", text);
    check_trouble(folder.plan({"--batch", "32"}), parts);
  };
  refused(replaced(good, "devices = 4", "devices = 0"), {"cluster.toml:", "devices"});
  refused(replaced(good, "devices = 4", "devices = -4"), {"cluster.toml:", "devices"});
  refused(replaced(good, "devices = 4", "devices = 16000000"), {"span"});
  refused(replaced(good, "memory_gib", "memory_gb"), {"memory_gib"});
  refused(good.substr(0, good.size() / 2), {"cluster.toml"});
  refused("", {"cluster.toml"});
}

TEST_CASE("check, simulate: a foreign plan is refused with differences", "[tool]") {
  ToolFolder folder("tool_foreign");
  REQUIRE(
      folder.plan({"--batch", "32", "--schedule", "1f1b", "--stages", "4", "--out", folder.at("plan.json")}).status ==
      0);
  const std::string plan = folder.text("plan.json");
  const auto refused = [&](const std::vector<std::string>& parts) {
    for (const std::string command : {"check", "simulate"})
      check_trouble(run_tool({command, folder.at("plan.json"), folder.at("profile.json"), folder.at("cluster.toml")}),
                    parts);
    check_trouble(run_tool({"explain", folder.at("plan.json"), folder.at("profile.json"), folder.at("cluster.toml")}),
                  parts);
  };
  folder.model.hash = 43;
  folder.write();
  refused({"another model", "42", "43"});
  folder.model.hash = 42;
  folder.cluster = testing::small_cluster(2);
  folder.write();
  refused({"for 4 ranks", "2 devices"});
  folder.cluster = testing::small_cluster(4);
  folder.cluster.device.name = "other";
  folder.write();
  refused({"'toy'", "'other'"});
  folder.cluster.device.name = "toy";
  folder.write();
  folder.put("plan.json", replaced(plan, "\"version\": 6", "\"version\": 1"));
  refused({"version 6, not 1", "certificate"});
  folder.put("plan.json", replaced(plan, "\"batch\": 32", "\"batch\": 0"));
  refused({"batch of 0"});
  folder.put("plan.json", replaced(plan, "\"microbatches\": ", "\"microbatches\": 100000"));
  refused({"microbatches: expected a whole number from 1 to 1000000"});
}

TEST_CASE("tool: outputs replace their own kind alone, unless forced", "[tool]") {
  const ToolFolder folder("tool_outputs");
  const std::string profile = folder.text("profile.json"), plan_file = folder.at("plan.json");
  // The tool's own input: written by autopar, but no plan.
  check_trouble(folder.plan({"--batch", "32", "--out", folder.at("profile.json")}),
                {"profile.json: holds an autopar profile of model", "not replaced by an autopar plan", "--force"});
  check_trouble(folder.plan({"--batch", "32", "--out", folder.at("cluster.toml")}), {"was not written by autopar"});
  CHECK(folder.text("profile.json") == profile);
  REQUIRE(folder.plan({"--batch", "32", "--out", plan_file}).status == 0);
  REQUIRE(folder.plan({"--batch", "64", "--out", plan_file}).status == 0);
  CHECK(read_plan(plan_file).batch == 64);
  REQUIRE(folder.plan({"--batch", "32", "--out", "/dev/null"}).status == 0);
  CHECK(std::filesystem::is_character_file("/dev/null"));

  const auto simulate = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"simulate", plan_file, folder.at("profile.json"), folder.at("cluster.toml")});
    return run_tool(std::move(more));
  };
  folder.put("notes.txt", "mine");
  check_trouble(simulate({"--trace", folder.at("notes.txt")}), {"notes.txt: was not written by autopar"});
  CHECK(folder.text("notes.txt") == "mine");
  CHECK(simulate({"--trace", folder.at("notes.txt"), "--force"}).status == 0);
  CHECK(simulate({"--trace", folder.at("notes.txt")}).status == 0);  // now it is autopar's
  check_trouble(simulate({"--trace", plan_file}), {"plan.json: holds an autopar plan"});
  REQUIRE(folder.plan({"--batch", "32", "--out", folder.at("cluster.toml"), "--force"}).status == 0);
}

TEST_CASE("tool: control characters of files are escaped", "[tool]") {
  const ToolFolder folder("tool_escapes");
  REQUIRE(folder.plan({"--batch", "32", "--out", folder.at("plan.json")}).status == 0);
  Plan plan = read_plan(folder.at("plan.json"));
  plan.device = "toy\x1b]0;owned\x07";
  plan.notes = {"\x1b[2Jgone", "a\nnote: forged",
                "\xc2\x9b"
                "31m",
                "\xe2\x80\xae"
                "txt.exe"};
  write_plan(folder.at("plan.json"), plan);
  folder.put("other.json", replaced(folder.text("plan.json"), "\"zero\"", "\"\\u001b[31m\": 1, \"zero\""));
  const std::vector<std::vector<std::string>> commands{
      {"explain", folder.at("plan.json")},
      {"explain", folder.at("plan.json"), "--json"},
      {"diff", folder.at("plan.json"), folder.at("other.json")},
      {"check", folder.at("plan.json"), folder.at("profile.json"), folder.at("cluster.toml")}};
  for (const auto& command : commands) {
    const auto result = run_tool(command);
    CAPTURE(command[0], result.out, result.err);
    for (const auto& said : {result.out, result.err}) {
      CHECK(said == printable(said));
      CHECK(said.find('\x1b') == std::string::npos);
      CHECK(said.find("\nnote: forged") == std::string::npos);
    }
    CHECK((result.out + result.err).find("\\u001b") != std::string::npos);
  }
}

TEST_CASE("tool: every command reads from a pipe", "[tool]") {
  const ToolFolder folder("tool_pipes");
  REQUIRE(folder.plan({"--batch", "32", "--out", folder.at("plan.json")}).status == 0);
  const auto with_input = [&](const std::string& file, const std::vector<std::string>& arguments) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    std::thread writer([text = folder.text(file), end = ends[1]] {
      for (std::size_t at = 0; at < text.size();) {
        const auto written = ::write(end, text.data() + at, text.size() - at);
        if (written <= 0) break;
        at += static_cast<std::size_t>(written);
      }
      ::close(end);
    });
    const int before = ::dup(STDIN_FILENO);
    ::dup2(ends[0], STDIN_FILENO);
    ::close(ends[0]);
    const auto result = run_tool(arguments);
    ::dup2(before, STDIN_FILENO);  // closes the last reader: a writer of what nobody read goes on
    ::close(before);
    writer.join();
    CAPTURE(arguments[0], result.err);
    CHECK(result.status == 0);
  };
  const std::string stdin_file = "/dev/stdin", plan = folder.at("plan.json"), profile = folder.at("profile.json"),
                    cluster = folder.at("cluster.toml");
  with_input("profile.json", {"plan", stdin_file, cluster, "--batch", "32"});
  with_input("cluster.toml", {"plan", profile, stdin_file, "--batch", "32"});
  with_input("plan.json", {"check", stdin_file, profile, cluster});
  with_input("plan.json", {"simulate", stdin_file, profile, cluster});
  with_input("plan.json", {"explain", stdin_file});
  with_input("plan.json", {"explain", stdin_file, profile, cluster});
  with_input("plan.json", {"diff", plan, stdin_file});
}

TEST_CASE("plan: works for every cluster preset", "[tool]") {
  const ToolFolder folder("tool_presets");
  int presets = 0;
  for (const auto& entry : std::filesystem::directory_iterator(AUTOPAR_TEST_CLUSTERS)) {
    CAPTURE(entry.path().string());
    const Cluster cluster = read_cluster(entry.path());
    const auto result = run_tool({"plan", folder.at("profile.json"), entry.path().string(), "--microbatches", "2",
                                  "--world", std::to_string(std::min(cluster.devices, 2))});
    CAPTURE(result.err);
    CHECK(result.status == 0);
    CHECK(cluster.name == entry.path().stem().string());
    CHECK_THAT(read_text_file(entry.path()), Contains("# "));
    ++presets;
  }
  CHECK(presets >= 14);
}

TEST_CASE("tool: named pipes are refused without blocking", "[tool]") {
  const ToolFolder folder("tool_named_pipes");
  REQUIRE(folder.plan({"--batch", "32", "--out", folder.at("plan.json")}).status == 0);
  const std::string pipe = folder.at("pipe"), plan = folder.at("plan.json"), profile = folder.at("profile.json"),
                    cluster = folder.at("cluster.toml");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const std::vector<std::vector<std::string>> commands{{"plan", pipe, cluster},
                                                       {"plan", profile, pipe},
                                                       {"plan", profile, cluster, "--costs", pipe},
                                                       {"plan", profile, cluster, "--options", pipe},
                                                       {"explain", pipe},
                                                       {"check", pipe, profile, cluster},
                                                       {"check", plan, pipe},
                                                       {"simulate", plan, profile, pipe},
                                                       {"diff", plan, pipe}};
  for (const auto& command : commands) {
    CAPTURE(command);
    check_trouble(run_tool(command), {"pipe: it is a pipe, and must be a regular file"});
  }
  check_trouble(folder.plan({"--batch", "32", "--out", pipe}), {"pipe: cannot write the file"});  // that nobody reads
}

TEST_CASE("tool: unwritable output is an error of every command", "[tool]") {
  const ToolFolder folder("tool_full");
  REQUIRE(folder.plan({"--batch", "32", "--out", folder.at("plan.json")}).status == 0);
  const std::vector<std::vector<std::string>> commands{
      {"plan", folder.at("profile.json"), folder.at("cluster.toml"), "--batch", "32"},
      {"explain", folder.at("plan.json")},
      {"check", folder.at("plan.json"), folder.at("profile.json"), folder.at("cluster.toml")},
      {"--version"},
      {"plan", "--help"}};
  for (const auto& command : commands) {
    std::ofstream full("/dev/full");
    std::ostringstream err;
    CAPTURE(command);
    CHECK(tool::run(command, full, err) == 2);
    CHECK(err.str() == "autopar: the output cannot be written: No space left on device\n");
  }
  check_trouble(folder.plan({"--batch", "32", "--out", "/dev/full"}), {"/dev/full: cannot write the file", "No space"});
}

TEST_CASE("check: a weaker bound passes, the derived one is printed", "[tool]") {
  const ToolFolder folder("tool_claims");
  REQUIRE(folder.plan({"--batch", "32", "--out", folder.at("plan.json")}).status == 0);
  const Plan plan = read_plan(folder.at("plan.json"));
  const auto check = [&](const std::function<void(Certificate&)>& change, std::vector<std::string> more = {}) {
    Plan changed = plan;
    change(changed.certificate);
    write_plan(folder.at("plan.json"), changed);
    more.insert(more.begin(), {"check", folder.at("plan.json"), folder.at("profile.json"), folder.at("cluster.toml")});
    return run_tool(std::move(more));
  };
  const auto untouched = check([](Certificate&) {});
  CHECK(untouched.status == 0);
  CHECK_THAT(untouched.out, !Contains("lower bound, claimed"));
  const auto derived = untouched.out.substr(untouched.out.find("lower bound, derived again"));

  const auto halved = check([&](Certificate& claim) {
    claim.lower_bound = claim.lower_bound * 0.5;
    claim.gap = plan.step / claim.lower_bound - 1;
  });
  CAPTURE(halved.out);
  CHECK(halved.status == 0);
  CHECK_THAT(halved.out, Contains("accepted") && Contains("lower bound, claimed: ") && Contains(derived));

  const auto weak_cases = check([&](Certificate& claim) {
    for (auto& one : claim.cases) one.seconds = one.seconds * 0.5;
  });
  CHECK(weak_cases.status == 0);
  CHECK_THAT(weak_cases.out, Contains(derived));

  const auto least = check([&](Certificate& claim) {
    claim.lower_bound = Seconds(plan.step.value() * 1e-90);
    claim.gap = plan.step / claim.lower_bound - 1;
  });
  CAPTURE(least.out);
  CHECK(least.status == 0);
  CHECK_THAT(least.out, !Contains("inf") && Contains(derived));

  const auto nothing = check([](Certificate& claim) { claim.lower_bound = Seconds(5e-324); });
  CAPTURE(nothing.out);
  CHECK_THAT(nothing.out, !Contains("inf %"));

  const auto raised = check([](Certificate& claim) { claim.lower_bound = claim.lower_bound * 1.01; });
  CHECK(raised.status == 1);
}
