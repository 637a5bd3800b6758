#include "torch/ranks/collective_try.hpp"

#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/runtime/loopback.hpp>

#include <catch_shim.hpp>
#include <one_rank.hpp>

namespace {
namespace collective_try_test {

using namespace autopar;

/// What each of three ranks catches when rank 1 alone throws.
std::vector<std::string> caught_by_each(const std::function<void()>& thrown,
                                        const std::function<std::string(const std::exception&)>& describe) {
  std::mutex mutex;
  std::vector<std::string> caught(3);
  loopback::run(3, [&](World& world) {
    std::string text = "nothing";
    try {
      ranks::collective_try(world, "testing", [&] {
        if (world.rank() == 1) thrown();
      });
    } catch (const std::exception& error) {
      text = describe(error);
    }
    ranks::collective_try(world, "going on", [] {});  // the World lives on
    const std::lock_guard lock(mutex);
    caught[world.rank_id().index()] = text;
  });
  return caught;
}

TEST_CASE("collective_try: what was asked fails alike on all ranks") {
  const auto argument = [](const std::exception& error) {
    const auto* own = dynamic_cast<const InvalidArgument*>(&error);
    return own == nullptr ? "another type" : std::string(own->what());
  };
  CHECK(caught_by_each([] { throw InvalidArgument("no such thing"); }, argument) ==
        std::vector<std::string>(3, "no such thing"));
  const auto operation = [](const std::exception& error) {
    const auto* own = dynamic_cast<const CaptureError*>(&error);
    return own == nullptr ? "another type" : own->op() + "|" + own->path() + "|" + own->reason();
  };
  CHECK(caught_by_each([] { throw CaptureError("aten::item", "head.weight", "reads a value"); }, operation) ==
        std::vector<std::string>(3, "aten::item|head.weight|reads a value"));
}

TEST_CASE("collective_try: InfeasiblePlan keeps all its fields") {
  const auto fields = [](const std::exception& error) {
    const auto* own = dynamic_cast<const InfeasiblePlan*>(&error);
    if (own == nullptr) return std::string("another type");
    return own->why().reason + "|" + std::to_string(own->stage().value()) + "|" +
           std::to_string(own->needed().value()) + "|" + std::to_string(own->available().value()) + "|" +
           own->remedy() + "|" + own->what();
  };
  CHECK(caught_by_each(
            [] {
              throw InfeasiblePlan({"too large", StageId(2), Bytes(30), Bytes(20), "use more"});
            },
            fields) == std::vector<std::string>(3, "too large|2|30|20|use more|too large; use more"));
  const auto without = caught_by_each([] { throw InfeasiblePlan({"no division"}); }, fields);
  CHECK(without == std::vector<std::string>(3, without.front()));
  CHECK(without.front().starts_with("no division|"));
  CHECK(without.front().ends_with("|no division"));
}

TEST_CASE("collective_try: other errors name the rank to its peers") {
  const auto described =
      caught_by_each([] { throw std::runtime_error("disk full"); },
                     [](const std::exception& error) {
                       const auto* peer = dynamic_cast<const TransportError*>(&error);
                       if (peer == nullptr) return std::string(error.what());
                       return "rank " + std::to_string(peer->peer().value()) + " in " + peer->action();
                     });
  CHECK(described == std::vector<std::string>{"rank 1 in testing", "disk full", "rank 1 in testing"});
}

TEST_CASE("collective_try: a rank alone throws its own error") {
  test::OneRank alone;
  CHECK_THROWS_AS(ranks::collective_try(alone, "testing", [] { throw InvalidArgument("x"); }), InvalidArgument);
  int runs = 0;
  ranks::collective_try(alone, "testing", [&] { ++runs; });
  CHECK(runs == 1);
}

}  // namespace collective_try_test
}  // namespace
