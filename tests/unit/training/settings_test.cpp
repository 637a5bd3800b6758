#include "training/settings.hpp"

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <autopar/runtime/loopback.hpp>

#include "catch_shim.hpp"
#include "temp_folder.hpp"
#include "training/progress.hpp"
#include "training/run_folder.hpp"

namespace settings_test {

struct Parsed {
  training::Settings settings;
  std::vector<std::string> texts{};
  std::optional<int> status{};
};

Parsed parsed(autopar::World& world, std::vector<std::string> words) {
  Parsed result;
  CLI::App app("a test");
  training::add_options(app, result.settings);
  app.add_option("--text", result.texts);
  words.insert(words.begin(), "program");
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  result.status = training::parse(app, result.settings, world, static_cast<int>(pointers.size()), pointers.data());
  return result;
}

TEST_CASE("Settings: a resumed run keeps its options unless given") {
  const TempFolder temp;
  const auto out = (temp / "run").string();
  autopar::loopback::run(1, [&](autopar::World& world) {
    auto start = parsed(world, {"--out", out, "--steps", "70", "--fp64", "--lr=0.25", "--replicas", "2,1", "--text",
                                "a b", "--text", "\"c\", --d"});
    CHECK_FALSE(start.status.has_value());
    training::RunFolder folder(world, start.settings);
    const auto resumed = parsed(world, {"--resume", "--out", out, "--steps", "90"});
    CHECK(resumed.settings.steps == 90);
    CHECK(resumed.settings.fp64);
    CHECK(resumed.settings.learning_rate == 0.25);
    CHECK(resumed.settings.options.replicas == std::vector{2, 1});
    CHECK(resumed.texts == std::vector<std::string>{"a b", "\"c\", --d"});
    CHECK(resumed.settings.warmup == training::Settings().warmup);
  });
}

TEST_CASE("Settings: contradictions are refused") {
  autopar::loopback::run(1, [&](autopar::World& world) {
    CHECK_THROWS_WITH(parsed(world, {"--fp64", "--precision", "bf16"}), Catch::Matchers::Contains("bf16"));
    CHECK_THROWS_WITH(parsed(world, {"--batch", "8", "--accumulate", "3"}), Catch::Matchers::Contains("--batch 8"));
    CHECK_THROWS_WITH(parsed(world, {"--resume"}), Catch::Matchers::Contains("--out"));
    CHECK(parsed(world, {"--accumulate", "2"}).settings.options.gradient_accumulation);
  });
}

TEST_CASE("Settings: unknown options are named, plan-only saves nothing") {
  autopar::loopback::run(1, [&](autopar::World& world) {
    std::ostringstream said;
    auto* const before = std::cerr.rdbuf(said.rdbuf());
    const auto unknown = parsed(world, {"--ouut", "run"});
    const auto with_value = parsed(world, {"--learning=3"});
    std::cerr.rdbuf(before);
    CHECK(unknown.status.value_or(0) != 0);
    CHECK(with_value.status.value_or(0) != 0);
    CHECK_THAT(said.str(), Catch::Matchers::Contains("--ouut is no option; did you mean --out?"));
    CHECK(parsed(world, {"--out", "run", "--plan-only"}).settings.out.empty());
    CHECK(parsed(world, {"--out", "run"}).settings.out == "run");
  });
}

TEST_CASE("Settings: plan-only divides the batch by the cluster's ranks") {
  const std::string file = AUTOPAR_TEST_CLUSTERS "/h100x8.toml";
  autopar::loopback::run(1, [&](autopar::World& world) {
    CHECK(parsed(world, {"--batch", "64", "--plan-only", "--cluster", file}).settings.batch == 8);
    CHECK_THROWS_WITH(parsed(world, {"--batch", "60", "--plan-only", "--cluster", file}),
                      Catch::Matchers::Contains("8 devices"));
  });
}

TEST_CASE("duration_text, short_number: about three digits") {
  using training::duration_text;
  using training::short_number;
  CHECK(duration_text(4.06) == "4.1 s");
  CHECK(duration_text(725) == "12 min");
  CHECK(duration_text(12'000) == "3 h 20 min");
  CHECK(duration_text(187'000) == "2 d 3 h");
  CHECK(short_number(0.5) == "0.50");
  CHECK(short_number(12.34) == "12.3");
  CHECK(short_number(812) == "812");
  CHECK(short_number(12'340) == "12.3k");
  CHECK(short_number(4'561'000) == "4.56M");
  CHECK(short_number(999'700) == "1.00M");
}

}  // namespace settings_test
