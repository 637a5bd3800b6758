#include <catch_shim.hpp>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "tool_run.hpp"

using namespace autopar;
using Catch::Matchers::Contains;
using test::check_trouble;
using test::run_tool;
using test::ToolFolder;

namespace {

std::string metrics_line(int step, double seconds_ago, const std::string& rest) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return "{\"step\":" + std::to_string(step) + ",\"time\":" + std::to_string(now.count() - seconds_ago) + "," + rest +
         "}\n";
}

}  // namespace

TEST_CASE("top: the newest figures, checkpoint and best of a run", "[tool]") {
  const ToolFolder folder("tool_top");
  const auto run = folder.at("run");
  std::filesystem::create_directories(run + "/step-00000010");
  std::filesystem::create_directories(run + "/step-100000000");
  std::filesystem::create_directories(run + "/step-00000030");
  std::filesystem::create_directories(run + "/best");
  folder.put("run/step-00000010/index.json", "{}");
  folder.put("run/step-00000030/place.json", "{}");  // under way
  folder.put("run/best/best.json", R"({"metric":"accuracy","step":20,"value":0.75})");
  folder.put("run/metrics.jsonl",
             metrics_line(10, 30, R"("loss":4.0,"images_per_second":100,"memory_gib":1.5,"mfu":0.25)") +
                 metrics_line(15, 25, R"("loss":null)") + "garbage\n{\"step\":\"x\"}\n[]\n" +
                 metrics_line(20, 20, R"("loss":2.5,"images_per_second":200,"lr":0.001,"\u001b[2J":1)") +
                 metrics_line(20, 19, R"("goodput":0.93,"time_saving":0.02,"time_waiting":0.05,"slowest_rank":3)") +
                 R"({"step":21,"loss":9)");
  const auto top = run_tool({"top", run});
  CAPTURE(top.out, top.err);
  CHECK(top.status == 0);
  CHECK_THAT(top.out, Contains("figures of 19 s ago"));
  CHECK_THAT(top.out, Contains("step         20\n"));
  CHECK_THAT(top.out, Contains("loss         2.5  \u2588!\u2581\n"));
  CHECK_THAT(top.out, Contains("images/s     200\n"));
  CHECK_THAT(top.out, Contains("MFU          25.0 %\n"));
  CHECK_THAT(top.out, Contains("memory       1.5 GiB of the fullest rank\n"));
  CHECK_THAT(top.out, Contains("goodput      93.0 %; saving 2.0 %, waiting 5.0 %\n"));
  CHECK_THAT(top.out, Contains("slowest      rank 3\n"));
  CHECK_THAT(top.out, Contains("checkpoint   step-00000010, "));
  CHECK_THAT(top.out, Contains("best         accuracy 0.75 at step 20\n"));
  CHECK_THAT(top.out, Contains("lr           0.001\n"));
  CHECK(top.out.find('\x1b') == std::string::npos);
  folder.put("run/step-100000000/index.json", "{}");
  CHECK_THAT(run_tool({"top", run, "--once"}).out, Contains("checkpoint   step-100000000, "));
}

TEST_CASE("top: long files, empty ones, and none", "[tool]") {
  const ToolFolder folder("tool_top");
  std::filesystem::create_directories(folder.at("run"));
  check_trouble(run_tool({"top", folder.at("none")}), {"none' is no folder of a run"});
  check_trouble(run_tool({"top", folder.at("run")}), {"metrics.jsonl"});
  check_trouble(run_tool({"top", folder.at("run"), "--interval", "0"}), {"--interval"});
  folder.put("run/metrics.jsonl", "");
  CHECK_THAT(run_tool({"top", folder.at("run")}).out, Contains("no figures yet\ncheckpoint   none yet\n"));
  std::string text = metrics_line(1, 10, R"("first":1)");
  while (text.size() < (std::size_t{5} << 20)) text += metrics_line(2, 10, R"("loss":1)");
  folder.put("run/metrics.jsonl", text + metrics_line(3, 100, R"("loss":0.5)"));
  const auto long_run = run_tool({"top", folder.at("run")});
  CHECK_THAT(long_run.out, Contains("loss         0.5  "));
  CHECK_THAT(long_run.out, Contains("has ended, waits, or has figures seldom"));
  CHECK(long_run.out.find("first") == std::string::npos);
}
