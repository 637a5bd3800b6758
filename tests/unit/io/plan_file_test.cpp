#include <autopar/io/plan_file.hpp>

#include <catch_shim.hpp>
#include <replaced.hpp>

#include <random>

#include <autopar/core/error.hpp>

using namespace autopar;

namespace {

Plan sample_plan() {
  Plan plan;
  plan.model = 0x0123456789abcdefull;
  plan.world = 3;
  plan.batch = 128;
  plan.microbatches = 4;
  plan.schedule = ScheduleKind::kGPipe;
  plan.sequence_parallel = plan.chunked_heads = plan.layers_by_inputs = true;
  plan.zero = 2;
  plan.offload = Offload::kOptimizer;
  plan.host_memory = Bytes(std::int64_t{256} << 30);
  plan.buckets = {Bytes(std::int64_t{96} << 20), ReduceDtype::kBf16};
  plan.precision = Precision::kBf16;
  plan.device = "A \"100\"";
  plan.device_memory = Bytes(std::int64_t{40} << 30);
  plan.optimizer_state_factor = 2;
  plan.step = Seconds(0.1 + 0.2);
  plan.bubble = 1.0 / 3;
  plan.binding = Binding::kBubble;
  for (int s = 0; s < 2; ++s) {
    StagePlan stage;
    stage.atoms = {NodeId(2 * s), NodeId(2 * s + 1)};
    stage.ops = {3 * s, 3 * s + 2};
    if (s == 1) stage.recomputed = {{NodeId(2)}, {NodeId(3)}};
    stage.mesh = s == 0 ? Mesh({Rank(0), Rank(1)}, 2) : Mesh{Rank(2)};
    stage.parameters = {ParameterId(s)};
    stage.parameter_bytes = Bytes(1000);
    stage.parameter_elements = 250;
    stage.forward = Seconds(1e-3);
    stage.backward = Seconds(2e-3);
    stage.communication = Seconds(1e-5);
    stage.reduction = Seconds(3e-5);
    stage.peak_memory = Bytes(123456789012);
    stage.host_memory = Bytes(98765432109);
    plan.stages.push_back(stage);
  }
  plan.runners_up = {{"1 stage", "slower", Seconds(0.5)}};
  plan.notes = {"32 samples a statistic"};
  plan.constraints = {"stages=2", "recompute=layers.0,layers.1"};
  plan.certificate = {Seconds(0.2),
                      0.5,
                      {{BoundKind::kPath, 1, 3, Seconds(0.2)}, {BoundKind::kWork, 4, 0, Seconds(0.25)}},
                      Seconds(0.3),
                      true};
  return plan;
}

}  // namespace

TEST_CASE("plan file: round trip is exact to the byte") {
  const auto text = to_json(sample_plan());
  CHECK(parse_plan(text, "p") == sample_plan());
  CHECK(to_json(parse_plan(text, "p")) == text);
}

TEST_CASE("plan file: tensor degree of a certificate if above one") {
  Plan plan = sample_plan();
  CHECK(to_json(plan).find("tensor_parallel") == std::string::npos);
  plan.certificate.tensor_parallel = 8;
  const std::string text = to_json(plan), shards = "\"tensor_parallel\": 8";
  CHECK(parse_plan(text, "p") == plan);
  std::string none = text;
  none.replace(none.find(shards), shards.size(), "\"tensor_parallel\": 0");
  CHECK_THROWS_AS(parse_plan(none, "p"), ConfigError);
}

TEST_CASE("plan file: orders are those of a synthesised schedule alone") {
  Plan plan = sample_plan();
  plan.schedule = ScheduleKind::kSynthesised;
  using enum ActionKind;
  plan.orders = {{{kForward, 0, StageId(0)}, {kBackwardInput, 0, StageId(0)}, {kBackwardWeight, 0, StageId(0)}},
                 {{kForward, 12, StageId(1)}, {kBackward, 12, StageId(1)}},
                 {}};
  const auto text = to_json(plan);
  CHECK(parse_plan(text, "p") == plan);
  CHECK(to_json(parse_plan(text, "p")) == text);
  CHECK(to_json(sample_plan()).find("orders") == std::string::npos);
  for (const std::string wrong : {"X1.2", "F1", "F.2", "F1.-2", "F1.2x", "F99999999999.1"}) {
    CHECK_THROWS_AS(parse_plan(replaced(text, "F1.12", wrong), "p"), ConfigError);
  }
  for (const ScheduleKind kind : kScheduleKinds) {
    plan.schedule = kind;
    if (kind != ScheduleKind::kSynthesised) plan.orders.clear();
    CHECK(parse_plan(to_json(plan), "p").schedule == kind);
  }
}

TEST_CASE("plan file: an invalid file says what is wrong") {
  const auto text = to_json(sample_plan());
  const auto refused = [](const std::string& json, const std::string& part) {
    try {
      (void)parse_plan(json, "plan.json");
      FAIL("accepted: " + json);
    } catch (const ConfigError& error) {
      CAPTURE(error.what());
      CHECK(std::string(error.what()).find(part) != std::string::npos);
      CHECK(std::string(error.what()).find("plan.json") == 0);
    }
  };
  refused(replaced(text, "\"version\": 6", "\"version\": 7"), "plans of version 6, not 7");
  refused(replaced(text, "\"version\": 6", "\"version\": 1"), "not 1, which has no certificate");
  refused(replaced(text, "\"version\": 6", "\"version\": 2"), "not 2, which says nothing of ZeRO");
  refused(replaced(text, "\"version\": 6", "\"version\": 3"), "not 3, which counted each gradient twice");
  refused(replaced(text, "\"version\": 6", "\"version\": 4"), "not 4, which says nothing of what is in host memory");
  refused(replaced(text, "\"version\": 6", "\"version\": 5"), "not 5, which says nothing of buckets");
  for (const char* const size : {"0", "-1", "1099511627777", "1.5", "\"32 MiB\""})
    refused(replaced(text, "\"bucket_bytes\": 100663296", "\"bucket_bytes\": " + std::string(size)), "bucket_bytes");
  refused(replaced(text, "\"offload\": \"optimizer\"", "\"offload\": \"all\""), "none | optimizer");
  refused(replaced(text, "\"bf16\"", "\"bf61\""), "not one of module | tf32 | bf16 | bf16-compute | fp16 | fp8");
  refused(replaced(text, "\"zero\": 2", "\"zero\": 4"), "zero");
  refused(replaced(text, "\"certificate\"", "\"certificat\""), "certificate: is missing");
  refused(replaced(text, "\"because\": \"path\"", "\"because\": \"luck\""), "work | path");
  refused(replaced(text, "\"microbatches_from\": 4", "\"microbatches_from\": 0"),
          "certificate.cases[1].microbatches_from");
  refused(replaced(text, "\"world\": 3", "\"world\": 2"), "ranks");
  refused(replaced(text, "\"gpipe\"", "\"gpip\""), "gpipe | 1f1b");
  refused(replaced(text, "\"batch\"", "\"bach\""), "batch: is missing");
  refused(replaced(text, "\"batch\": 128", "\"batch\": 128, \"x\": 1"), "unknown member 'x'");
  refused(replaced(text, "\"bubble\": 0.3", "\"bubble\": 1.3"), "bubble");
  refused(replaced(text, "\"step_s\": 0.3", "\"step_s\": -0.3"), "step_s");
  refused(replaced(text, "\"forward_s\": 0.001", "\"forward_s\": 1e308"),
          "stages[0].forward_s: 1e+308 is more than can be");
  refused(replaced(text, "\"searched_bound_s\": 0.3", "\"searched_bound_s\": 1e31"), "certificate.searched_bound_s");
  refused(replaced(text, "\"gap\": 0.5", "\"gap\": 1e101"), "certificate.gap");
  refused(replaced(text, "\"optimizer_state_factor\": 2.0", "\"optimizer_state_factor\": 1001"),
          "optimizer_state_factor");
  refused(replaced(text, "\"batch\": 128", "\"batch\": 68719476737"), "batch");
  refused(replaced(text, "\"microbatches\": 4", "\"microbatches\": 1000001"), "microbatches");
  refused(replaced(text, "\"model\": \"0123456789abcdef", "\"model\": \"xyz"), "hexadecimal");
  refused(replaced(text, "123456789012", "18446744073709551615"), "peak_memory_bytes");
  refused(text.substr(0, text.size() / 2), "not valid JSON");
  refused(std::string(1 << 20, '['), "");
  refused("", "not valid JSON");
  refused("[]", "expected an object");
}

TEST_CASE("plan file: random damage never crashes the reader") {
  const auto good = to_json(sample_plan());
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    auto text = good;
    for (int k = 0; k < 1 + round % 5; ++k) text[random() % text.size()] = static_cast<char>(random() % 256);
    if (round % 4 == 0) text.resize(random() % text.size());
    try {
      (void)parse_plan(text, "p");
    } catch (const ConfigError&) {
    }
  }
}
