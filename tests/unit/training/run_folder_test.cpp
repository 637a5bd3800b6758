#include <autopar/training/run_folder.hpp>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>
#include <autopar/runtime/loopback.hpp>
#include <autopar/training/interrupt.hpp>

#include "catch_shim.hpp"
#include "temp_folder.hpp"

namespace run_folder_test {

namespace fs = std::filesystem;
using autopar::training::Better;
using autopar::training::Interrupt;
using autopar::training::Place;
using autopar::training::RunFolder;
using autopar::training::RunFolderOptions;
using autopar::training::Start;

/// Writes what it holds, and may die before that is done.
struct Model {
  std::string held{};
  bool dies = false;
  bool writes = true;  ///< ranks are threads here, and one writes
  std::string under_way{};

  Model* operator->() { return this; }
  void save(const std::string& folder) const {
    if (writes) autopar::write_text_file(folder + "/model", held);
    if (dies) throw std::runtime_error("killed");
    if (writes) autopar::write_text_file(folder + "/index.json", "{}");
  }
  void save(const std::string& folder, const std::vector<Model*>&, const autopar::SaveOptions& options) {
    wait();
    if (options.wait) return save(folder);
    under_way = folder;
  }
  void wait() {
    if (!under_way.empty()) save(under_way);
    under_way.clear();
  }
  void load(const std::string& folder) { held = autopar::read_text_file(folder + "/model"); }
};

TEST_CASE("RunFolder: goes on from the newest, keeps the last ones") {
  const TempFolder temp;
  const RunFolderOptions options{.path = temp / "run", .keep = 2, .settings = "{}"};
  autopar::loopback::run(1, [&](autopar::World& world) {
    RunFolder folder(world, options);
    Model model{"start"};
    CHECK(folder.load(model).step == 0);
    CHECK(model.held == "start");
    for (const std::int64_t step : {9, 10, 99'999'999, 100'000'000}) {
      model.held = "at " + std::to_string(step);
      folder.save({step, 1, 2}, model);
    }
    CHECK_FALSE(fs::exists(temp / "run/step-00000010"));
    CHECK(fs::exists(temp / "run/step-99999999"));
    CHECK(autopar::read_text_file(temp / "run/settings.json") == "{}");
    Model dying{"", true};
    CHECK_THROWS(folder.save({100'000'010, 0, 0}, dying));
    CHECK(fs::exists(temp / "run/step-100000010/place.json"));
    CHECK_NOTHROW(folder.save({100'000'000, 1, 2}, dying));  // is saved already
    fs::create_directories(temp / "run/step-100000020");     // what a killed save leaves
  });
  autopar::loopback::run(1, [&](autopar::World& world) {
    Model model;
    CHECK(RunFolder(world, options).load(model) == Place{100'000'000, 1, 2});
    CHECK(model.held == "at 100000000");
  });
}

TEST_CASE("RunFolder: in the background the older ones stay until the newest is complete") {
  const TempFolder temp;
  const RunFolderOptions options{.path = temp / "run", .keep = 1, .wait = false};
  autopar::loopback::run(1, [&](autopar::World& world) {
    RunFolder folder(world, options);
    Model model{"held"};
    folder.save({1}, model);
    folder.save({2}, model);
    CHECK(fs::exists(temp / "run/step-00000001/index.json"));
    CHECK_FALSE(fs::exists(temp / "run/step-00000002/index.json"));
  });
  autopar::loopback::run(1, [&](autopar::World& world) {  // the second was killed within it
    RunFolder folder(world, options);
    Model model{"held"};
    CHECK(folder.load(model).step == 1);
    folder.save({3}, model);
    CHECK(fs::exists(temp / "run/step-00000001/index.json"));
    CHECK_FALSE(fs::exists(temp / "run/step-00000002"));
    folder.finish(model);
    CHECK_FALSE(fs::exists(temp / "run/step-00000001"));
    CHECK(fs::exists(temp / "run/step-00000003/index.json"));
  });
}

TEST_CASE("RunFolder: the place is read back as it was") {
  const TempFolder temp;
  const autopar::training::TimeSpent spent{100.5, 1, 2, 3, 4, 5, 1.7e9, true};
  const Place place{7, 1, 2, {96, 3}, spent};
  autopar::loopback::run(1, [&](autopar::World& world) {
    Model model;
    RunFolder(world, {.path = temp / "run"}).save(place, model);
    CHECK(RunFolder(world, {.path = temp / "run"}).load(model) == place);
    autopar::write_text_file(temp / "run/step-00000007/place.json", R"({"step": 7, "epoch": 1, "taken": 2})");
    CHECK(RunFolder(world, {.path = temp / "run"}).load(model) == Place{7, 1, 2});  // of version 0.1
  });
}

TEST_CASE("RunFolder: what Start refuses is refused on all ranks") {
  const TempFolder temp;
  const auto refused = [&](const RunFolderOptions& options) {
    std::array<std::string, 2> said;
    autopar::loopback::run(2, [&](autopar::World& world) {
      try {
        Model model{"", false, world.rank() == 0};
        RunFolder(world, options).save({1, 0, 0}, model);
      } catch (const autopar::InvalidArgument& error) {
        said[static_cast<std::size_t>(world.rank())] = error.what();
      }
    });
    CHECK(said[0] == said[1]);
    return said[0];
  };
  RunFolderOptions options{.path = temp / "run", .start = Start::kResume};
  CHECK_THAT(refused(options), Catch::Matchers::Contains("no complete checkpoint in"));
  options.keep = 0;
  CHECK_THAT(refused(options), Catch::Matchers::Contains("keep = 0"));
  options.keep = 1;
  options.start = Start::kNew;
  CHECK(refused(options).empty());
  CHECK_THAT(refused(options), Catch::Matchers::Contains("has an earlier run"));
  options.start = Start::kNewOrResume;
  for (const auto* damaged :
       {"", "{", "[1]", "{}", R"({"step": -1, "epoch": 0, "taken": 0})", R"({"step": "1", "epoch": 0, "taken": 0})",
        R"({"step": 18446744073709551615, "epoch": 0, "taken": 0})", R"({"step": 1e400, "epoch": 0, "taken": 0})",
        R"({"step": 1, "epoch": 0, "taken": 0, "samples": 4})",
        R"({"step": 1, "epoch": 0, "taken": 0, "samples": "4", "ranks": 1})",
        R"({"step": 1, "epoch": 0, "taken": 0, "spent": 1})", R"({"step": 1, "epoch": 0, "taken": 0, "spent": {}})"}) {
    autopar::write_text_file(temp / "run/step-00000001/place.json", damaged);
    CHECK_THAT(refused(options), Catch::Matchers::Contains("place.json is damaged"));
  }
}

TEST_CASE("RunFolder: without a folder nothing is saved") {
  autopar::loopback::run(1, [&](autopar::World& world) {
    RunFolder folder(world, {});
    Model dying{"", true};
    CHECK_NOTHROW(folder.save({1, 0, 0}, dying));
    CHECK(folder.save_best({1}, "top1", 2, dying));
    CHECK_FALSE(folder.save_best({2}, "top1", 1, dying));
    CHECK_FALSE(folder.is_kept());
  });
}

TEST_CASE("RunFolder: the best weights stay, also over starts") {
  const TempFolder temp;
  const RunFolderOptions options{.path = temp / "run"};
  const auto best = [&] { return autopar::read_text_file(temp / "run/best/model"); };
  autopar::loopback::run(2, [&](autopar::World& world) {
    RunFolder folder(world, options);
    const bool is_first = world.rank() == 0;
    const auto offer = [&](double value, const std::string& held) {
      Model model{held, false, is_first};
      // Rank 0 decides, whatever others computed.
      return folder.save_best({1}, "loss", is_first ? value : 1 - value, model, Better::kLower);
    };
    CHECK(offer(0.5, "first"));
    CHECK_FALSE(offer(std::nan(""), "nan"));
    CHECK_FALSE(offer(0.5, "as good"));
    CHECK(offer(0.25, "second"));
    Model model{"checkpoint", false, is_first};
    if (is_first) CHECK(autopar::read_text_file(temp / "run/best/best.json").find("0.25") != std::string::npos);
    folder.save({1}, model);
  });
  autopar::loopback::run(1, [&](autopar::World& world) {
    RunFolder folder(world, options);
    Model model{"third"};
    CHECK_FALSE(folder.save_best({2}, "loss", 0.3, model, Better::kLower));
    CHECK_THROWS_WITH(folder.save_best({2}, "top1", 0.3, model), Catch::Matchers::Contains("by 'loss', not by 'top1'"));
    CHECK(folder.save_best({2}, "loss", 0.2, model, Better::kLower));
    CHECK(best() == "third");
  });
  for (const auto* damaged : {"", "7", R"({"metric": "loss"})", R"({"metric": 1, "value": 1})"}) {
    autopar::write_text_file(temp / "run/best/best.json", damaged);
    autopar::loopback::run(1, [&](autopar::World& world) {
      CHECK_THROWS_WITH(RunFolder(world, options), Catch::Matchers::Contains("best.json is damaged"));
    });
  }
}

TEST_CASE("Interrupt: a signal ends after the step, status tells which") {
  autopar::loopback::run(2, [](autopar::World& world) {
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
      {
        Interrupt interrupt(world);
        world.barrier();
        CHECK_FALSE(interrupt.is_asked());
        CHECK(interrupt.exit_status() == 0);
        world.barrier();
        if (world.rank() == 0) std::raise(signal);
        CHECK(interrupt.is_asked());
        CHECK(interrupt.exit_status() == 128 + signal);
      }
      world.barrier();  // all have left
    }
  });
}

TEST_CASE("Interrupt: one rank asks, all end, without a status") {
  autopar::loopback::run(2, [](autopar::World& world) {
    Interrupt interrupt(world);
    if (world.rank() == 1) interrupt.ask();
    CHECK(interrupt.is_asked());
    CHECK(interrupt.exit_status() == 0);
  });
}

extern "C" void do_nothing(int) {}

TEST_CASE("Interrupt: earlier handlers come back") {
  std::signal(SIGUSR1, do_nothing);
  autopar::loopback::run(1, [](autopar::World& world) { const Interrupt interrupt(world); });
  CHECK(std::signal(SIGUSR1, SIG_DFL) == do_nothing);
}

}  // namespace run_folder_test
