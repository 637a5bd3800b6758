#include <autopar/io/profile_file.hpp>

#include <catch_shim.hpp>

#include <random>

#include <autopar/core/error.hpp>
#include <autopar/io/trace_file.hpp>

using namespace autopar;

namespace {

ModelProfile sample_profile() {
  ModelProfile profile;
  profile.hash = 42;
  profile.parameters = {{"a.weight", Bytes(400), true, 100, Bytes(200)},
                        {"running_mean", Bytes(40), false},
                        {"averaged", Bytes(8), true, 2, Bytes(0), 2},
                        {"b.weight", Bytes(400), true, 100, Bytes(200), 3, true}};
  OpProfile atom;
  atom.name = "aten::linear";
  atom.path = "a";
  atom.work = {{OpClass::kMatmul, DType::kBF16, {{2, 1}, {3, 4}, {0, 1}}, {{4, 2}, {6, 8}, {0, 2}}}};
  atom.saved = {4, 0};
  atom.deferred_weight = {8, 2};
  atom.workspace = {1, -1};
  atom.forward_workspace = {0.5, 0};
  atom.parameters = {ParameterId(0)};
  atom.structure = 7;
  atom.ops = {0, 2};
  const auto first = profile.graph.add_node(atom);
  atom.whole_batch = true;
  atom.totals = Bytes(16);
  atom.batch_statistic = true;
  const auto second = profile.graph.add_node(atom);
  profile.graph.add_edge(first, second, {5, {8, 0}, true, true, true, true});
  profile.inputs = {{1, {4, 0}, false, {first, second}}};
  profile.outputs = {{9, {0, 4}, second, true}};
  profile.held_beside = {16, 64};
  return profile;
}

ModelProfile profile_with_regions() {
  ModelProfile profile = sample_profile();
  profile.graph[NodeId(1)].parameters = {ParameterId(1)};
  profile.tensor_regions = {{{NodeId(0)}, {ParameterId(0)}, 12, true, {8, 4}, {16, 0}, 1, 2},
                            {{NodeId(1)}, {}, 5, false, {}, {}, 0, 0}};
  return profile;
}

}  // namespace

TEST_CASE("profile file: round trip") {
  const auto text = to_json(sample_profile());
  const auto again = parse_profile(text, "p");
  CHECK(to_json(again) == text);
  CHECK(again.graph.node_count() == 2);
  CHECK(again.graph[NodeId(0)].work == sample_profile().graph[NodeId(0)].work);
  CHECK(again.graph[EdgeId(0)].kept);
  CHECK(again.graph[EdgeId(0)].two_gradients);
  CHECK(again.graph[EdgeId(0)].for_readers);
  CHECK(again.outputs[0].kept);
  CHECK(again.held_beside == sample_profile().held_beside);
  CHECK(again.parameters[0].computed_with() == Bytes(200));
  CHECK(again.parameters[0].highest_zero == 3);
  CHECK(again.parameters[2].highest_zero == 2);
  CHECK_FALSE(again.parameters[0].copy_by_call);
  CHECK(again.parameters[3].copy_by_call);
}

TEST_CASE("profile file: dangling ids are refused") {
  const auto refused = [](std::string text, const std::string& from, const std::string& to) {
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    CHECK_THROWS_AS(parse_profile(text.replace(at, from.size(), to), "p"), ConfigError);
  };
  const auto text = to_json(sample_profile());
  refused(text, "\"to\":1", "\"to\":2");
  refused(text, "\"readers\":[0,1]", "\"readers\":[0,2]");
  refused(text, "\"writer\":1", "\"writer\":2");
  refused(text, "\"parameters\":[0]", "\"parameters\":[4]");
  refused(text, "\"highest_zero\":2", "\"highest_zero\":4");
  refused(text, "\"saved\":[4.0,0.0]", "\"saved\":[-4.0,0.0]");
  refused(text, "\"bf16\"", "\"bf17\"");
}

TEST_CASE("profile file: tensor regions round trip") {
  const auto text = to_json(profile_with_regions());
  CHECK(parse_profile(text, "p").tensor_regions == profile_with_regions().tensor_regions);
  CHECK(parse_profile(to_json(sample_profile()), "p").tensor_regions.empty());
}

TEST_CASE("profile file: invalid tensor regions are refused") {
  const auto refused = [](const std::string& what, auto change) {
    ModelProfile profile = profile_with_regions();
    change(profile.tensor_regions);
    CHECK_THROWS_WITH(parse_profile(to_json(profile), "p"), Catch::Matchers::ContainsSubstring(what));
  };
  using Regions = std::vector<TensorRegion>;
  refused("atoms", [](Regions& r) { r[0].atoms = {NodeId(2)}; });
  refused("has no atom", [](Regions& r) { r[1].atoms = {}; });
  refused("out of order", [](Regions& r) { r[0].atoms = {NodeId(1), NodeId(0)}; });
  refused("which another one has", [](Regions& r) { r[1].atoms = {NodeId(0)}; });
  refused("parameters", [](Regions& r) { r[0].parameters = {ParameterId(4)}; });
  refused("which none of its atoms reads", [](Regions& r) { r[0].parameters = {ParameterId(2)}; });
  refused("outside reads as well", [](Regions& r) { r[1].parameters = {ParameterId(0)}, r[0].parameters = {}; });
  refused("units", [](Regions& r) { r[0].units = 0; });
  refused("what its forward exchanges", [](Regions& r) { r[0].forward.fixed = -1; });
  refused("what its backward exchanges", [](Regions& r) { r[0].backward_calls = 0; });
  refused("forward_calls", [](Regions& r) { r[0].forward_calls = -1; });
}

TEST_CASE("profile file: random damage never crashes the reader") {
  const auto plain = to_json(sample_profile()), with_regions = to_json(profile_with_regions());
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    auto text = round % 2 == 0 ? plain : with_regions;
    for (int k = 0; k < 1 + round % 5; ++k) text[random() % text.size()] = static_cast<char>(random() % 256);
    if (round % 4 == 0) text.resize(random() % text.size());
    try {
      (void)parse_profile(text, "p");
    } catch (const ConfigError&) {
    }
  }
}

TEST_CASE("to_chrome_trace: lanes named once, times in microseconds") {
  const auto text = to_chrome_trace({{Rank(1), "compute", "F0", Seconds(0.5), Seconds(0.75)},
                                     {Rank(1), "compute", "B\"0", Seconds(0.75), Seconds(1)}},
                                    7);
  CHECK(text.starts_with("{\"format\":\"autopar trace of model 0000000000000007\","));
  CHECK(text.find("\"ts\":500000.0") != std::string::npos);
  CHECK(text.find("\"dur\":250000.0") != std::string::npos);
  CHECK(text.find("thread_name") == text.rfind("thread_name"));
}
