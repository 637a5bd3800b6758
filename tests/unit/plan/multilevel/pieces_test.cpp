#include <autopar/plan/multilevel/pieces.hpp>

#include <catch_shim.hpp>

#include <autopar/cost/roofline.hpp>
#include <autopar/graph/algorithms/convexity.hpp>
#include <autopar/plan/multilevel/coarsened.hpp>
#include <autopar/plan/multilevel/heavy_edge.hpp>
#include <autopar/testing/random_models.hpp>

#include "unit/plan/random_stagings.hpp"

using namespace autopar;

TEST_CASE("cut_into_pieces: each lies in one block, cuts are legal", "[laws]") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    testing::Dice dice(seed + 82'000);
    const ModelProfile model = testing::random_model(dice, 150);
    const RooflineCost cost(testing::small_cluster(4));
    const Workload work = make_workload(model, cost);
    const Partition blocks = HeavyEdge{.max_blocks = dice(1, 12), .max_tails = 500}.coarsen(work, 4, 1);
    const auto count = static_cast<std::size_t>(dice(1, 60));
    const Partition pieces = cut_into_pieces(work, blocks, count);
    REQUIRE(pieces.node_count() == work.graph.node_count());
    CHECK(pieces.refines(blocks));
    CHECK(pieces.block_count() <= count + blocks.block_count());
    const std::size_t size = (work.graph.node_count() + count - 1) / count;
    for (std::size_t piece = 0; piece < pieces.block_count(); ++piece)
      CHECK(pieces.members(BlockId::of(piece)).size() <= size);

    const Workload of_pieces = contracted(work, pieces);  // throws if pieces depend on one another in a circle
    const Staging staging = test::random_staging(dice, of_pieces, 8);
    const Staging fine = detail::projected(staging, pieces);
    CHECK(detail::restricted(fine, pieces) == staging);
    for (const EdgeId edge : work.graph.edges())
      CHECK(fine.stage_of[work.graph.source(edge).index()] <= fine.stage_of[work.graph.target(edge).index()]);
    for (const auto& nodes : nodes_by_stage(fine)) {
      NodeSet set(work.graph.node_count());
      for (const NodeId node : nodes) set.insert(node);
      CHECK(is_convex(work.graph, set));
    }
  }
}

TEST_CASE("cut_into_pieces: a long chain gives the requested number") {
  const ModelProfile model = testing::chain(1000, 1e6, 1000, 400);
  const RooflineCost cost(testing::small_cluster(4));
  const Workload work = make_workload(model, cost);
  const Partition blocks = HeavyEdge{}.coarsen(work, 4, 1);
  const auto pieces = cut_into_pieces(work, blocks, 200).block_count();
  CHECK(pieces >= 200);
  CHECK(pieces <= 200 + blocks.block_count());
}
