#include <autopar/runtime/mpi_comm.hpp>

#include <catch_shim.hpp>
#include <transport_laws.hpp>

#include <optional>

namespace mpi_world_test {

using namespace autopar;

int mpi_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}
/// As a model holds its World.
struct OutlivingModel {
  explicit OutlivingModel(World& of) : world(of.view()) {}
  World world;
};
int mpi_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

TEST_CASE("World: takes launcher's ranks, leaves foreign MPI running") {
  {
    World world(0, nullptr);
    REQUIRE(world.size() == mpi_size());
    REQUIRE(world.rank_id() == Rank(mpi_rank()));
    REQUIRE(world.local_rank() == mpi_rank());
    REQUIRE(world.local_size() == mpi_size());
    REQUIRE_NOTHROW(transport_laws::control_plane_agrees(world));
  }
  int finalised = 1;
  MPI_Finalized(&finalised);
  REQUIRE(finalised == 0);
  REQUIRE(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS);
}

TEST_CASE("World: accepts the program's own communicator") {
  MPI_Comm halves = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, mpi_rank() % 2, -mpi_rank(), &halves);
  int size = 0;
  int rank = 0;
  MPI_Comm_size(halves, &size);
  MPI_Comm_rank(halves, &rank);
  {
    World world = world_from(halves);
    REQUIRE(world.size() == size);
    REQUIRE(world.rank_id() == Rank(rank));
    REQUIRE_NOTHROW(transport_laws::control_plane_agrees(world));
    REQUIRE_NOTHROW(transport_laws::random_traffic_arrives(world, world.make_transport(), 5, 60));
  }
  MPI_Comm_free(&halves);
}

TEST_CASE("World: two instances do not interfere") {
  World first = world_from(MPI_COMM_WORLD);
  World second = world_from(MPI_COMM_WORLD);
  for (int round = 0; round < 3; ++round) {
    REQUIRE_NOTHROW(transport_laws::control_plane_agrees(second));
    REQUIRE_NOTHROW(transport_laws::control_plane_agrees(first));
  }
}

TEST_CASE("World: objects that outlive it throw on use") {
  std::optional<OutlivingModel> model;
  AnyTransport transport;
  {
    World world = world_from(MPI_COMM_WORLD);
    model.emplace(world);
    transport = world.make_transport();
    REQUIRE_NOTHROW(model->world.barrier());
  }
  CHECK(model->world.size() == mpi_size());
  CHECK_THROWS_AS(model->world.barrier(), InvalidArgument);
  CHECK_THROWS_AS(model->world.make_transport(), InvalidArgument);
  if (mpi_size() == 1) return;
  const auto memory = std::make_shared<std::vector<std::byte>>(8);
  const Rank next((mpi_rank() + 1) % mpi_size());
  CHECK_THROWS_AS(transport.send(transport_laws::buffer_of(memory), next, {}), TransportError);
}

TEST_CASE("World: unexpected size is refused with both numbers") {
  WorldOptions options;
  options.expected_size = mpi_size() + 3;
  try {
    World world(0, nullptr, options);
    FAIL("must be refused");
  } catch (const InvalidArgument& error) {
    const std::string what = error.what();
    CAPTURE(what);
    REQUIRE(what.find(std::to_string(mpi_size() + 3)) != std::string::npos);
    REQUIRE((mpi_size() == 1 || what.find(std::to_string(mpi_size()) + " ranks") != std::string::npos));
  }
}

}  // namespace mpi_world_test
