#include <memory>
#include <vector>

#include <catch_shim.hpp>

#include "torch/graphs/repeated_calls.hpp"

namespace autopar {

namespace {

using steps::CudaGraphPhase;
using Samples = std::vector<std::int64_t>;

const Samples kWhole{16}, kRest{7};

/// Until the call that is recorded.
void record(graphs::RepeatedCalls& calls, const std::shared_ptr<const void>& program, const Samples& samples = kWhole) {
  for (const auto turn :
       {CudaGraphPhase::kEager, CudaGraphPhase::kEager, CudaGraphPhase::kWarmup, CudaGraphPhase::kCapture})
    REQUIRE(calls.next(program, samples) == turn);
  calls.recorded();
}

}  // namespace

TEST_CASE("RepeatedCalls: repeated calls run, are captured, replay", "[torch]") {
  graphs::RepeatedCalls calls;
  const auto program = std::make_shared<const int>(1);
  record(calls, program);
  for (int i = 0; i < 3; ++i) CHECK(calls.next(program, kWhole) == CudaGraphPhase::kReplay);
}

TEST_CASE("RepeatedCalls: other calls run eagerly until they repeat", "[torch]") {
  graphs::RepeatedCalls calls;
  const auto program = std::make_shared<const int>(1), other = std::make_shared<const int>(2);
  record(calls, program);
  CHECK(calls.next(program, kRest) == CudaGraphPhase::kEager);
  CHECK(calls.next(other, kWhole) == CudaGraphPhase::kEager);
  CHECK(calls.next(program, kWhole) == CudaGraphPhase::kReplay);
  record(calls, program, kRest);
  CHECK(calls.next(program, kRest) == CudaGraphPhase::kReplay);
  CHECK(calls.next(program, kWhole) == CudaGraphPhase::kEager);
}

TEST_CASE("RepeatedCalls: calls that fail capture are not tried again", "[torch]") {
  graphs::RepeatedCalls calls;
  const auto program = std::make_shared<const int>(1), other = std::make_shared<const int>(2);
  for (int i = 0; i < 4; ++i) static_cast<void>(calls.next(program, kWhole));
  calls.refuse();
  for (int i = 0; i < 8; ++i) CHECK(calls.next(program, kWhole) == CudaGraphPhase::kEager);
  record(calls, other);
  CHECK(calls.next(program, kWhole) == CudaGraphPhase::kEager);
}

TEST_CASE("RepeatedCalls: an abandoned graph is not captured again", "[torch]") {
  graphs::RepeatedCalls calls;
  const auto program = std::make_shared<const int>(1);
  record(calls, program);
  CHECK(calls.next(program, kRest) == CudaGraphPhase::kEager);
  calls.give_up();
  for (int i = 0; i < 8; ++i) CHECK(calls.next(program, kWhole) == CudaGraphPhase::kEager);
  record(calls, program, kRest);
}

TEST_CASE("RepeatedCalls: an invalid graph is captured anew, bounded", "[torch]") {
  graphs::RepeatedCalls calls;
  const auto program = std::make_shared<const int>(1);
  for (int made = 0; made < 8; ++made) {
    record(calls, program);
    calls.forget();
  }
  for (int i = 0; i < 8; ++i) CHECK(calls.next(program, kWhole) == CudaGraphPhase::kEager);
}

TEST_CASE("RepeatedCalls: a destroyed program matches no other", "[torch]") {
  graphs::RepeatedCalls calls;
  auto program = std::make_shared<const int>(1);
  record(calls, program);
  program.reset();
  CHECK(calls.next(std::make_shared<const int>(1), kWhole) == CudaGraphPhase::kEager);
}

}  // namespace autopar
