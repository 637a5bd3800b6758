#include "torch/session/session_options.hpp"

#include <mutex>
#include <string>

#include <autopar/core/error.hpp>
#include <autopar/runtime/loopback.hpp>
#include <catch_shim.hpp>
#include <says.hpp>

namespace session_options_test {

using namespace autopar;

TEST_CASE("SessionOptions: code's options hold until they are resolved") {
  Options code;
  code.microbatches = 3;
  session::SessionOptions options(code);
  const auto& now = options.get();
  CHECK(now.microbatches == 3);
  CHECK_FALSE(options.resolved());
  loopback::run(1, [&](World& world) {
    ranks::WorldRanks ranks(world);
    options.resolve(ranks);
  });
  CHECK(options.resolved());
  CHECK(&options.get() == &now);  // parts keep the reference
  CHECK(now.microbatches == 3);
}

TEST_CASE("SessionOptions: ranks with other options are told which") {
  std::mutex mutex;
  loopback::run(2, [&](World& world) {
    Options code;
    code.microbatches = world.rank() + 1;
    session::SessionOptions options(code);
    ranks::WorldRanks ranks(world);
    const auto message = said_by([&] { options.resolve(ranks); });
    const std::lock_guard lock(mutex);
    CHECK(message.find("rank 0 has microbatches = 1, rank 1 has microbatches = 2") != std::string::npos);
    CHECK_FALSE(options.resolved());
  });
}

}  // namespace session_options_test
