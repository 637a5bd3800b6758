#include "training/run_folder.hpp"

#include <filesystem>
#include <fstream>
#include <string>

#include <autopar/io/file.hpp>
#include <autopar/runtime/loopback.hpp>

#include "catch_shim.hpp"
#include "temp_folder.hpp"
#include "training/interrupt.hpp"

namespace run_folder_test {

namespace fs = std::filesystem;
using training::Place;
using training::RunFolder;

/// Writes what it holds, and may die before that is done.
struct Model {
  std::string held;
  bool dies = false;

  Model* operator->() { return this; }
  void save(const std::string& folder) const {
    if (dies) throw std::runtime_error("killed");
    autopar::write_text_file(folder + "/model", held);
  }
  void load(const std::string& folder) { held = autopar::read_text_file(folder + "/model"); }
};

training::Settings settings_of(const fs::path& folder) {
  training::Settings settings;
  settings.out = folder;
  settings.keep = 2;
  settings.given = "{}";
  return settings;
}

TEST_CASE("RunFolder: resumes from the newest, keeps the last ones") {
  const TempFolder temp;
  auto settings = settings_of(temp / "run");
  autopar::loopback::run(1, [&](autopar::World& world) {
    RunFolder folder(world, settings);
    Model model{"start"};
    CHECK(folder.load(model).step == 0);
    CHECK(model.held == "start");
    for (const std::int64_t step : {9, 10, 100}) {
      model.held = "at " + std::to_string(step);
      folder.save({step, 1, 2}, model);
    }
    CHECK_FALSE(fs::exists(temp / "run/step-00000009"));
    Model dying{"", true};
    CHECK_THROWS(folder.save({110, 0, 0}, dying));
    fs::create_directories(temp / "run/step-00000120");  // what a killed save leaves
  });
  settings.resume = true;
  autopar::loopback::run(1, [&](autopar::World& world) {
    Model model;
    const auto place = RunFolder(world, settings).load(model);
    CHECK(place.step == 100);
    CHECK(place.epoch == 1);
    CHECK(place.taken == 2);
    CHECK(model.held == "at 100");
  });
}

TEST_CASE("RunFolder: foreign or empty folders are refused on all ranks") {
  const TempFolder temp;
  auto settings = settings_of(temp / "run");
  const auto refused = [&] {
    std::array<std::string, 2> said;
    autopar::loopback::run(2, [&](autopar::World& world) {
      try {
        Model model;
        RunFolder(world, settings).save({1, 0, 0}, model);
      } catch (const autopar::InvalidArgument& error) {
        said[static_cast<std::size_t>(world.rank())] = error.what();
      }
    });
    CHECK(said[0] == said[1]);
    return said[0];
  };
  settings.resume = true;
  CHECK_THAT(refused(), Catch::Matchers::Contains("no complete checkpoint in"));
  settings.resume = false;
  CHECK(refused().empty());
  CHECK_THAT(refused(), Catch::Matchers::Contains("has an earlier run"));
}

TEST_CASE("RunFolder: without a folder nothing is saved") {
  training::Settings settings;
  autopar::loopback::run(1, [&](autopar::World& world) {
    RunFolder folder(world, settings);
    Model dying{"", true};
    CHECK_NOTHROW(folder.save({1, 0, 0}, dying));
    CHECK_FALSE(folder.is_kept());
  });
}

TEST_CASE("Interrupt: a signal ends after the step, status tells which") {
  autopar::loopback::run(1, [](autopar::World& world) {
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
      training::Interrupt interrupt(world);
      CHECK_FALSE(interrupt.is_asked());
      CHECK(interrupt.exit_status() == 0);
      std::raise(signal);
      CHECK(interrupt.is_asked());
      CHECK(interrupt.exit_status() == 128 + signal);
    }
  });
}

}  // namespace run_folder_test
