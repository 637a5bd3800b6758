#include <autopar/bottleneck/instance_file.hpp>

#include <catch_shim.hpp>
#include <many_members.hpp>

#include <string>

#include <autopar/bottleneck/certificate.hpp>
#include <autopar/bottleneck/exact_bottleneck_staging.hpp>

using namespace autopar;

namespace {

/// Two nodes in a row, one tensor degree, two variants each.
const std::string kInstance = R"({
  "maxDevices": 2, "maxMemoryPerDevice": 100.0, "bandwidth": 10.0, "mbsInBatch": 4,
  "nodes": [
    {"id": 7, "name": "a", "TMPCs": {"1": [
      {"id": "vanilla", "timePerSample": 2.0, "parameterSize": 8.0, "memoryUsageA": 60.0, "memoryUsageB": 10.0,
       "syncTimeFw": {}, "syncTimeBw": {"9": 1.0}},
      {"id": "recompute", "timePerSample": 3.0, "parameterSize": 8.0, "memoryUsageA": 5.0, "memoryUsageB": 10.0,
       "syncTimeFw": {}, "syncTimeBw": {"9": 1.0}}]}},
    {"id": 9, "name": "b", "TMPCs": {"1": [
      {"id": "vanilla", "timePerSample": 2.0, "parameterSize": 8.0, "memoryUsageA": 60.0, "memoryUsageB": 10.0,
       "syncTimeFw": {"7": 0.5}, "syncTimeBw": {}}]}}],
  "edges": [{"sourceId": 7, "destId": 9, "communicationCost": 4.0}]
})";

std::string with(const std::string& what, const std::string& instead) {
  std::string text = kInstance;
  const auto at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), instead);
}

VariantTables tables_of(const PlanningInstance& instance) {
  return make_tables(instance.graph, instance.costs, instance.limits);
}

void refused(const std::string& text, const std::string& part, const InstanceTarget& target = {}) {
  CHECK_THROWS_WITH(parse_instance(text, "instance.json", target), Catch::Contains(part));
}

}  // namespace

TEST_CASE("parse_instance: tables have the published costs") {
  static_assert(VariantCostModel<InstanceCosts, Graph<std::int64_t, char>>);
  const PlanningInstance instance = parse_instance(kInstance, "instance.json");
  const VariantTables tables = tables_of(instance);
  CHECK(tables.devices == 2);
  CHECK(tables.replicas == std::vector<int>{1, 2});
  CHECK(tables.variants[0][0][0].out == std::vector<double>{10});  // 2 * (4 + 1)
  CHECK(tables.variants[1][0][0].in == std::vector<double>{9});
  CHECK(tables.border_cost[1] == Approx(0.05));
  CHECK(tables.parameter_cost[0] == 0);
  CHECK(tables.parameter_cost[1] == Approx(4.0 / 2 / 4 / 10));
  const BottleneckResult found = solve_bottleneck(tables);
  // Two stages: the first has two micro-batches in flight and must recompute; 3 s and 1 s for its border. One
  // replicated stage needs 75 bytes of recompute and vanilla: (3 + 2) / 2 and the sums of 16 bytes.
  CHECK(found.seconds == Approx(2.5 + 16 * tables.parameter_cost[1]));
  CHECK(check_certificate(tables, {found.stages, found.seconds, found.lower_bound}).accepted);
  CHECK(to_json(instance, found.stages).find("\"recompute\"") != std::string::npos);
}

TEST_CASE("parse_instance: the target's limits override the file's") {
  const VariantTables tables = tables_of(parse_instance(kInstance, "instance.json", {1, 50.0, 5.0}));
  CHECK(tables.devices == 1);
  CHECK(tables.memory == 50);
  CHECK(solve_bottleneck(tables).stages.empty());
}

TEST_CASE("parse_instance: very many members are refused") {
  CHECK_THROWS_AS(parse_instance(test::object_of(test::kMany, "\"maxDevices\":4", "{}"), "f"), Error);
}

TEST_CASE("parse_instance: hostile input is refused by name") {
  refused("", "instance.json");
  refused("[]", "expected an object");
  refused(std::string(100, '['), "instance.json");
  refused(with("\"maxDevices\": 2", "\"maxDevices\": 0"), "maxDevices");
  refused(with("\"maxDevices\": 2", "\"maxDevices\": 1e300"), "maxDevices");
  refused(with("\"bandwidth\": 10.0", "\"bandwidth\": 0"), "bandwidth");
  refused(with("\"timePerSample\": 2.0", "\"timePerSample\": -2.0"), "timePerSample");
  refused(with("\"timePerSample\": 2.0", "\"timePerSample\": NaN"), "instance.json");
  refused(with("\"timePerSample\": 2.0", "\"timePerSample\": \"2\""), "timePerSample");
  refused(with("\"timePerSample\": 2.0", "\"timePerSample\": 1e400"), "instance.json");
  refused(with("\"id\": 9", "\"id\": 7"), "id 7 is taken");
  refused(with("\"destId\": 9", "\"destId\": 8"), "no node 8");
  refused(with("\"syncTimeFw\": {\"7\": 0.5}", "\"syncTimeFw\": {}"), "'7' is missing");
  refused(with("{\"1\": [", "{\"-1\": ["), "tensor degree");
  refused(with("\"sourceId\": 7, \"destId\": 9", "\"sourceId\": 9, \"destId\": 9"), "");
  refused(kInstance, "at least one device", {0, {}, {}});
  refused(kInstance, "memory", {{}, -1.0, {}});
  for (std::size_t length = 0; length + 2 < kInstance.size(); length += 7) {
    CHECK_THROWS_AS(parse_instance(kInstance.substr(0, length), "instance.json"), ConfigError);
  }
}
