#include <autopar/io/step_page.hpp>

#include <catch_shim.hpp>
#include <refusal.hpp>
#include <temp_folder.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

using namespace autopar;

TEST_CASE("StepPage: says the latest step, also to a later process") {
  const TempFolder folder;
  const auto file = folder / "step";
  CHECK_FALSE(step_reached(file));
  {
    StepPage page(file);
    CHECK_FALSE(step_reached(file));
    page.reach({7, 1.5e9});
    CHECK(step_reached(file) == StepReached{7, 1.5e9});
    page.reach({8, 1.5e9 + 0.25});
  }
  StepPage again(file);
  CHECK(step_reached(file) == StepReached{8, 1.5e9 + 0.25});
  again.reach({3, 1.6e9});  // it went on from a checkpoint
  CHECK(step_reached(file) == StepReached{3, 1.6e9});
}

TEST_CASE("StepPage: damaged files say nothing, other things are refused") {
  const TempFolder folder;
  const auto file = folder / "step";
  StepPage(file).reach({5, 1e9});
  std::ifstream whole(file, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(whole)), {});
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    std::ofstream(file, std::ios::binary) << damaged;
    CAPTURE(i);
    CHECK_FALSE(step_reached(file));
  }
  std::ofstream(file, std::ios::binary) << bytes.substr(0, bytes.size() - 1);
  CHECK_FALSE(step_reached(file));
  CHECK_FALSE(step_reached(folder / ""));
  CHECK(contains(refusal([&] { StepPage page(folder / ""); }), (folder / "").string()));
  CHECK(contains(refusal([&] { StepPage page(folder / "none/step"); }), "No such file"));
}
