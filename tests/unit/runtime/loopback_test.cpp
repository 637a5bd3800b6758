#include <autopar/runtime/loopback.hpp>

#include <catch_shim.hpp>
#include <refusal.hpp>
#include <transport_laws.hpp>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

using namespace autopar;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

WorldOptions impatient(double warning, double timeout) {
  WorldOptions options;
  options.stall = {Seconds(warning), Seconds(timeout)};
  return options;
}

/// What `body` throws on each rank, as text; empty where it throws nothing.
std::vector<std::string> errors_of(int ranks, const std::function<void(World&)>& body,
                                   const WorldOptions& options = {}) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  loopback::run(
      ranks,
      [&](World& world) {
        try {
          body(world);
        } catch (const TransportError& error) {
          errors[world.rank_id().index()] = error.what();
        }
      },
      options);
  return errors;
}

}  // namespace

TEST_CASE("loopback: every rank has its own World and rank") {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    std::atomic<int> seen{0};
    loopback::run(ranks, [&](World& world) {
      transport_laws::require(world.size() == ranks && world.local_size() == ranks, "size");
      transport_laws::require(world.local_rank() == world.rank(), "local rank");
      seen += 1 << world.rank();
    });
    REQUIRE(seen == (1 << ranks) - 1);
  }
}

TEST_CASE("loopback: random traffic obeys the transport laws") {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (std::uint32_t seed = 1; seed <= 6; ++seed) {
      CAPTURE(ranks, seed);
      REQUIRE_NOTHROW(loopback::run(ranks, [&](World& world) {
        transport_laws::random_traffic_arrives(world, world.make_transport(), seed, 120);
      }));
    }
  }
}

TEST_CASE("loopback: control plane agrees, transports are independent") {
  for (int ranks = 1; ranks <= 4; ++ranks) REQUIRE_NOTHROW(loopback::run(ranks, transport_laws::control_plane_agrees));
  REQUIRE_NOTHROW(loopback::run(3, transport_laws::transports_are_independent));
}

TEST_CASE("loopback: the first cause is rethrown and wakes all ranks") {
  std::atomic<int> woken{0};
  const auto begin = Clock::now();
  const auto body = [&](World& world) {
    if (world.rank_id() == Rank(2)) throw std::domain_error("layer 7 is unhappy");
    try {
      world.barrier("waiting for all");
    } catch (const TransportError& error) {
      const std::string what = error.what();
      transport_laws::require(error.peer() == Rank(2) && error.rank() == world.rank_id(), "ranks of the error");
      transport_laws::require(contains(what, "rank 2") && contains(what, "layer 7 is unhappy"), "text of the error");
      transport_laws::require(contains(what, "waiting for all"), "what was waited for: " + what);
      ++woken;
      throw;
    }
  };
  REQUIRE_THROWS_AS(loopback::run(4, body), std::domain_error);
  REQUIRE(woken == 3);
  REQUIRE(Clock::now() - begin < 1s);
}

TEST_CASE("loopback: after fail every call throws with rank and action") {
  const auto errors = errors_of(3, [](World& world) {
    if (world.rank_id() == Rank(1)) world.fail("forward of stage 1", "out of memory");
    try {
      world.barrier();
    } catch (const TransportError& error) {
      transport_laws::require(error.action() == "forward of stage 1", "action of the error");
    }
    transport_laws::require(world.failed(), "the world has failed");
    (void)world.all_gather({}, "second call");
  });
  for (const auto& error : errors) {
    CAPTURE(error);
    REQUIRE(contains(error, "rank 1 failed in 'forward of stage 1': out of memory"));
    REQUIRE(contains(error, "second call"));
  }
}

TEST_CASE("loopback: a rank that leaves early is named to the others") {
  const auto begin = Clock::now();
  const auto errors = errors_of(3, [](World& world) {
    const int steps = world.rank_id() == Rank(2) ? 2 : 5;
    for (int step = 0; step < steps; ++step) world.barrier("step " + std::to_string(step));
  });
  REQUIRE(errors[2].empty());
  for (const int rank : {0, 1}) {
    CAPTURE(errors[static_cast<std::size_t>(rank)]);
    REQUIRE(contains(errors[static_cast<std::size_t>(rank)], "rank 2 has left"));
    REQUIRE(contains(errors[static_cast<std::size_t>(rank)], "step 2"));
  }
  REQUIRE(Clock::now() - begin < 5s);
}

TEST_CASE("loopback: a stall warns, then is an error on every rank") {
  std::mutex mutex;
  std::vector<std::string> lines;
  const auto errors = errors_of(
      3,
      [&](World& world) {
        world.log().set_writer([&](const std::string& line) {
          const std::lock_guard lock(mutex);
          lines.push_back(line);
        });
        if (world.rank_id() == Rank(1)) {
          while (!world.failed()) std::this_thread::sleep_for(5ms);
        }
        world.barrier("handshake");
      },
      impatient(0.1, 0.4));
  REQUIRE(contains(errors[0], "for rank 1 in 'handshake'"));
  REQUIRE(contains(errors[0], "stall_timeout"));
  REQUIRE(contains(errors[1], "failed"));
  REQUIRE(!errors[2].empty());
  const auto warnings = std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
    return contains(line, "warning") && contains(line, "for rank 1 in 'handshake'") && contains(line, "Transport");
  });
  REQUIRE(warnings == 2);
}

TEST_CASE("loopback: mismatched calls are an error, not a hang") {
  const auto errors = errors_of(2, [](World& world) {
    if (world.rank_id() == Rank(0)) {
      (void)world.all_gather({}, "gather");
    } else {
      (void)world.broadcast({}, Rank(1), "broadcast");
    }
  });
  REQUIRE(contains(errors[0], "not the one expected"));
}

TEST_CASE("loopback: mismatched sizes and types are refused") {
  const auto sizes = errors_of(2, [](World& world) {
    AnyTransport transport = world.make_transport();
    const auto memory = std::make_shared<std::vector<std::byte>>(8 + world.rank_id().index());
    const auto buffer = transport_laws::buffer_of(memory);
    transport.wait(world.rank_id() == Rank(0) ? transport.send(buffer, Rank(1), {})
                                              : transport.receive(buffer, Rank(0), {}));
  });
  REQUIRE(contains(sizes[0], "8 bytes, 9 are expected"));
  const auto types = errors_of(2, [](World& world) {
    AnyTransport transport = world.make_transport();
    const GroupId group = transport.make_group({Rank(0), Rank(1)});
    const auto memory = std::make_shared<std::vector<std::byte>>(8);
    const DType dtype = world.rank_id() == Rank(0) ? DType::kF32 : DType::kF64;
    transport.wait(transport.all_reduce(transport_laws::buffer_of(memory), dtype, group));
  });
  REQUIRE(contains(types[1], "different sizes or types"));
}

TEST_CASE("loopback: invalid arguments are named") {
  const auto refused = [](const std::function<void(World&, AnyTransport)>& body) {
    REQUIRE_THROWS_AS(loopback::run(2,
                                    [&](World& world) {
                                      AnyTransport transport = world.make_transport();
                                      body(world, transport);
                                    }),
                      InvalidArgument);
  };
  refused([](World&, AnyTransport t) { (void)t.make_group({Rank(1), Rank(0)}); });
  refused([](World&, AnyTransport t) { (void)t.make_group({Rank(0), Rank(2)}); });
  refused([](World&, AnyTransport t) { (void)t.make_group({}); });
  refused([](World& w, AnyTransport t) { (void)t.send({}, w.rank_id(), {}); });
  refused([](World&, AnyTransport t) { (void)t.receive({}, Rank(7), {}); });
  refused([](World&, AnyTransport t) { (void)t.all_reduce({}, DType::kF32, GroupId{3}); });
  refused([](World&, AnyTransport t) {
    (void)t.all_reduce({nullptr, 3, nullptr}, DType::kF32, t.make_group({Rank(0), Rank(1)}));
  });
  refused([](World&, AnyTransport t) {
    (void)t.all_reduce({nullptr, 4, nullptr}, DType::kC64, t.make_group({Rank(0), Rank(1)}));
  });
  refused([](World&, AnyTransport t) {
    (void)t.reduce_scatter({nullptr, 12, nullptr}, DType::kF32, t.make_group({Rank(0), Rank(1)}));
  });
  refused([](World&, AnyTransport t) { (void)t.all_gather({nullptr, 3, nullptr}, t.make_group({Rank(0), Rank(1)})); });
  refused([](World&, AnyTransport t) { (void)t.all_to_all({nullptr, 6, nullptr}, t.make_group({Rank(0), Rank(1)})); });
  refused([](World& w, AnyTransport) { (void)w.broadcast({}, Rank(2), "nobody"); });
  REQUIRE_THROWS_AS(loopback::run(0, [](World&) {}), InvalidArgument);
}

TEST_CASE("World: without a launcher it has one rank") {
  World world(0, nullptr);
  REQUIRE(world.size() == 1);
  REQUIRE(world.rank_id() == Rank(0));
  REQUIRE(world.local_rank() == 0);
  REQUIRE(world.local_size() == 1);
  transport_laws::control_plane_agrees(world);
  WorldOptions options;
  options.expected_size = 4;
  REQUIRE_THROWS_AS(World(0, nullptr, options), InvalidArgument);
}
