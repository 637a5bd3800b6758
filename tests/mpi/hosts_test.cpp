#include <autopar/runtime/world.hpp>
#include <autopar/torch/device.hpp>

#include "torch/cost/measured/profiler.hpp"

#include <catch_shim.hpp>

#include <cstdlib>
#include <string>

// On one host, and on several where two_hosts.cmake starts them.
namespace mpi_hosts_test {

using namespace autopar;

int hosts() {
  const char* const count = std::getenv("TEST_HOSTS");
  return count == nullptr ? 1 : std::atoi(count);
}

TEST_CASE("World: each host counts its own ranks") {
  const World world(0, nullptr);
  const int ranks_a_host = world.size() / hosts();
  CHECK(world.local_size() == ranks_a_host);
  CHECK(world.local_rank() == world.rank() % ranks_a_host);
}

TEST_CASE("describe_cluster: links in and between hosts are two levels") {
  const World world(0, nullptr);
  const Cluster cluster = describe_cluster(world, c10::Device(c10::kCPU));
  CHECK(cluster.devices == world.size());
  REQUIRE(cluster.levels.size() == (hosts() == 1 ? 1 : 2));
  CHECK(cluster.levels.front().name == "host");
  CHECK(cluster.levels.front().span == world.size() / hosts());
  CHECK(cluster.levels.back().span == world.size());
  if (hosts() > 1) {
    CHECK(cluster.between(Rank(0), Rank(1)).bandwidth > cluster.between(Rank(0), Rank(2)).bandwidth);
    CHECK(cluster.between(Rank(2), Rank(3)) == cluster.between(Rank(0), Rank(1)));
  }
}

TEST_CASE("cost_origin: intra-host links are not used between hosts") {
  const World world(0, nullptr);
  Cluster cluster;
  cluster.device.name = "H100";
  const auto measured_on = cost::cost_origin(world, cluster, c10::Device(c10::kCUDA, 0)).device;
  CHECK(measured_on == (hosts() == 1 ? "H100" : "H100, " + std::to_string(world.local_size()) + " ranks a host"));
}

}  // namespace mpi_hosts_test
