#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>

#include <autopar/core/error.hpp>
#include <autopar/cost/roofline.hpp>
#include <autopar/graph/algorithms/quotient.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/graph/partition.hpp>
#include <autopar/plan/concepts.hpp>
#include <autopar/plan/model/workload.hpp>
#include <autopar/testing/describe.hpp>
#include <autopar/testing/dice.hpp>
#include <autopar/testing/law_broken.hpp>
#include <autopar/testing/random_models.hpp>

namespace autopar::testing {

struct CoarseningLawOptions {
  std::uint64_t first_seed = 0;  ///< first of `inputs` consecutive seeds
  int inputs = 200;
  int max_nodes = 120;
};

namespace detail {

template <class P>
void check_coarsening(const P& policy, std::uint64_t seed, int max_nodes) {
  Dice dice(seed);
  const ModelProfile model = random_model(dice, max_nodes);
  const RooflineCost cost(small_cluster(4));
  const Workload work = make_workload(model, cost);
  const int samples = dice(1, 8), least = dice(1, 6);
  const auto refuse = [&](const char* law, const std::string& given) {
    throw LawBroken(
        law, seed,
        described(work) + "; " + std::to_string(samples) + " samples, at least " + std::to_string(least) + " blocks",
        given);
  };
  const auto coarsened = [&] {
    try {
      return policy.coarsen(work, samples, least);
    } catch (const std::exception& error) {
      refuse("every workload can be coarsened, if only to its nodes", std::string("an error: ") + error.what());
      throw;
    }
  };
  const Partition blocks = coarsened();
  const auto nodes = work.graph.node_count();
  if (blocks.node_count() != nodes)
    refuse("the blocks partition the nodes", "a partition of " + std::to_string(blocks.node_count()) + " nodes");
  std::string given = "blocks";
  for (const NodeId node : work.graph.nodes()) given += " " + std::to_string(blocks.block_of(node).value());
  given += " of the nodes";
  try {
    (void)topological_order(quotient(work.graph, blocks));
  } catch (const InvalidArgument&) {
    refuse("the blocks do not depend on one another in a circle", given);
  }
  if (blocks.block_count() < std::min(static_cast<std::size_t>(least), nodes))
    refuse("there are as many blocks as were asked for, or nodes", given);
  if (coarsened() != blocks) refuse("equal workloads get equal blocks", given + ", and then others");
}

}  // namespace detail

/// Checks the laws of `CoarseningPolicy` on random models of limited size.
/// @throws LawBroken with the first law that is broken
/// @cost twice the policy's cost for each input
template <CoarseningPolicy P>
void check_coarsening_laws(const P& policy, const CoarseningLawOptions& options = {}) {
  for (int i = 0; i < options.inputs; ++i) {
    detail::check_coarsening(policy, options.first_seed + static_cast<std::uint64_t>(i), options.max_nodes);
  }
}

}  // namespace autopar::testing
