#include <autopar/runtime/one_caller.hpp>

#include <catch_shim.hpp>
#include <refusal.hpp>

#include <optional>
#include <string>
#include <thread>

#include <autopar/runtime/world.hpp>

using namespace autopar;

namespace one_caller_test {

/// What another thread is refused with.
template <class Work>
std::string refused_elsewhere(const Work& work) {
  std::string text;
  std::thread([&] { text = refusal(work); }).join();
  return text;
}

TEST_CASE("OneCaller: another thread is refused while one is inside") {
  OneCaller caller;
  const auto tries = [&] { static_cast<void>(caller.enter("save")); };
  std::optional<OneCaller::Inside> outer(caller.enter("forward"));
  {
    const auto inner = caller.enter("gather");  // the same thread
    const auto text = refused_elsewhere(tries);
    CAPTURE(text);
    CHECK(contains(text, "'save' was called while another thread of this rank is in 'forward'"));
    CHECK(contains(text, "calls must come from one thread"));
  }
  CHECK_FALSE(refused_elsewhere(tries).empty());
  const auto moved = std::move(*outer);
  outer.reset();
  CHECK_FALSE(refused_elsewhere(tries).empty());
}

TEST_CASE("OneCaller: the calling thread may change") {
  OneCaller caller;
  static_cast<void>(caller.enter("forward"));
  CHECK(refused_elsewhere([&] { static_cast<void>(caller.enter("save")); }).empty());
  static_cast<void>(caller.enter("forward"));
}

TEST_CASE("OneCaller: guards a World's collectives and its views'") {
  World world(0, nullptr);
  World view = world.view();
  std::optional<OneCaller::Inside> inside(world.enter("forward"));
  std::vector<double> sums(2);
  const auto text = "another thread of this rank is in 'forward'";
  CHECK(contains(refused_elsewhere([&] { view.barrier("other"); }), text));
  CHECK(contains(refused_elsewhere([&] { static_cast<void>(world.broadcast({}, Rank(0), "other")); }), text));
  CHECK(contains(refused_elsewhere([&] { view.all_reduce_sum(std::span(sums), "other"); }), text));
  CHECK(contains(refused_elsewhere([&] { static_cast<void>(world.make_transport()); }), text));
  CHECK(refused_elsewhere([] {
          World alone(0, nullptr);
          alone.barrier();
        }).empty());
  world.barrier();
  inside.reset();
  CHECK(refused_elsewhere([&] { view.barrier("other"); }).empty());
}

}  // namespace one_caller_test
