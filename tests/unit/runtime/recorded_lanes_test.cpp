#include "recorded_lanes.hpp"

#include <catch_shim.hpp>

#include <array>
#include <random>
#include <vector>

using namespace autopar;
using detail::RecordedLanes;
using namespace std::chrono_literals;

namespace {

/// A device that writes what a recording tells it to.
struct Device {
  void write(const RecordedLanes::Mark& mark) { words.at(mark.word) = mark.value; }
  std::array<std::uint32_t, 8> words{};
};

const RecordedLanes::Clock::time_point kStart = RecordedLanes::Clock::now();

}  // namespace

TEST_CASE("recorded lanes: what has begun and not ended waits, since it was seen") {
  RecordedLanes lanes;
  Device device;
  const int sums = 0, messages = 0;
  const auto sum_begins = lanes.begin(&sums, "sum", Rank::none()), sum_ends = lanes.end(&sums);
  const auto receives = lanes.begin(&messages, "receive", Rank(1)), received = lanes.end(&messages);
  const auto sends = lanes.begin(&messages, "send", Rank(2)), sent = lanes.end(&messages);
  const auto waiting = [&](std::chrono::milliseconds at) { return lanes.longest_waiting(device.words, kStart + at); };
  CHECK_FALSE(waiting(0ms));
  device.write(receives);
  REQUIRE(waiting(10ms));
  CHECK(waiting(10ms)->age == Seconds(0));
  CHECK(waiting(1010ms)->action == "receive");
  CHECK(waiting(1010ms)->age.value() == Approx(1));
  device.write(sum_begins);
  CHECK(waiting(2010ms)->action == "receive");  // the sum is seen only now
  device.write(received);
  CHECK(waiting(3010ms)->action == "sum");
  CHECK(waiting(3010ms)->age.value() == Approx(1));
  CHECK_FALSE(waiting(3010ms)->peer.valid());
  device.write(sum_ends);
  device.write(sends);
  CHECK(waiting(3020ms)->action == "send");
  CHECK(waiting(3020ms)->peer == Rank(2));
  device.write(sent);
  CHECK_FALSE(waiting(9000ms));
}

TEST_CASE("recorded lanes: another run counts anew, from the words of the last") {
  RecordedLanes lanes;
  Device device;
  const int queue = 0;
  const auto begins = lanes.begin(&queue, "sum", Rank::none()), ends = lanes.end(&queue);
  device.write(begins);
  static_cast<void>(lanes.longest_waiting(device.words, kStart));
  CHECK(lanes.longest_waiting(device.words, kStart + 5s)->age.value() == Approx(5));
  device.write(ends);
  lanes.restart();
  CHECK_FALSE(lanes.longest_waiting(device.words, kStart + 6s));
  device.write(begins);  // the same word as in the last run
  CHECK(lanes.longest_waiting(device.words, kStart + 7s)->age == Seconds(0));
  lanes.restart();
  CHECK(lanes.longest_waiting(device.words, kStart + 20s)->age == Seconds(0));
}

TEST_CASE("recorded lanes: random runs name what really waits longest") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::minstd_rand random(seed + 1);
    RecordedLanes lanes;
    Device device;
    const std::array<int, 3> queues{};
    std::vector<std::vector<RecordedLanes::Mark>> marks(queues.size());
    for (int i = 0; i < 12; ++i) {
      const auto q = random() % queues.size();
      marks[q].push_back(lanes.begin(&queues[q], std::to_string(i), Rank::none()));
      marks[q].push_back(lanes.end(&queues[q]));
    }
    std::vector<std::size_t> at(queues.size(), 0);
    std::vector<std::optional<int>> since(queues.size());  // milliseconds
    for (int time = 0; time < 40; ++time) {
      const auto q = random() % queues.size();
      if (at[q] < marks[q].size()) {
        device.write(marks[q][at[q]]);
        since[q] = at[q] % 2 == 0 ? std::optional(time) : std::nullopt;
        ++at[q];
      }
      std::optional<int> oldest;
      for (const auto& each : since) {
        if (each && (!oldest || *each < *oldest)) oldest = each;
      }
      const auto waiting = lanes.longest_waiting(device.words, kStart + std::chrono::milliseconds(time));
      REQUIRE(waiting.has_value() == oldest.has_value());
      if (waiting) CHECK(waiting->age.value() == Approx((time - *oldest) * 1e-3).margin(1e-9));
    }
  }
}
