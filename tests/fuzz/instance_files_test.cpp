#include <catch_shim.hpp>

#include <string>

#include <autopar/bottleneck/instance_file.hpp>

#include "damage.hpp"

using namespace autopar;
using test::fuzz;

namespace {

const char* const kInstance = R"({"maxDevices":4,"maxMemoryPerDevice":1e9,"bandwidth":1e9,"mbsInBatch":8,
"nodes":[{"id":0,"TMPCs":{"1":[{"id":"a","timePerSample":1.0,"memoryUsageA":10,"memoryUsageB":5,"parameterSize":100,
"syncTimeFw":{},"syncTimeBw":{"1":0.5}}]}},{"id":1,"TMPCs":{"1":[{"id":"a","timePerSample":2.0,"memoryUsageA":10,
"memoryUsageB":5,"parameterSize":100,"syncTimeFw":{"0":0.5},"syncTimeBw":{}}]}}],
"edges":[{"sourceId":0,"destId":1,"communicationCost":50}]})";

VariantTables tables_of(const std::string& text) {
  const PlanningInstance instance = parse_instance(text, "f");
  return make_tables(instance.graph, instance.costs, instance.limits);
}

/// So many damaged instances and plans.
void fuzz_instances(int rounds, unsigned seed) {
  fuzz(kInstance, rounds, seed + 4, [&](const std::string& text) { (void)tables_of(text); });
  const VariantTables tables = tables_of(kInstance);
  fuzz(R"({"stages":[{"nodes":[0],"dataParallelDegree":1,"tensorParallelDegree":1,"TMPCids":{"0":"a"}},
          {"nodes":[1],"dataParallelDegree":2,"tensorParallelDegree":1,"TMPCids":{"1":"a"}}]})",
       rounds, seed + 6, [&](const std::string& text) { (void)parse_stages(text, "f", tables); });
}

}  // namespace

TEST_CASE("instance reader: damaged file is read or refused, no crash", "[fuzz]") { fuzz_instances(4000, 0); }

TEST_CASE("instance reader: no crash in many reads", "[.nightly]") { fuzz_instances(100'000, 100); }

TEST_CASE("instance reader: memory grows only with the file's length", "[fuzz]") {
  const long before = test::peak_kib();
  for (const std::string& text : test::deep_texts()) CHECK_THROWS_AS(parse_instance(text, "f"), Error);
  CHECK(test::peak_kib() - before < test::kMostKib);
}
