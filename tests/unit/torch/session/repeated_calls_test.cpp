#include <memory>
#include <vector>

#include <catch_shim.hpp>

#include "torch/session/repeated_calls.hpp"

namespace autopar {

namespace {

using Turn = session::RepeatedCalls::Turn;
using Samples = std::vector<std::int64_t>;

const Samples kWhole{16}, kRest{7};

/// Until the call that is recorded.
void record(session::RepeatedCalls& calls, const std::shared_ptr<const void>& program,
            const Samples& samples = kWhole) {
  for (const auto turn : {Turn::kRun, Turn::kRun, Turn::kWarm, Turn::kRecord})
    REQUIRE(calls.next(program, samples) == turn);
  calls.recorded();
}

}  // namespace

TEST_CASE("a call that repeats is run, recorded and replayed", "[torch]") {
  session::RepeatedCalls calls;
  const auto program = std::make_shared<const int>(1);
  record(calls, program);
  for (int i = 0; i < 3; ++i) CHECK(calls.next(program, kWhole) == Turn::kReplay);
}

TEST_CASE("other calls run beside a recording, until they repeat themselves", "[torch]") {
  session::RepeatedCalls calls;
  const auto program = std::make_shared<const int>(1), other = std::make_shared<const int>(2);
  record(calls, program);
  CHECK(calls.next(program, kRest) == Turn::kRun);
  CHECK(calls.next(other, kWhole) == Turn::kRun);
  CHECK(calls.next(program, kWhole) == Turn::kReplay);
  record(calls, program, kRest);
  CHECK(calls.next(program, kRest) == Turn::kReplay);
  CHECK(calls.next(program, kWhole) == Turn::kRun);
}

TEST_CASE("calls that cannot be recorded are not tried again", "[torch]") {
  session::RepeatedCalls calls;
  const auto program = std::make_shared<const int>(1), other = std::make_shared<const int>(2);
  for (int i = 0; i < 4; ++i) static_cast<void>(calls.next(program, kWhole));
  calls.refuse();
  for (int i = 0; i < 8; ++i) CHECK(calls.next(program, kWhole) == Turn::kRun);
  record(calls, other);
  CHECK(calls.next(program, kWhole) == Turn::kRun);
}

TEST_CASE("a recording that is given up for another call is not made anew", "[torch]") {
  session::RepeatedCalls calls;
  const auto program = std::make_shared<const int>(1);
  record(calls, program);
  CHECK(calls.next(program, kRest) == Turn::kRun);
  calls.give_up();
  for (int i = 0; i < 8; ++i) CHECK(calls.next(program, kWhole) == Turn::kRun);
  record(calls, program, kRest);
}

TEST_CASE("a recording that holds no more is made anew, but not for ever", "[torch]") {
  session::RepeatedCalls calls;
  const auto program = std::make_shared<const int>(1);
  for (int made = 0; made < 8; ++made) {
    record(calls, program);
    calls.forget();
  }
  for (int i = 0; i < 8; ++i) CHECK(calls.next(program, kWhole) == Turn::kRun);
}

TEST_CASE("a program that is gone is no other", "[torch]") {
  session::RepeatedCalls calls;
  auto program = std::make_shared<const int>(1);
  record(calls, program);
  program.reset();
  CHECK(calls.next(std::make_shared<const int>(1), kWhole) == Turn::kRun);
}

}  // namespace autopar
