// How exact and how fast plans for branching graphs are: generated instances of 24 to 60 nodes with 2,000 to 50,000
// downsets, on several numbers of devices, with tight and ample memory. One JSON line a case, then a summary of each
// family. Seconds are of this process alone, whatever else runs.
//
//   plan_branching [--profile INSTANCE.json] [--seeds N] [--first SEED] [--family NAME] [--write]
//
// With a profile (a chain in the format of msr-fiddle/piper) its layers are wired into branching graphs too. --write
// prints the instances instead of planning them.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <autopar/bottleneck/exact_bottleneck_staging.hpp>
#include <autopar/bottleneck/instance_file.hpp>
#include <autopar/graph/algorithms/downsets.hpp>
#include <autopar/io/file.hpp>
#include <autopar/plan/planner.hpp>

#include "instances.hpp"
#include "profile_instances.hpp"

namespace ap = autopar;
using branching::Instance;
using branching::ProfileInstance;
using branching::Shape;
using branching::Wiring;

namespace {

constexpr std::size_t kFewest = 2'000, kMost = 50'000;
constexpr double kGiB = 1024.0 * 1024 * 1024;

std::size_t downsets(int nodes, const std::vector<std::pair<int, int>>& edges) {
  ap::Graph<char, char> graph;
  for (int i = 0; i < nodes; ++i) graph.add_node();
  for (const auto& [from, to] : edges) graph.add_edge(ap::NodeId(from), ap::NodeId(to));
  return ap::count_downsets(graph, kMost).value_or(0);
}

struct Case {
  std::string family;
  std::uint64_t seed;
  std::string json;
  int nodes;
  std::size_t downsets;
};

/// The first instance from `seed` on whose number of downsets is in range.
template <class Make>
Case make_case(const std::string& family, std::uint64_t seed, const Make& make) {
  for (std::uint64_t attempt = 0;; ++attempt) {
    auto instance = make(seed + 1000 * attempt);
    const std::size_t count = downsets(instance.nodes(), instance.edges());
    if (instance.nodes() <= 60 && count >= kFewest) return {family, seed, instance.json(), instance.nodes(), count};
  }
}

struct Tally {
  std::string family;
  int cases = 0, exact = 0, slow = 0;
  double slowest = 0, gap = 0;
};

void run(const Case& one, int devices, double gigabytes, Tally& tally) {
  const auto instance = ap::parse_instance(one.json, "generated", {devices, gigabytes * kGiB, 25 * kGiB});
  const std::clock_t begin = std::clock();
  const ap::BottleneckResult result =
      ap::Planner<ap::SlowestStage>{}.plan(instance.graph, instance.costs, instance.limits);
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  const bool feasible = !result.stages.empty();
  const bool proven = feasible || std::isinf(result.lower_bound);
  const double gap = feasible ? result.seconds / result.lower_bound - 1 : proven ? 0 : 1;
  ++tally.cases;
  tally.exact += gap <= 1e-6 ? 1 : 0;
  tally.slow += seconds > 0.5 ? 1 : 0;
  tally.slowest = std::max(tally.slowest, seconds);
  tally.gap = std::max(tally.gap, gap);
  std::printf(R"({"family":"%s","seed":%d,"nodes":%d,"downsets":%zu,"devices":%d,"GiB":%g,"objective":%.12g,)"
              R"("gap":%.3g,"seconds":%.4f,"stages":%zu,"checks":%d,"states":%lld})"
              "\n",
              one.family.c_str(), static_cast<int>(one.seed), one.nodes, one.downsets, devices, gigabytes,
              feasible ? result.seconds : -1, gap, seconds, result.stages.size(), result.checks,
              static_cast<long long>(result.states));
  std::fflush(stdout);
}

struct Arguments {
  int seeds = 3, first = 0;
  std::string profile, family;
  bool write = false;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 >= argc) throw ap::InvalidArgument(word + " needs a value");
      return argv[++i];
    };
    if (word == "--seeds") {
      arguments.seeds = std::atoi(value().c_str());
    } else if (word == "--first") {
      arguments.first = std::atoi(value().c_str());
    } else if (word == "--profile") {
      arguments.profile = value();
    } else if (word == "--family") {
      arguments.family = value();
    } else if (word == "--write") {
      arguments.write = true;
    } else {
      throw ap::InvalidArgument("unknown option " + word + "; known: --profile --seeds --first --family --write");
    }
  }
  return arguments;
}

std::vector<Case> make_cases(const Arguments& arguments) {
  std::optional<ap::PlanningInstance> profile;
  if (!arguments.profile.empty())
    profile = ap::parse_instance(ap::read_text_file(arguments.profile), arguments.profile);
  std::vector<Case> cases;
  const auto wanted = [&](const char* family) { return arguments.family.empty() || arguments.family == family; };
  for (const Wiring wiring : {Wiring::kTowers, Wiring::kForkJoin, Wiring::kSkips, Wiring::kGlue, Wiring::kMasks}) {
    const char* name = branching::kWiringNames[static_cast<int>(wiring)];
    for (int seed = arguments.first; profile && wanted(name) && seed < arguments.first + arguments.seeds; ++seed) {
      cases.push_back(make_case(name, static_cast<std::uint64_t>(seed),
                                [&](std::uint64_t from) { return ProfileInstance(from, wiring, *profile); }));
    }
  }
  for (const Shape shape : {Shape::kChains, Shape::kBlocks, Shape::kLayers, Shape::kFan}) {
    const char* name = branching::kShapeNames[static_cast<int>(shape)];
    for (int seed = arguments.first; wanted(name) && seed < arguments.first + arguments.seeds; ++seed) {
      cases.push_back(
          make_case(name, static_cast<std::uint64_t>(seed), [&](std::uint64_t from) { return Instance(from, shape); }));
    }
  }
  return cases;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments = parse(argc, argv);
    std::vector<Tally> tallies;
    for (const Case& one : make_cases(arguments)) {
      if (arguments.write) {
        std::cout << one.json;
        continue;
      }
      if (tallies.empty() || tallies.back().family != one.family) tallies.push_back({one.family});
      for (const int devices : {2, 8, 32, 128, 512, 2048}) {
        for (const double gigabytes : {1.0, 2.0, 4.0, 8.0, 80.0}) run(one, devices, gigabytes, tallies.back());
      }
    }
    for (const Tally& tally : tallies) {
      std::printf(R"({"family":"%s","cases":%d,"exact":%d,"slower_than_half_a_second":%d,"slowest":%.3f,)"
                  R"("largest_gap":%.3g})"
                  "\n",
                  tally.family.c_str(), tally.cases, tally.exact, tally.slow, tally.slowest, tally.gap);
    }
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::cerr << "plan_branching: " << error.what() << "\n";
    return EXIT_FAILURE;
  }
}
