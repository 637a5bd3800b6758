#include <catch_shim.hpp>

#include "tool_run.hpp"

using namespace autopar;

TEST_CASE("check: names the component that an instance needs", "[tool]") {
  const test::ToolFolder folder("tool_no_instances");
  folder.put("instance.json", "{}");
  test::check_trouble(test::run_tool({"check", folder.at("instance.json"), folder.at("instance.json")}),
                      {"instance.json", "CLUSTER is missing", "AUTOPAR_BUILD_BOTTLENECK=ON"});
}
