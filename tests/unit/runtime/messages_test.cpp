#include <autopar/runtime/messages.hpp>

#include <utility>
#include <vector>

#include <autopar/schedule/pipeline.hpp>

#include <catch_shim.hpp>

#include "recording.hpp"

namespace messages_test {

using namespace autopar;
using testing::Events;

Action forward(int microbatch) {
  return {.kind = ActionKind::kForward, .stage = StageId(0), .microbatch = microbatch, .samples = {0, 1}};
}
Action receive(int microbatch, StageId stage = StageId(0), Rank peer = Rank(1)) {
  return {.kind = ActionKind::kReceive, .stage = stage, .microbatch = microbatch, .channel = 0, .peer = peer};
}
Action send(int microbatch, Rank peer = Rank(1)) {
  return {.kind = ActionKind::kSend, .stage = StageId(0), .microbatch = microbatch, .channel = 0, .peer = peer};
}

/// Messages of a program, and what they did.
struct Fixture : testing::RecordedRun {
  using RecordedRun::RecordedRun;

  detail::Messages<testing::RecordingEngine, testing::RecordingWire> messages{engine, wire, actions, progress};
};

TEST_CASE("Messages: receives are posted ahead, readers wait for them") {
  Fixture f({receive(0), forward(0), receive(1), forward(1), receive(2), forward(2), receive(3), forward(3)});
  f.messages.post_ahead();
  CHECK(f.take() == Events{"receive 0", "receive 1", "receive 2"});  // forward 0's, and kReceivesAhead more
  f.messages.receive(f.actions[0]);
  CHECK(f.take().empty());
  f.messages.serve(f.actions[1]);
  CHECK(f.take() == Events{"wait 0", "accept 0"});
  f.messages.post_ahead();
  CHECK(f.take() == Events{"receive 3"});
}

TEST_CASE("Messages: in-order transports post receives in program order") {
  Fixture f({receive(0), forward(0), receive(1), forward(1)}, true);
  f.messages.post_ahead();
  CHECK(f.take().empty());
  f.messages.receive(f.actions[0]);
  CHECK(f.take() == Events{"receive 0"});
}

TEST_CASE("Messages: one to the own rank bypasses the transport") {
  Fixture f({send(0, Rank(0)), receive(0, StageId(0), Rank(0)), forward(0)});
  f.messages.post_ahead();
  f.messages.send(f.actions[0]);
  f.messages.receive(f.actions[1]);
  f.messages.serve(f.actions[2]);
  CHECK(f.take() == Events{"pack 0", "accept 0"});
}

TEST_CASE("Messages: results are delivered in program order") {
  Fixture f({receive(0, kSink), receive(1, kSink), receive(2, kSink)});
  f.messages.post_ahead();
  f.take();
  f.wire.end(1);
  f.messages.settle();
  CHECK(f.take().empty());
  f.wire.end(0);
  f.messages.settle();
  CHECK(f.take() == Events{"wait 0", "accept 0", "wait 1", "accept 1"});
  f.messages.finish_received();
  CHECK(f.take() == Events{"wait 2", "accept 2"});
}

TEST_CASE("Messages: completed sends are freed, the rest waited for") {
  Fixture f({send(0), send(1), send(2)});
  for (const auto& action : f.actions) f.messages.send(action);
  f.take();
  f.wire.end(1);
  f.messages.settle();
  f.messages.finish_sent();
  CHECK(f.take() == Events{"wait 0", "wait 2"});
  CHECK(f.progress.busy_with() == &f.actions[2]);
}

TEST_CASE("Messages: after a failure pending ones are only waited for") {
  Fixture f({receive(0), forward(0), receive(0, kSink), send(0)});
  f.messages.post_ahead();
  f.messages.send(f.actions[3]);
  f.take();
  f.messages.drain_received();
  CHECK(f.take() == Events{"wait 0", "wait 1"});
  f.messages.drain_sent();
  CHECK(f.take() == Events{"wait 2"});
}

}  // namespace messages_test
