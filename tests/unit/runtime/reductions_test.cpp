#include <autopar/runtime/reductions.hpp>

#include <utility>
#include <vector>

#include <catch_shim.hpp>

#include "recording.hpp"

namespace reductions_test {

using namespace autopar;
using testing::Events;

Action backward(int microbatch, int stage = 0) {
  return {.kind = ActionKind::kBackward,
          .stage = StageId(stage),
          .microbatch = microbatch,
          .flow = Flow::kGradient,
          .samples = {0, 1}};
}
Action sum(int bucket, int group = 0, StageId stage = StageId(0)) {
  return {.kind = ActionKind::kAllReduce, .stage = stage, .flow = Flow::kGradient, .group = group, .bucket = bucket};
}
Action share(int bucket, int microbatch, int after = 0) {
  return {.kind = ActionKind::kReduceScatter,
          .stage = StageId(0),
          .microbatch = microbatch,
          .flow = Flow::kGradient,
          .group = bucket,
          .bucket = 0,
          .after = after};
}
Action send() {
  return {.kind = ActionKind::kSend,
          .stage = StageId(0),
          .microbatch = 0,
          .channel = 0,
          .flow = Flow::kGradient,
          .peer = Rank(1)};
}

/// Reductions of a program, and what they did.
struct Fixture : testing::RecordedRun {
  using RecordedRun::RecordedRun;

  void begin(std::size_t action) {
    progress.reach(actions[action]);
    reductions.begin_compute(actions[action]);
  }
  void fill(int group, int bucket) {
    reductions.fill(group, bucket);
    while (reductions.startable() != nullptr) reductions.start_next();
  }

  std::vector<GroupId> groups{{0}, {1}, {2}, {3}};
  std::vector<GroupId> no_tensor_groups;
  detail::Exchanges<testing::RecordingWire> exchanges{wire, no_tensor_groups};
  detail::Reductions<testing::RecordingEngine, testing::RecordingWire> reductions{engine,  wire,      groups,
                                                                                  actions, exchanges, progress};
};

TEST_CASE("Reductions: start in program order, not by full bucket") {
  Fixture f({backward(0), sum(0), sum(1), sum(0, 1)});
  f.begin(0);
  f.fill(1, 0);
  f.fill(0, 1);
  CHECK(f.take().empty());
  f.fill(0, 0);
  CHECK(f.take() == Events{"all-reduce 0", "all-reduce 0", "all-reduce 1"});
}

TEST_CASE("Reductions: a bucket waits for all its stage's backwards") {
  Fixture f({backward(0, 1), sum(0, 0, StageId(1)), backward(0), backward(1), sum(0, 1), sum(0, 2, StageId::none())});
  f.begin(0);
  f.fill(0, 0);
  CHECK(f.take() == Events{"all-reduce 0"});
  f.begin(2);
  f.fill(1, 0);
  CHECK(f.take().empty());
  f.begin(3);
  f.fill(2, 0);
  f.fill(1, 0);
  CHECK(f.take() == Events{"all-reduce 1", "all-reduce 2"});
}

TEST_CASE("Reductions: in-order transports start after prior messages") {
  for (const bool in_order : {false, true}) {
    Fixture f({backward(0), send(), sum(0)}, in_order);
    f.begin(0);
    f.fill(0, 0);
    CHECK(f.take().empty() == in_order);
    f.progress.reach(f.actions[2]);
    f.fill(0, 0);
    CHECK(f.take().empty() != in_order);
  }
}

TEST_CASE("Reductions: program order holds within one group alone") {
  Fixture f({backward(0), sum(0), sum(1), sum(0, 1)});
  f.begin(0);
  f.fill(1, 0);
  f.fill(0, 1);
  f.fill(0, 0);
  f.take();
  f.wire.end(1);
  f.wire.end(2);
  f.reductions.settle();
  CHECK(f.take() == Events{"wait 2", "reduced 0"});  // bucket 1 of group 0 waits for bucket 0
  f.reductions.finish();
  CHECK(f.take() == Events{"wait 0", "reduced 0", "wait 1", "reduced 1"});
}

TEST_CASE("Reductions: in parts, exchanges follow each other at one place") {
  for (const bool in_order : {false, true}) {
    Fixture f({backward(0), send(), sum(0), sum(1)}, in_order);
    f.engine.in_parts = true;
    f.begin(0);
    f.fill(0, 0);
    f.fill(0, 1);
    CHECK(f.take().empty());  // the message has not been issued
    f.progress.reach(f.actions[2]);
    f.fill(0, 0);
    CHECK(f.take() == Events{"sum parts 0", "all-to-all 0", "wait 0", "all-gather 0", "wait 1",  //
                             "sum parts 1", "all-to-all 0", "wait 2", "all-gather 0", "wait 3"});
    f.reductions.finish();
    CHECK(f.take() == Events{"reduced 0", "reduced 1"});  // all has ended, and is not waited for again
  }
}

TEST_CASE("Reductions: within an action one overlaps the next bucket") {
  Fixture f({backward(0), share(0, 0), share(1, 0), share(2, 0)});
  f.begin(0);
  f.fill(0, 0);
  CHECK(f.take() == Events{"reduce-scatter 0"});
  f.fill(1, 0);
  CHECK(f.take() == Events{"reduce-scatter 1", "wait 0", "reduced 0"});
  f.fill(2, 0);
  CHECK(f.take() == Events{"reduce-scatter 2", "wait 1", "reduced 0"});
}

TEST_CASE("Reductions: one within an action belongs to its backward") {
  Fixture f({backward(0), share(0, 0), backward(1), share(0, 1)});
  f.begin(0);
  f.fill(0, 0);
  CHECK(f.take() == Events{"reduce-scatter 0"});
  f.fill(0, 0);
  CHECK(f.take().empty());
  f.begin(2);
  f.fill(0, 0);
  CHECK(f.take().front() == "reduce-scatter 0");
}

TEST_CASE("Reductions: a gathering action's next needs no full bucket") {
  Fixture f({backward(0), share(0, 0, 1), share(1, 0, 3)}, true);
  f.begin(0);
  f.reductions.begin_gathering_compute(2);
  for (const int after : {1, 3}) {
    REQUIRE(f.reductions.next_of_compute() != nullptr);
    CHECK(f.reductions.next_of_compute()->after == after);
    CHECK(f.reductions.startable() == nullptr);
    f.reductions.fill_next_of_compute();
    REQUIRE(f.reductions.startable() != nullptr);
    f.reductions.start_next();
  }
  CHECK(f.reductions.next_of_compute() == nullptr);
  f.reductions.end_gathering_compute();
}

TEST_CASE("Reductions: an error names the reduction, then the action") {
  Fixture f({backward(0), sum(0)});
  f.begin(0);
  f.fill(0, 0);
  f.reductions.finish();
  CHECK(f.progress.busy_with() == &f.actions[0]);
}

TEST_CASE("Reductions: after a failure pending ones are only waited for") {
  Fixture f({backward(0), sum(0), sum(1), sum(0, 1)});
  f.begin(0);
  f.fill(0, 0);
  f.fill(0, 1);
  f.take();
  f.reductions.drain();
  CHECK(f.take() == Events{"wait 0", "wait 1"});
}

}  // namespace reductions_test
