#include <autopar/runtime/mpi_comm.hpp>

#include <catch_shim.hpp>
#include <transport_laws.hpp>

namespace mpi_transport_test {

using namespace autopar;

TEST_CASE("MPI transport: transport laws hold under random traffic") {
  World world = world_from(MPI_COMM_WORLD);
  for (std::uint32_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    REQUIRE_NOTHROW(transport_laws::random_traffic_arrives(world, world.make_transport(), seed, 150));
  }
}

TEST_CASE("MPI transport: messages of two transports do not mix") {
  World world = world_from(MPI_COMM_WORLD);
  REQUIRE_NOTHROW(transport_laws::transports_are_independent(world));
}

TEST_CASE("MPI transport: many receives may precede their sends") {
  World world = world_from(MPI_COMM_WORLD);
  AnyTransport transport = world.make_transport();
  const Rank next((world.rank() + 1) % world.size());
  const Rank previous((world.rank() + world.size() - 1) % world.size());
  if (world.size() == 1) return;
  std::vector<std::shared_ptr<std::vector<std::byte>>> landings;
  std::vector<AnyTransport::Ticket> tickets;
  for (int i = 0; i < 200; ++i) {
    landings.push_back(std::make_shared<std::vector<std::byte>>(1000));
    tickets.push_back(transport.receive(transport_laws::buffer_of(landings.back()), previous, {i, 0, 0}));
  }
  world.barrier();
  for (int i = 0; i < 200; ++i) {
    const auto seed = static_cast<std::uint32_t>(world.rank() * 1000 + i);
    const auto memory = std::make_shared<std::vector<std::byte>>(transport_laws::pattern(seed, 1000));
    tickets.push_back(transport.send(transport_laws::buffer_of(memory), next, {i, 0, 0}));
  }
  for (const auto& ticket : tickets) transport.wait(ticket);
  for (std::size_t i = 0; i < landings.size(); ++i) {
    const auto seed = static_cast<std::uint32_t>(previous.index() * 1000 + i);
    REQUIRE(*landings[i] == transport_laws::pattern(seed, 1000));
  }
}

// 2.2 GB a rank: run by hand with the test name.
TEST_CASE("MPI transport: message may exceed INT_MAX bytes", "[.large]") {
  World world = world_from(MPI_COMM_WORLD);
  if (world.size() < 2 || world.rank() > 1) return;
  AnyTransport transport = world.make_transport();
  const std::size_t bytes = (std::size_t{1} << 31) + 12'345;
  const auto memory = std::make_shared<std::vector<std::byte>>(bytes);
  const std::vector<std::size_t> places{0, (std::size_t{1} << 30) - 1, std::size_t{1} << 30, std::size_t{1} << 31,
                                        bytes - 1};
  if (world.rank_id() == Rank(0)) {
    for (const auto place : places) (*memory)[place] = std::byte{77};
    transport.wait(transport.send(transport_laws::buffer_of(memory), Rank(1), {}));
  } else {
    transport.wait(transport.receive(transport_laws::buffer_of(memory), Rank(0), {}));
    for (const auto place : places) REQUIRE((*memory)[place] == std::byte{77});
  }
}

TEST_CASE("MPI transport: ended transports make room for others") {
  World world = world_from(MPI_COMM_WORLD);
  std::vector<AnyTransport> kept;
  // More than twice as many as mpich could have.
  for (int i = 0; i < 2200; ++i) {
    AnyTransport transport = world.make_transport();
    if (i % 1000 == 0) kept.push_back(transport);
  }
  REQUIRE_NOTHROW(transport_laws::random_traffic_arrives(world, world.make_transport(), 1, 60));
  for (auto& transport : kept) REQUIRE_NOTHROW(transport_laws::random_traffic_arrives(world, transport, 2, 20));
}

TEST_CASE("MPI transport: too many are refused by all, World lives on") {
  World world = world_from(MPI_COMM_WORLD);
  world.log().set_level(LogLevel::kOff);  // MPI's own words
  std::vector<AnyTransport> alive;
  std::string refused;
  while (refused.empty() && alive.size() < 1500) {
    try {
      alive.push_back(world.make_transport());
    } catch (const InvalidArgument& error) {
      refused = error.what();
    }
  }
  if (refused.empty()) return;  // an MPI library without such a limit
  CAPTURE(refused);
  CHECK(refused.find(std::to_string(alive.size()) + " transports of this World are alive") != std::string::npos);
  CHECK(refused.find("end models that are not used any more") != std::string::npos);
  CHECK(!world.failed());
  REQUIRE_NOTHROW(world.barrier());
  CHECK_THROWS_AS(world.make_transport(), InvalidArgument);
  REQUIRE_NOTHROW(transport_laws::random_traffic_arrives(world, alive.back(), 3, 20));

  // One rank alone gives back nothing.
  if (world.rank() == 0) alive[10] = {};
  if (world.size() > 1) CHECK_THROWS_AS(world.make_transport(), InvalidArgument);
  alive[10] = {};
  alive[7] = {};
  alive[10] = world.make_transport();
  alive[7] = world.make_transport();
  REQUIRE_NOTHROW(transport_laws::random_traffic_arrives(world, alive[10], 4, 20));
  CHECK_THROWS_AS(world.make_transport(), InvalidArgument);
}

}  // namespace mpi_transport_test
