#include <autopar/runtime/loopback.hpp>

#include <catch_shim.hpp>
#include <transport_laws.hpp>

#include <thread>

namespace threads_loopback_test {

using namespace autopar;

// What the thread sanitizer shall see: many ranks, early and late waits, failures while others post and wait.

TEST_CASE("loopback: random traffic of up to eight ranks arrives") {
  for (const int ranks : {2, 5, 8}) {
    for (std::uint32_t seed = 20; seed < 23; ++seed) {
      REQUIRE_NOTHROW(loopback::run(ranks, [&](World& world) {
        AnyTransport first = world.make_transport();
        AnyTransport second = world.make_transport();
        transport_laws::random_traffic_arrives(world, second, seed, 60);
        transport_laws::random_traffic_arrives(world, first, seed + 100, 60);
        transport_laws::control_plane_agrees(world);
      }));
    }
  }
}

TEST_CASE("loopback: failure at any moment ends every rank") {
  for (int round = 0; round < 30; ++round) {
    CAPTURE(round);
    const auto body = [&](World& world) {
      AnyTransport transport = world.make_transport();
      if (world.rank() == round % 4) {
        std::thread elsewhere([&] { world.fail("computing", "round " + std::to_string(round)); });
        elsewhere.join();
        throw std::domain_error("cause");
      }
      transport_laws::random_traffic_arrives(world, transport, static_cast<std::uint32_t>(round), 60);
      world.barrier();
    };
    REQUIRE_THROWS_AS(loopback::run(4, body), std::domain_error);
  }
}

TEST_CASE("loopback: logs and limits may change while in use") {
  REQUIRE_NOTHROW(loopback::run(3, [](World& world) {
    world.log().set_writer([](const std::string&) {});
    const Logger logger = world.logger(LogModule::kTransport);
    std::thread talker([&] {
      for (int i = 0; i < 200; ++i) logger.warn("line " + std::to_string(i));
    });
    for (int i = 0; i < 50; ++i) {
      world.log().set_level(LogModule::kTransport, i % 2 == 0 ? LogLevel::kOff : LogLevel::kDebug);
      world.set_stall_limits({Seconds(60 + i), Seconds(600)});
      world.barrier();
    }
    talker.join();
  }));
}

}  // namespace threads_loopback_test
