#include <autopar/runtime/erased_transport.hpp>
#include <autopar/runtime/loopback.hpp>
#include <autopar/runtime/world.hpp>

#include <atomic>
#include <vector>

#include <catch_shim.hpp>
#include <transport_laws.hpp>

#include "../../consumer/own_transport/logged.hpp"

namespace own_transports_test {

using namespace autopar;

TEST_CASE("WorldOptions::transports: laws hold through a user's type") {
  for (const std::uint32_t seed : {1, 2, 3}) {
    std::vector<TransportLog> logs(3);
    WorldOptions options;
    options.transports = [&logs](const TransportOptions& how, const MakeTransport& built_in) {
      auto inner = built_in(how);
      auto& log = logs[inner.rank().index()];
      return erased(Logged(std::move(inner), log));
    };
    loopback::run(
        3, [&](World& world) { transport_laws::random_traffic_arrives(world, world.make_transport(), seed, 60); },
        options);
    for (const auto& log : logs) CHECK(log.messages + log.collectives > 0);
  }
}

TEST_CASE("WorldOptions::transports: an empty transport is refused") {
  WorldOptions options;
  options.transports = [](const TransportOptions&, const MakeTransport&) { return AnyTransport(); };
  std::atomic<int> refused = 0;
  loopback::run(
      2,
      [&](World& world) {
        try {
          static_cast<void>(world.make_transport());
        } catch (const InvalidArgument&) {
          ++refused;
        }
      },
      options);
  CHECK(refused == 2);
}

}  // namespace own_transports_test
