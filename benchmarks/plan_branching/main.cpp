// How exact and how fast plans for branching graphs are: generated instances of 30 to 60 nodes with up to 50,000
// downsets, on several numbers of devices, with tight and ample memory. One JSON line a case, then a summary. Seconds are of this thread.
//
//   plan_branching [--seeds N] [--first SEED] [--write SEED SHAPE]
#include <algorithm>
#include <ctime>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include <autopar/graph/algorithms/downsets.hpp>
#include <autopar/io/variant_file.hpp>
#include <autopar/plan/bottleneck/exact_bottleneck_staging.hpp>
#include <autopar/plan/planner.hpp>

#include "instances.hpp"

namespace ap = autopar;
using branching::Instance;
using branching::Shape;

namespace {

constexpr std::size_t kFewest = 2'000, kMost = 50'000;
constexpr double kGiB = 1024.0 * 1024 * 1024;

std::size_t downsets(const Instance& instance) {
  ap::Graph<char, char> graph;
  for (int i = 0; i < instance.nodes(); ++i) graph.add_node();
  for (const auto& [from, to] : instance.edges()) graph.add_edge(ap::NodeId(from), ap::NodeId(to));
  return ap::count_downsets(graph, kMost).value_or(0);
}

struct Case {
  std::uint64_t seed;
  Shape shape;
  std::string json;
  int nodes;
  std::size_t downsets;
};

/// The first instance from `seed` on whose number of downsets is in range.
Case make_case(std::uint64_t seed, Shape shape) {
  for (std::uint64_t attempt = 0;; ++attempt) {
    Instance instance(seed + 1000 * attempt, shape);
    const std::size_t count = downsets(instance);
    if (instance.nodes() <= 60 && count >= kFewest) return {seed, shape, instance.json(), instance.nodes(), count};
  }
}

struct Tally {
  int cases = 0, exact = 0, slow = 0;
  double slowest = 0, gap = 0;
};

void run(const Case& one, int devices, double gigabytes, Tally& tally) {
  const auto instance = ap::parse_instance(one.json, "generated", {devices, gigabytes * kGiB, 25 * kGiB});
  const std::clock_t begin = std::clock();
  const ap::BottleneckResult result = ap::Planner<ap::SlowestStage>{}.plan(instance.graph, instance.costs, instance.limits);
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;  // this thread alone, whatever else runs
  const bool feasible = !result.stages.empty();
  const bool proven = feasible || std::isinf(result.lower_bound);
  const double gap = feasible ? result.seconds / result.lower_bound - 1 : proven ? 0 : 1;
  ++tally.cases;
  tally.exact += gap <= 1e-6 ? 1 : 0;
  tally.slow += seconds > 0.5 ? 1 : 0;
  tally.slowest = std::max(tally.slowest, seconds);
  tally.gap = std::max(tally.gap, gap);
  std::printf(R"({"shape":"%s","seed":%d,"nodes":%d,"downsets":%zu,"devices":%d,"GiB":%g,"objective":%.12g,)"
              R"("gap":%.3g,"seconds":%.4f,"stages":%zu,"checks":%d})"
              "\n",
              branching::kShapeNames[static_cast<int>(one.shape)], static_cast<int>(one.seed), one.nodes, one.downsets,
              devices, gigabytes, feasible ? result.seconds : -1, gap, seconds, result.stages.size(), result.checks);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    int seeds = 3, first = 0;
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      const auto value = [&] {
        if (i + 1 >= argc) throw ap::InvalidArgument(word + " needs a value");
        return std::atoi(argv[++i]);
      };
      if (word == "--seeds") {
        seeds = value();
      } else if (word == "--first") {
        first = value();
      } else if (word == "--write") {
        const int seed = value();
        std::cout << make_case(static_cast<std::uint64_t>(seed), static_cast<Shape>(value())).json;
        return EXIT_SUCCESS;
      } else {
        throw ap::InvalidArgument("unknown option " + word + "; known: --seeds --first --write SEED SHAPE");
      }
    }
    Tally tally;
    for (int seed = first; seed < first + seeds; ++seed) {
      for (const Shape shape : {Shape::kChains, Shape::kBlocks, Shape::kLayers, Shape::kFan}) {
        const Case one = make_case(static_cast<std::uint64_t>(seed), shape);
        for (const int devices : {2, 8, 32, 128, 512, 2048}) {
          for (const double gigabytes : {1.0, 2.0, 4.0, 8.0, 80.0}) run(one, devices, gigabytes, tally);
        }
      }
    }
    std::printf(R"({"cases":%d,"exact":%d,"slower_than_half_a_second":%d,"slowest":%.3f,"largest_gap":%.3g})"
                "\n",
                tally.cases, tally.exact, tally.slow, tally.slowest, tally.gap);
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::cerr << "plan_branching: " << error.what() << "\n";
    return EXIT_FAILURE;
  }
}
