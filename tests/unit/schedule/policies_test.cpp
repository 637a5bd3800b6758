#include <algorithm>

#include <autopar/schedule/concepts.hpp>
#include <autopar/schedule/gpipe.hpp>
#include <autopar/schedule/one_f_one_b.hpp>

#include <catch_shim.hpp>

using namespace autopar;

namespace {

constexpr auto kF = ActionKind::kForward;
constexpr auto kB = ActionKind::kBackward;

struct NoTag {
  std::vector<ComputeAction> order(StageId, int, int) const { return {}; }
  int peak_activations(StageId, int, int) const { return 0; }
};
static_assert(!SchedulePolicy<NoTag>);

template <SchedulePolicy Policy>
void check_laws(const Policy& policy) {
  for (int stages = 1; stages <= 6; ++stages) {
    for (int microbatches = 1; microbatches <= 8; ++microbatches) {
      for (int s = 0; s < stages; ++s) {
        const auto computes = policy.order(StageId(s), stages, microbatches);
        REQUIRE(computes.size() == 2 * static_cast<std::size_t>(microbatches));
        int held = 0, peak = 0;
        for (const ComputeAction compute : computes) {
          held += compute.kind == kF ? 1 : -1;
          peak = std::max(peak, held);
        }
        REQUIRE(peak == policy.peak_activations(StageId(s), stages, microbatches));
        for (int m = 0; m < microbatches; ++m) {
          const auto forward = std::find(computes.begin(), computes.end(), ComputeAction{kF, m});
          REQUIRE(std::count(computes.begin(), computes.end(), ComputeAction{kF, m}) == 1);
          REQUIRE(std::count(computes.begin(), computes.end(), ComputeAction{kB, m}) == 1);
          REQUIRE(forward < std::find(computes.begin(), computes.end(), ComputeAction{kB, m}));
        }
      }
    }
  }
  REQUIRE_THROWS_AS(policy.order(StageId(2), 2, 1), InvalidArgument);
  REQUIRE_THROWS_AS(policy.order(StageId(0), 1, 0), InvalidArgument);
}

}  // namespace

TEST_CASE("GPipe runs all forwards, then all backwards", "[schedule]") {
  check_laws(GPipe{});
  CHECK(GPipe{}.order(StageId(0), 2, 2) == std::vector<ComputeAction>{{kF, 0}, {kF, 1}, {kB, 0}, {kB, 1}});
}

TEST_CASE("1F1B alternates once warm and holds no more micro-batches than stages to the end", "[schedule]") {
  check_laws(OneFOneB{});
  CHECK(OneFOneB{}.order(StageId(0), 2, 3) ==
        std::vector<ComputeAction>{{kF, 0}, {kF, 1}, {kB, 0}, {kF, 2}, {kB, 1}, {kB, 2}});
  CHECK(OneFOneB{}.order(StageId(1), 2, 2) == std::vector<ComputeAction>{{kF, 0}, {kB, 0}, {kF, 1}, {kB, 1}});
  CHECK(OneFOneB{}.peak_activations(StageId(1), 4, 8) == 3);
}
