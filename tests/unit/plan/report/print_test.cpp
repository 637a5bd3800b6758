#include <autopar/plan/report/print.hpp>

#include <catch_shim.hpp>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

using namespace autopar;

TEST_CASE("readable: bytes, seconds and counts") {
  CHECK(readable(Bytes(0)) == "0 B");
  CHECK(readable(Bytes(999)) == "999 B");
  CHECK(readable(Bytes(1024)) == "1.00 KiB");
  CHECK(readable(Bytes(std::int64_t{36} << 30)) == "36.0 GiB");
  CHECK(readable(Seconds(1.5e-3)) == "1.50 ms");
  CHECK(readable(Seconds(12)) == "12.0 s");
  CHECK(readable(Seconds(0)) == "0");
  CHECK(readable_count(999) == "999");
  CHECK(readable_count(2'630'000) == "2.63 M");
  CHECK(readable_count(999'999) == "1.00 M");
  CHECK(readable_count(175'000'000'000) == "175 G");
  CHECK(ranges({0, 1, 2, 3, 6}) == "0-3,6");
  CHECK(ranges({4, 5}) == "4,5");
  CHECK(ranges({}) == "");
}

TEST_CASE("to_text: tensor shards are shown beside replicas") {
  Plan plan;
  plan.world = 6;
  plan.stages.resize(2);
  plan.stages[0].mesh = Mesh({Rank(0), Rank(1), Rank(2), Rank(3)}, 2);
  plan.stages[1].mesh = Mesh({Rank(4), Rank(5)}, 1);
  const std::string text = to_text(plan);
  CHECK(text.find("plan: 2 stages x 2 replicas x 2+1 shards, 1 micro-batch, 1f1b;") == 0);
  CHECK(text.find("     2 x 2    0-3") != std::string::npos);
  plan.buckets.reduce_dtype = ReduceDtype::kBf16;
  CHECK(to_text(plan).find("1f1b, gradients sent in bf16; 6 ranks") != std::string::npos);
  plan.stages[1].mesh = Mesh({Rank(4), Rank(5)}, 2);
  CHECK(to_text(plan).find("plan: 2 stages x 2+1 replicas x 2 shards") == 0);
}

TEST_CASE("to_text: table, bottleneck, runner-up and notes") {
  Plan plan;
  plan.world = 4;
  plan.batch = 256;
  plan.device = "A100-40";
  plan.device_memory = Bytes(std::int64_t{36} << 30);
  plan.optimizer_state_factor = 2;
  plan.microbatches = 8;
  plan.step = Seconds(0.128);
  plan.bubble = 0.21;
  plan.binding = Binding::kMemory;
  StagePlan stage;
  stage.atoms = {NodeId(0), NodeId(1)};
  stage.ops = {0, 1, 2};
  stage.mesh = {Rank(0), Rank(1), Rank(2)};
  stage.parameter_bytes = Bytes(std::int64_t{9} << 30);
  stage.forward = Seconds(0.004);
  stage.peak_memory = Bytes(std::int64_t{18} << 30);
  plan.stages.push_back(stage);
  stage.mesh = {Rank(3)};
  stage.parameter_elements = 2'415'919'104;
  plan.stages.push_back(stage);
  plan.runners_up.push_back({"1 stage x 4 replicas", "does not fit", Seconds(0.1)});
  plan.notes.push_back("one note");
  std::ostringstream out;
  out << plan;
  const std::string expected =
      "plan: 2 stages x 3+1 replicas, 8 micro-batches, 1f1b; 4 ranks of A100-40, batch 256\n"
      "predicted: step 128 ms (2000 samples/s), bound by memory, bubble 21 %\n"
      "memory: 18.0 GiB used of 36.0 GiB available a rank (margin taken off), optimizer state 2 x parameters\n"
      "                                                                    gradient      peak\n"
      "stage  ops    params  replicas  ranks  forward  backward  messages      sums    memory  used\n"
      "    0    3  9.00 GiB         3    0-2  4.00 ms         0         0         0  18.0 GiB  50 %\n"
      "    1    3    2.42 G         1      3  4.00 ms         0         0         0  18.0 GiB  50 %\n"
      "forward, backward and messages: one micro-batch of one replica; gradient sums: once a step\n"
      "runner-up: 1 stage x 4 replicas: 100 ms, does not fit\n"
      "note: one note\n";
  CHECK(out.str() == expected);
}

TEST_CASE("describe: stages on the same ranks are chunks") {
  Plan plan;
  plan.world = 4;
  plan.microbatches = 8;
  plan.schedule = ScheduleKind::kInterleaved;
  for (int s = 0; s < 8; ++s) {
    plan.stages.emplace_back();
    plan.stages.back().mesh = Mesh({Rank(s % 4)}, 1);
  }
  CHECK(describe(plan) == "4 stages x 2 chunks x 1 replica, 8 micro-batches, interleaved");
  CHECK(to_text(plan).find("plan: 4 stages x 2 chunks x 1 replica, 8 micro-batches, interleaved;") == 0);
  plan.stages.pop_back();
  CHECK(describe(plan) == "4 stages x 2+2+2+1 chunks x 1 replica, 8 micro-batches, interleaved");
  // The same ranks in two shapes: each chunk has its own.
  plan.stages.resize(2);
  plan.stages[0].mesh = Mesh({Rank(0), Rank(1), Rank(2), Rank(3)}, 1);
  plan.stages[1].mesh = Mesh({Rank(0), Rank(1), Rank(2), Rank(3)}, 2);
  CHECK(describe(plan) == "1 stage x 2 chunks x 4+2 replicas x 1+2 shards, 8 micro-batches, interleaved");
  const Staging staging{{0, 1, 2, 3}, {2, 2, 2, 2}, 4, ScheduleKind::kInterleaved, {0, 1, 0, 1}};
  CHECK(describe(staging) == "2 stages x 2 chunks x 2 replicas, 4 micro-batches, interleaved");
}

namespace {

std::size_t widest_line(const std::string& text) {
  std::size_t widest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, line.size());
  return widest;
}

}  // namespace

TEST_CASE("aligned_table: wraps at 100 columns, first column repeated") {
  const std::vector<std::string> head{"first", "second\ncolumn", "third"};
  CHECK(aligned_table({head, {"1", "2", "3"}}) ==
        "       second\n"
        "first  column  third\n"
        "    1       2      3\n");
  CHECK(aligned_table({head, {"1", "2", "3"}}, 14) ==
        "       second\n"
        "first  column\n"
        "    1       2\n"
        "first  third\n"
        "    1      3\n");
  CHECK(aligned_table({{"one"}, {"1"}}) == "one\n  1\n");
  // Everything as wide as it may be.
  Plan plan;
  plan.world = 1024;
  plan.device_memory = Bytes(1000);
  for (int s = 0; s < 12; ++s) {
    StagePlan stage;
    stage.ops.resize(12345);
    stage.atoms.resize(100);
    stage.recomputed = {{NodeId(0), NodeId(1)}};
    stage.parameter_bytes = Bytes(std::int64_t{123} << 30);
    std::vector<Rank> ranks;
    for (int r = 0; r < 64; ++r) ranks.emplace_back(s + 12 * r);
    stage.mesh = Mesh(std::move(ranks), 16);
    stage.forward = stage.backward = stage.communication = stage.reduction = Seconds(0.0123456);
    stage.peak_memory = Bytes(1000);
    plan.stages.push_back(std::move(stage));
  }
  const auto text = to_text(plan);
  const auto begin = text.find("stage  ");
  const auto table = text.substr(begin, text.find("forward, backward and messages") - begin);
  CAPTURE(table);
  CHECK(widest_line(table) <= 100 + 8);  // "…" is three bytes, twice a line at most
  CHECK(table.find("0,…,756") != std::string::npos);
  CHECK(table.find("100 %") != std::string::npos);
  CHECK(table.find("2 %") != std::string::npos);  // recomputed
}

TEST_CASE("gap_percent: a gap of rounding errors is 0 %") {
  CHECK(gap_percent(0) == "0 %");
  CHECK(gap_percent(2.2e-16) == "0 %");
  CHECK(gap_percent(-4e-14) == "0 %");
  CHECK(gap_percent(0.0637) == "6.37 %");
  CHECK(gap_percent(0.063734, 4) == "6.373 %");
  CHECK(gap_percent(12.5) == "1.25e+03 %");
  Plan plan;
  plan.stages.resize(1);
  plan.step = Seconds(1);
  plan.certificate.lower_bound = Seconds(1);
  plan.certificate.gap = 2.2e-16;
  CHECK(to_text(plan).find("; gap 0 %\n") != std::string::npos);
}
