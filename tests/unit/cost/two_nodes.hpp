#pragma once

#include <autopar/core/cluster.hpp>

namespace autopar::test {

inline Cluster two_nodes_of_four() {
  Cluster cluster;
  cluster.name = "two nodes";
  cluster.devices = 8;
  cluster.device.memory = Bytes(std::int64_t{8} << 30);
  cluster.levels = {{"node", 4, {Seconds(1e-6), BytesPerSecond(100e9)}},
                    {"net", 8, {Seconds(10e-6), BytesPerSecond(10e9)}}};
  return cluster;
}

}  // namespace autopar::test
