#include "torch/programs/program_cache.hpp"

#include <string>

#include <catch_shim.hpp>

namespace program_cache_test {

using namespace autopar;

std::string key_of(std::size_t i) { return "signature " + std::to_string(i); }

TEST_CASE("ProgramCache: evicts the least recently used, users keep it") {
  programs::ProgramCache programs;
  std::shared_ptr<programs::CapturedProgram> held;
  for (std::size_t i = 0; i < kRememberedPrograms; ++i) {
    auto program = std::make_shared<programs::CapturedProgram>();
    if (i == 1) held = program;
    CHECK_FALSE(programs.remember(key_of(i), std::move(program)));
  }
  CHECK(programs.find(key_of(0)) != nullptr);  // a use
  CHECK(programs.peek(key_of(1)) == held);     // none
  CHECK(programs.remember("one more", std::make_shared<programs::CapturedProgram>()));
  CHECK(programs.knows(key_of(0)));
  CHECK_FALSE(programs.knows(key_of(1)));
  CHECK(programs.find(key_of(1)) == nullptr);
  CHECK(held.use_count() == 1);
  CHECK_FALSE(programs.remember("one more", std::make_shared<programs::CapturedProgram>()));  // in its own place
  programs.clear();
  CHECK_FALSE(programs.knows("one more"));
}

TEST_CASE("ProgramCache: stale once found to differ from forward") {
  programs::ProgramCache programs;
  auto program = std::make_shared<programs::CapturedProgram>();
  programs.remember("key", program);
  CHECK_FALSE(programs.is_stale("key"));
  CHECK_FALSE(programs.is_stale("another"));
  program->verification.outdated = true;
  CHECK(programs.is_stale("key"));
}

}  // namespace program_cache_test
