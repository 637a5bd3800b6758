#include <catch_shim.hpp>
#include <replaced.hpp>

#include "tool_run.hpp"

using namespace autopar;
using Catch::Matchers::Contains;
using test::check_trouble;
using test::run_tool;
using test::ToolFolder;

TEST_CASE("check: verifies published instances and their bounds", "[tool]") {
  const ToolFolder folder("tool_instance");
  folder.put("instance.json", R"({"maxDevices":2,"maxMemoryPerDevice":1000,"bandwidth":1000,"mbsInBatch":4,
    "nodes":[{"id":3,"TMPCs":{"1":[{"id":"v","timePerSample":1.0,"memoryUsageA":10,"memoryUsageB":5,"parameterSize":100,
                "syncTimeFw":{},"syncTimeBw":{"7":0}}]}},
             {"id":7,"TMPCs":{"1":[{"id":"v","timePerSample":3.0,"memoryUsageA":10,"memoryUsageB":5,"parameterSize":100,
                "syncTimeFw":{"3":0},"syncTimeBw":{}}]}}],
    "edges":[{"sourceId":3,"destId":7,"communicationCost":50}]})");
  const std::string plan = R"({"stages":[
    {"nodes":[3],"dataParallelDegree":1,"tensorParallelDegree":1,"TMPCids":{"3":"v"}},
    {"nodes":[7],"dataParallelDegree":1,"tensorParallelDegree":1,"TMPCids":{"7":"v"}}]})";
  folder.put("plan.json", plan);
  const auto check = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"check", folder.at("plan.json"), folder.at("instance.json")});
    return run_tool(std::move(more));
  };
  const auto good = check({});
  CAPTURE(good.out, good.err);
  CHECK(good.status == 0);
  CHECK_THAT(good.out, Contains("slowest stage: 3.1 s"));  // 3 s and 2 x 50 bytes over its border
  // Both nodes on two replicas take (1 + 3) / 2 s and 4 * 200 / 2 / 4 / 1000 s for their gradients: the optimum.
  CHECK(check({"--lower-bound", "2.1"}).status == 0);
  CHECK_THAT(check({"--lower-bound", "2.1"}).out, Contains("gap 47.62 %"));
  CHECK(check({"--lower-bound", "2.1021"}).status == 1);
  CHECK_THAT(check({"--lower-bound", "2.1021", "--json"}).out, Contains("\"accepted\":false"));
  check_trouble(check({"--devices", "1"}), {"more devices than there are"});
  check_trouble(check({"--memory", "10"}), {"does not fit"});
  folder.put("plan.json", replaced(plan, "\"nodes\":[7]", "\"nodes\":[8]"));
  check_trouble(check({}), {"plan.json", "stages[1]", "not one of the instance"});
  folder.put("plan.json", replaced(plan, "{\"7\":\"v\"}", "{\"7\":\"w\"}"));
  check_trouble(check({}), {"no variant 'w'"});
  folder.put("plan.json", replaced(replaced(plan, "\"nodes\":[7]", "\"nodes\":[3]"), "{\"7\"", "{\"3\""));
  check_trouble(check({}), {"two stages"});
  folder.put("plan.json", plan.substr(0, 50));
  check_trouble(check({}), {"not valid JSON"});
}
