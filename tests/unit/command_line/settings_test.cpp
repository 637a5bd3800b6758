#include "command_line/settings.hpp"

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <autopar/io/file.hpp>
#include <autopar/runtime/loopback.hpp>

#include "catch_shim.hpp"
#include "temp_folder.hpp"

namespace settings_test {

struct Parsed {
  command_line::Settings settings;
  std::vector<std::string> texts{};
  std::optional<int> status{};
};

Parsed parsed(autopar::World& world, std::vector<std::string> words) {
  Parsed result;
  CLI::App app("a test");
  command_line::add_options(app, result.settings);
  app.add_option("--text", result.texts);
  words.insert(words.begin(), "program");
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  result.status = command_line::parse(app, result.settings, world, static_cast<int>(pointers.size()), pointers.data());
  return result;
}

TEST_CASE("Settings: a resumed run keeps its options unless given") {
  const TempFolder temp;
  const auto out = (temp / "run").string();
  autopar::loopback::run(1, [&](autopar::World& world) {
    auto start = parsed(world, {"--out", out, "--steps", "70", "--fp64", "--lr=0.25", "--replicas", "2,1", "--text",
                                "a b", "--text", "\"c\", --d"});
    CHECK_FALSE(start.status.has_value());
    autopar::write_text_file(autopar::training::settings_file(out), start.settings.given);
    const auto resumed = parsed(world, {"--resume", "--out", out, "--steps", "90"});
    CHECK(resumed.settings.steps == 90);
    CHECK(resumed.settings.fp64);
    CHECK(resumed.settings.learning_rate == 0.25);
    CHECK(resumed.settings.options.replicas == std::vector{2, 1});
    CHECK(resumed.texts == std::vector<std::string>{"a b", "\"c\", --d"});
    CHECK(resumed.settings.warmup == command_line::Settings().warmup);
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

TEST_CASE("Settings: decays by name") {
  command_line::Settings settings;
  settings.learning_rate = 2;
  settings.steps = 100;
  settings.warmup = 4;
  settings.lowest_rate = 0;
  settings.decay = "root";
  CHECK(settings.rate(75) == Approx(1));
  settings.decay = "linear";
  CHECK(settings.rate(52) == Approx(1));
  settings.decay = "constant";
  CHECK(settings.rate(1) == Approx(1));
  settings.decay = "square";
  CHECK_THROWS_WITH(settings.rate(0), Catch::Matchers::Contains("'square'"));
}

TEST_CASE("Settings: --resume starts a run that is not there") {
  const TempFolder temp;
  autopar::loopback::run(1, [&](autopar::World& world) {
    const auto run = parsed(world, {"--resume", "--out", (temp / "none").string(), "--steps", "3"}).settings;
    CHECK(run.steps == 3);
    CHECK(run.folder().start == autopar::training::Start::kNewOrResume);
    CHECK(parsed(world, {"--out", "x"}).settings.folder().start == autopar::training::Start::kNew);
  });
}

}  // namespace settings_test
