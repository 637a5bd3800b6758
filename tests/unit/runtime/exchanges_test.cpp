#include <autopar/runtime/exchanges.hpp>

#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include <catch_shim.hpp>

#include <autopar/core/error.hpp>

#include "recording.hpp"

namespace exchanges_test {

using namespace autopar;
using testing::Events;

/// A stage with tensor shards, in group 3.
struct Fixture : testing::RecordedRun {
  Fixture() : RecordedRun({{.kind = ActionKind::kBackward, .stage = StageId(0), .microbatch = 0}}) {}

  void run(const std::function<void()>& meanwhile = {}, const Buffer& buffer = {}) {
    exchanges.run(actions.front(), Exchange::kAllReduce, buffer, DType::kF32, meanwhile);
  }

  std::vector<GroupId> groups{{3}};
  detail::Exchanges<testing::RecordingWire> exchanges{wire, groups};
};

TEST_CASE("Exchanges: overlapped work runs between start and wait") {
  Fixture f;
  f.run([&] { f.events.emplace_back("meanwhile"); });
  f.run();
  CHECK(f.take() == Events{"all-reduce 3", "meanwhile", "wait 0", "all-reduce 3", "wait 1"});
}

TEST_CASE("Exchanges: a failed run keeps its memory until completion") {
  Fixture f;
  auto owner = std::make_shared<int>();
  const std::weak_ptr<int> memory = owner;
  CHECK_THROWS_AS(f.run([] { throw std::runtime_error("scripted failure"); }, Buffer{nullptr, 0, std::move(owner)}),
                  std::runtime_error);
  CHECK(f.take() == Events{"all-reduce 3"});
  CHECK_FALSE(memory.expired());
  f.exchanges.drain();
  CHECK(f.take() == Events{"wait 0"});
  CHECK(memory.expired());
}

TEST_CASE("Exchanges: overlapped work starts no other exchange") {
  Fixture f;
  CHECK_THROWS_AS(f.run([&] { f.run(); }), InvalidArgument);
  CHECK(f.take() == Events{"all-reduce 3"});
}

}  // namespace exchanges_test
