#include <autopar/training/goodput.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include <autopar/io/wall_clock.hpp>
#include <autopar/runtime/loopback.hpp>

#include "catch_shim.hpp"

namespace goodput_test {

using autopar::Seconds;
using autopar::training::Goodput;
using autopar::training::TimeSpent;

void pass(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

TEST_CASE("TimeSpent: shares in words and figures") {
  const TimeSpent spent{7800, 78, 31.2, 234, 0, 156};
  CHECK(spent.useful() == Approx(7300.8));
  CHECK(to_text(spent, "rank 2 on node7") ==
        "goodput 93.6 % of 2 h 10 min; planning 1.0 %, saving 0.4 %, restarting 3.0 %, waiting 2.0 % for rank 2 on "
        "node7");
  const auto figures = figures_of(spent);
  REQUIRE(figures.size() == 6);
  CHECK(figures.front().first == "goodput");
  CHECK(figures.front().second == Approx(0.936));
  CHECK(figures.back().first == "time_waiting");
  CHECK(figures.back().second == Approx(0.02));
  CHECK(to_text(TimeSpent{}, "") == "goodput 0.0 % of 0.0 s");
  CHECK(TimeSpent{1, 2}.useful() == 0);  // clocks differ a little
}

TEST_CASE("Goodput: the slowest rank is named, and others' waits are time of the run") {
  constexpr double kSlow = 0.2;
  autopar::loopback::run(3, [&](autopar::World& world) {
    Goodput goodput(world, {});
    for (int step = 0; step < 4; ++step) {
      if (world.rank() == 1) pass(kSlow);
      world.barrier();
      goodput.end_step();
    }
    {
      const Goodput::Saving saving(goodput);
      pass(kSlow);
    }
    const auto spent = goodput.spent(Seconds(0.125), Seconds(0.0625));
    CHECK(spent.planning == Approx(0.125));
    CHECK(spent.data == Approx(0.0625));
    CHECK(spent.saving >= kSlow);
    CHECK(spent.waiting >= 0.9 * 3 * kSlow * 2 / 3);  // two of three ranks waited
    CHECK(spent.total >= 0.9 * 5 * kSlow);
    CHECK(spent.restarting == 0);
    CHECK_THAT(goodput.text_of(spent), Catch::Matchers::Contains(" for rank 1 on "));
    CHECK(goodput.figures_of(spent).back() == std::pair<std::string, double>("slowest_rank", 1));
  });
}

TEST_CASE("Goodput: waits within the first step and within saves are not for a slow rank") {
  constexpr double kSlow = 1;
  autopar::loopback::run(2, [&](autopar::World& world) {
    Goodput goodput(world, {});
    CHECK_FALSE(goodput.has_steps());
    if (world.rank() == 0) pass(kSlow);
    world.barrier();
    goodput.end_step();
    CHECK(goodput.has_steps());
    {
      const Goodput::Saving saving(goodput);
      if (world.rank() == 1) pass(kSlow);
      world.barrier();
    }
    CHECK(goodput.spent(Seconds(), Seconds()).waiting < kSlow / 2);
  });
}

TEST_CASE("Goodput: the time since a fault counts, a pause does not") {
  autopar::loopback::run(1, [](autopar::World& world) {
    TimeSpent before{1000, 10, 20, 30, 40, 50, autopar::seconds_since_1970() - 100, false};
    const auto after_fault = Goodput(world, before).spent(Seconds(1), Seconds(2));
    CHECK(after_fault.restarting == Approx(130).margin(5));
    CHECK(after_fault.total == Approx(1100).margin(5));
    CHECK(after_fault.planning == Approx(11));
    CHECK(after_fault.data == Approx(42));
    CHECK(after_fault.saving == 20);
    CHECK(after_fault.waiting == Approx(50).margin(0.01));
    before.has_ended = true;
    const auto after_pause = Goodput(world, before).spent(Seconds(), Seconds());
    CHECK(after_pause.restarting == 30);
    CHECK(after_pause.total == Approx(1000).margin(5));
    CHECK_FALSE(after_pause.has_ended);
    before.until += 1e6;  // a clock that was set back
    before.has_ended = false;
    CHECK(Goodput(world, before).spent(Seconds(), Seconds()).restarting == 30);
  });
}

}  // namespace goodput_test
