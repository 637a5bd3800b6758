#include "recorded_progress.hpp"

#include <catch_shim.hpp>

#include <random>
#include <vector>

using namespace autopar;
using detail::RecordedProgress;
using namespace std::chrono_literals;

namespace {

const RecordedProgress::Clock::time_point kStart = RecordedProgress::Clock::now();

}  // namespace

TEST_CASE("recorded progress: what has begun and not ended waits, since it was seen") {
  RecordedProgress progress;
  const auto receives = progress.begin("receive", Rank(1)), received = progress.end();
  const auto sum_begins = progress.begin("sum", Rank::none()), sum_ends = progress.end();
  const auto waiting = [&](std::uint32_t word, std::chrono::milliseconds at) {
    return progress.waiting(word, kStart + at);
  };
  CHECK_FALSE(waiting(0, 0ms));
  REQUIRE(waiting(receives, 10ms));
  CHECK(waiting(receives, 10ms)->age == Seconds(0));
  CHECK(waiting(receives, 1010ms)->action == "receive");
  CHECK(waiting(receives, 1010ms)->peer == Rank(1));
  CHECK(waiting(receives, 1010ms)->age.value() == Approx(1));
  CHECK_FALSE(waiting(received, 2010ms));
  CHECK(waiting(sum_begins, 3010ms)->action == "sum");
  CHECK(waiting(sum_begins, 4010ms)->age.value() == Approx(1));
  CHECK_FALSE(waiting(sum_begins, 4010ms)->peer.valid());
  CHECK_FALSE(waiting(sum_ends, 9000ms));
}

TEST_CASE("recorded progress: another run counts anew, from the word of the last") {
  RecordedProgress progress;
  const auto begins = progress.begin("sum", Rank::none()), ends = progress.end();
  static_cast<void>(progress.waiting(begins, kStart));
  CHECK(progress.waiting(begins, kStart + 5s)->age.value() == Approx(5));
  progress.restart();
  CHECK_FALSE(progress.waiting(ends, kStart + 6s));
  CHECK(progress.waiting(begins, kStart + 7s)->age == Seconds(0));  // the same word as in the last run
  progress.restart();
  CHECK(progress.waiting(begins, kStart + 20s)->age == Seconds(0));
}

TEST_CASE("recorded progress: random runs name what waits, and how long") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::minstd_rand random(seed + 1);
    RecordedProgress progress;
    std::vector<std::uint32_t> writes;
    for (int i = 0; i < 12; ++i) {
      writes.push_back(progress.begin(std::to_string(i), Rank::none()));
      writes.push_back(progress.end());
    }
    std::size_t written = 0;
    int since = 0;  // milliseconds
    for (int time = 0; time < 40; ++time) {
      if (written < writes.size() && random() % 2 == 0) {
        ++written;
        since = time;
      }
      const auto word = written == 0 ? 0 : writes[written - 1];
      const auto waiting = progress.waiting(word, kStart + std::chrono::milliseconds(time));
      REQUIRE(waiting.has_value() == (written % 2 == 1));
      if (!waiting) continue;
      CHECK(waiting->action == std::to_string(written / 2));
      CHECK(waiting->age.value() == Approx((time - since) * 1e-3).margin(1e-9));
    }
  }
}
