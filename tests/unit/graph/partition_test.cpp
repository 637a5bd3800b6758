#include <autopar/graph/partition.hpp>

#include <vector>

#include <autopar/graph/graph.hpp>
#include <catch_shim.hpp>

using namespace autopar;

TEST_CASE("Partition: members of a block are listed in ascending order", "[graph]") {
  const Partition partition({BlockId(1), BlockId(0), BlockId(1)});
  CHECK(partition.node_count() == 3);
  CHECK(partition.block_count() == 2);
  CHECK(partition.block_of(NodeId(2)) == BlockId(1));
  CHECK(partition.members(BlockId(0)) == std::vector{NodeId(1)});
  CHECK(partition.members(BlockId(1)) == std::vector{NodeId(0), NodeId(2)});
  CHECK(Partition().block_count() == 0);
  CHECK(Partition(std::vector<BlockId>{}) == Partition());
}

TEST_CASE("Partition: block ids must have no gaps", "[graph]") {
  CHECK_THROWS_WITH(Partition({BlockId(0), BlockId(2), BlockId(2)}),
                    "Partition: block 1 of 3 has no node; blocks are numbered from 0 without gaps");
  CHECK_THROWS_WITH(Partition({BlockId(0), BlockId::none()}),
                    "Partition: node 1 has block -1; blocks are numbered from 0 without gaps");
  CHECK_THROWS_WITH(Partition({BlockId(2'000'000'000)}),
                    "Partition: node 0 has block 2000000000; blocks are numbered from 0 without gaps");
}

TEST_CASE("Partition: refinement is an order with singletons at bottom", "[graph]") {
  const Partition fine({BlockId(0), BlockId(0), BlockId(1), BlockId(2)});
  const Partition coarse({BlockId(1), BlockId(1), BlockId(0), BlockId(0)});
  const Partition across({BlockId(0), BlockId(1), BlockId(1), BlockId(0)});
  CHECK(Partition::singletons(4).refines(fine));
  CHECK(fine.refines(fine));
  CHECK(fine.refines(coarse));
  CHECK_FALSE(coarse.refines(fine));
  CHECK_FALSE(fine.refines(across));
  CHECK_FALSE(Partition::singletons(3).refines(fine));
}

TEST_CASE("require_partition_of: another graph's partition is refused", "[graph]") {
  Graph<int, int> graph;
  graph.add_node();
  CHECK_NOTHROW(require_partition_of(graph, Partition::singletons(1)));
  CHECK_THROWS_WITH(require_partition_of(graph, Partition::singletons(2)),
                    "a partition of 2 nodes does not fit a graph of 1 nodes");
}
