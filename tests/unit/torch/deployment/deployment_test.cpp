#include "torch/deployment/deployment.hpp"

#include <mutex>
#include <vector>

#include <autopar/runtime/loopback.hpp>
#include <catch_shim.hpp>

namespace deployment_test {

using namespace autopar;

TEST_CASE("Deployment: groups of equal ranks are created once") {
  std::mutex mutex;
  loopback::run(3, [&](World& world) {
    ranks::WorldRanks ranks(world);
    deployment::Deployment deployment(ranks, [&](const TransportOptions& how) { return world.make_transport(how); });
    deployment.start();
    const std::vector<Rank> pair{Rank(0), Rank(2)};
    const auto first = deployment.group_of(pair), again = deployment.group_of(pair);
    const auto gather = deployment.gather_group_of(pair);
    const auto alone = deployment.group_of({Rank(1)});
    const auto number = deployment.groups().size();

    const std::lock_guard lock(mutex);
    CHECK(first == again);
    CHECK_FALSE(gather == first);
    CHECK(deployment.gather_group_of(pair) == gather);
    CHECK(alone == GroupId{});
    CHECK(number == 2);  // everyone and the pair
  });
}

TEST_CASE("Deployment: sums over all ranks or a subset") {
  std::mutex mutex;
  loopback::run(3, [&](World& world) {
    ranks::WorldRanks ranks(world);
    deployment::Deployment deployment(ranks, [&](const TransportOptions& how) { return world.make_transport(how); });
    deployment.start();
    const auto mine = at::full({}, world.rank() + 1.0, at::kDouble);
    const double all = deployment.sums().sum({mine})[0].item<double>();
    auto of_pair = deployment.sums_over({Rank(0), Rank(2)});
    const double pair = world.rank() == 1 ? 4 : of_pair.sum({mine})[0].item<double>();
    const double own = deployment.sums_over({world.rank_id()}).sum({mine})[0].item<double>();

    const std::lock_guard lock(mutex);
    CHECK(all == 6);
    CHECK(pair == 4);
    CHECK(own == world.rank() + 1);
  });
}

TEST_CASE("Deployment: has a plan once adopted") {
  loopback::run(1, [&](World& world) {
    ranks::WorldRanks ranks(world);
    deployment::Deployment deployment(ranks, [&](const TransportOptions& how) { return world.make_transport(how); });
    CHECK_FALSE(deployment.has_plan());
    Plan plan;
    plan.microbatches = 3;
    deployment.adopt(plan);
    REQUIRE(deployment.has_plan());
    CHECK(deployment.plan().microbatches == 3);
    CHECK(deployment.device().is_cpu());
  });
}

}  // namespace deployment_test
