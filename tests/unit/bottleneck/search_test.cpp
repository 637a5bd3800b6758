#include <autopar/bottleneck/search.hpp>

#include <catch_shim.hpp>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include <autopar/bottleneck/certificate.hpp>
#include <autopar/bottleneck/exact_bottleneck_staging.hpp>
#include <autopar/testing/random_models.hpp>

using namespace autopar;
using testing::Dice;

namespace {

/// Branches, nodes that cost nothing, degrees that some nodes cannot run, variants that differ in everything.
VariantTables random_tables(std::uint64_t seed, int max_nodes) {
  Dice dice(seed + 500'000);
  VariantTables tables;
  const int n = dice(1, max_nodes);
  for (int i = 0; i < n; ++i) tables.graph.add_node(10 + i);
  std::vector<double> bytes;
  for (int i = 1; i < n; ++i) {
    for (int edges = dice(0, 2); edges > 0; --edges) {
      tables.graph.add_edge(NodeId(dice(0, i - 1)), NodeId(i), 0);
      bytes.push_back(dice.chance(40) ? 0 : dice(1, 50));
    }
  }
  tables.tensor_degrees = dice.chance(50) ? std::vector<int>{1, 2} : std::vector<int>{1};
  const int microbatches = dice(1, 12);
  tables.devices = dice(1, 6);
  tables.most_replicas = microbatches;
  for (int d = 1; d <= std::min(microbatches, tables.devices); ++d) {
    if (microbatches % d != 0) continue;
    tables.replicas.push_back(d);
    tables.work_share.push_back(1.0 / d);
    tables.border_cost.push_back(0.01 / d);
    tables.parameter_cost.push_back(0.02 * (d - 1) / d);
  }
  tables.memory = dice(20, 200);
  const bool uniform = dice.chance(60);
  for (const NodeId node : tables.graph.nodes()) {
    auto& choices = tables.variants.emplace_back(tables.tensor_degrees.size());
    const bool nothing = dice.chance(20);
    const int parameters = dice(0, 20);
    for (std::size_t t = 0; t < choices.size(); ++t) {
      if (t > 0 && dice.chance(10)) continue;
      for (int v = dice(1, 3); v > 0; --v) {
        NodeVariant one{.name = "v" + std::to_string(v)};
        for (const EdgeId edge : tables.graph.in_edges(node))
          one.in.push_back(nothing ? 0 : bytes[edge.index()] * (uniform ? 1 : dice(1, 3)));
        for (const EdgeId edge : tables.graph.out_edges(node))
          one.out.push_back(nothing ? 0 : bytes[edge.index()] * (uniform ? 1 : dice(1, 3)));
        if (!nothing) {
          one.work = dice(0, 30);
          one.bytes_in_flight = dice(0, 30);
          one.bytes = dice(0, 30);
          one.parameters = uniform ? parameters : dice(0, 20);
        }
        choices[t].push_back(std::move(one));
      }
    }
  }
  return tables;
}

/// Data degrees that divide twelve micro-batches, up to the devices.
void add_replicas(VariantTables& tables, double parameter_cost) {
  tables.most_replicas = 12;
  for (const int d : {1, 2, 3, 4, 6, 12}) {
    if (d > tables.devices) continue;
    tables.replicas.push_back(d);
    tables.work_share.push_back(1.0 / d);
    tables.border_cost.push_back(0.05 / d);
    tables.parameter_cost.push_back(parameter_cost * (d - 1) / d);
  }
}

/// A fork, branches of one to three nodes, a join; costs that no two nodes share; up to five tensor degrees.
VariantTables branching_tables(std::uint64_t seed) {
  Dice dice(seed + 900'000);
  const auto cost = [&](int low, int high) { return dice(low * 1000, high * 1000) / 1000.0; };
  VariantTables tables;
  const NodeId fork = tables.graph.add_node(0);
  std::vector<NodeId> ends;
  for (int branches = dice(2, 4); branches > 0; --branches) {
    NodeId at = fork;
    for (int length = dice(1, branches > 2 ? 2 : 3); length > 0; --length) {
      const NodeId next = tables.graph.add_node(static_cast<std::int64_t>(tables.graph.node_count()));
      tables.graph.add_edge(at, next, 0);
      at = next;
    }
    ends.push_back(at);
  }
  const NodeId join = tables.graph.add_node(99);
  for (const NodeId end : ends) tables.graph.add_edge(end, join, 0);
  for (int degrees = dice(1, 5), t = 1; degrees > 0; --degrees, t *= 2) tables.tensor_degrees.push_back(t);
  tables.devices = dice(2, 24);
  add_replicas(tables, 0.02);
  tables.memory = cost(30, 300);
  const bool uniform = dice.chance(60);
  for (const NodeId node : tables.graph.nodes()) {
    auto& choices = tables.variants.emplace_back(tables.tensor_degrees.size());
    const double work = cost(1, 30), in_flight = cost(1, 20), bytes = cost(1, 20), parameters = cost(0, 20);
    std::vector<double> in, out;
    for (std::size_t e = 0; e < tables.graph.in_edges(node).size(); ++e) in.push_back(cost(0, 40));
    for (std::size_t e = 0; e < tables.graph.out_edges(node).size(); ++e) out.push_back(cost(0, 40));
    for (std::size_t t = 0; t < choices.size(); ++t) {
      if (t > 0 && dice.chance(5)) break;
      const double share = 1.0 / tables.tensor_degrees[t];
      const int variants = dice(1, 3);
      for (int v = 0; v < variants; ++v) {
        const double own = uniform ? 1 : cost(1, 2);
        NodeVariant one{.name = "v" + std::to_string(v), .in = in, .out = out};
        for (auto* edges : {&one.in, &one.out}) {
          for (double& edge : *edges) edge *= own;
        }
        one.work = work * (0.8 * share + 0.2) * (1 + 0.3 * v);
        one.bytes_in_flight = in_flight * share / (1 + 2 * v);
        one.bytes = bytes * share + 0.3 * v * in_flight;
        one.parameters = parameters * share * own;
        choices[t].push_back(std::move(one));
      }
    }
  }
  return tables;
}

/// A chain with expensive edges over most of it, and memory that lets nodes be recomputed: borders pay for an edge over
/// several of them only once.
VariantTables skipping_tables(std::uint64_t seed) {
  std::mt19937 random(static_cast<std::uint32_t>(seed));
  const auto below = [&](unsigned most) { return static_cast<int>(random() % most); };
  const auto cost = [&](double low, double high) { return low + (high - low) * (random() >> 8) * 0x1p-24; };
  VariantTables tables;
  const int n = 5 + below(3);
  std::vector<double> bytes;
  const auto connect = [&](int from, int to, double value) {
    tables.graph.add_edge(NodeId(from), NodeId(to), 0);
    bytes.push_back(value);
  };
  for (int i = 0; i < n; ++i) tables.graph.add_node(i);
  for (int i = 0; i + 1 < n; ++i) connect(i, i + 1, cost(0, 2));
  for (int skips = 1 + below(2); skips > 0; --skips) {
    const int from = below(2), to = n - 1 - below(2);
    connect(from, to, cost(5, 60));
  }
  tables.tensor_degrees = {1};
  tables.devices = 4 + below(8);
  add_replicas(tables, 0);
  tables.memory = 100;
  for (const NodeId node : tables.graph.nodes()) {
    auto& choices = tables.variants.emplace_back(1);
    const double work = cost(8, 12), in_flight = cost(10, 20);
    for (const bool again : {false, true}) {
      NodeVariant one{.name = again ? "again" : "whole", .work = work * (again ? 1.5 : 1)};
      one.bytes_in_flight = in_flight * (again ? 0.1 : 1);
      one.bytes = cost(20, 60);
      for (const EdgeId edge : tables.graph.in_edges(node)) one.in.push_back(bytes[edge.index()]);
      for (const EdgeId edge : tables.graph.out_edges(node)) one.out.push_back(bytes[edge.index()]);
      choices[0].push_back(std::move(one));
    }
  }
  return tables;
}

/// Every stage of every node, every degree, every variant.
class EveryPlan {
 public:
  explicit EveryPlan(const VariantTables& tables) : tables_(tables), stage_of_(tables.graph.node_count(), 0) {}

  double best() {
    for (int stages = 1; stages <= static_cast<int>(stage_of_.size()); ++stages) assign(0, stages);
    return best_;
  }

 private:
  void assign(std::size_t node, int stages) {
    if (node < stage_of_.size()) {
      for (stage_of_[node] = 0; stage_of_[node] < stages; ++stage_of_[node]) assign(node + 1, stages);
      return;
    }
    for (const EdgeId edge : tables_.graph.edges()) {
      if (stage_of_[tables_.graph.source(edge).index()] > stage_of_[tables_.graph.target(edge).index()]) return;
    }
    for (int s = 0; s < stages; ++s) {
      if (std::find(stage_of_.begin(), stage_of_.end(), s) == stage_of_.end()) return;
    }
    run(stages - 1, 0, 0, 0);
  }

  void run(int stage, int sum, int devices, double slowest) {
    if (stage < 0) {
      best_ = std::min(best_, slowest);
      return;
    }
    for (std::size_t t = 0; t < tables_.tensor_degrees.size(); ++t) {
      for (std::size_t d = 0; d < tables_.replicas.size(); ++d) {
        const int replicas = tables_.replicas[d], used = devices + replicas * tables_.tensor_degrees[t];
        if (used > tables_.devices || sum + replicas > tables_.most_replicas) continue;
        const double in_flight = std::ceil(static_cast<double>(sum + replicas) / replicas);
        const double own = fastest(stage, t, d, in_flight, 0, 0, 0);
        if (std::isfinite(own)) run(stage - 1, sum + replicas, used, std::max(slowest, own));
      }
    }
  }

  double fastest(int stage, std::size_t t, std::size_t d, double in_flight, std::size_t node, double bytes,
                 double spent) {
    if (bytes > tables_.memory) return std::numeric_limits<double>::infinity();
    while (node < stage_of_.size() && stage_of_[node] != stage) ++node;
    if (node == stage_of_.size()) return spent;
    double best = std::numeric_limits<double>::infinity();
    const NodeId id = NodeId::of(node);
    for (const NodeVariant& v : tables_.variants[node][t]) {
      double border = 0;
      std::size_t e = 0;
      for (const NodeId other : tables_.graph.predecessors(id))
        border += stage_of_[other.index()] == stage ? (++e, 0) : v.in[e++];
      e = 0;
      for (const NodeId other : tables_.graph.successors(id))
        border += stage_of_[other.index()] == stage ? (++e, 0) : v.out[e++];
      const double seconds =
          v.work * tables_.work_share[d] + border * tables_.border_cost[d] + v.parameters * tables_.parameter_cost[d];
      best = std::min(best, fastest(stage, t, d, in_flight, node + 1, bytes + v.bytes_in_flight * in_flight + v.bytes,
                                    spent + seconds));
    }
    return best;
  }

  const VariantTables& tables_;
  std::vector<int> stage_of_;
  double best_ = std::numeric_limits<double>::infinity();
};

}  // namespace

TEST_CASE("solve_bottleneck: equals brute force, certificate holds", "[equality]") {
  int feasible = 0, pipelined = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    CAPTURE(seed);
    const VariantTables tables = random_tables(seed, seed % 10 == 0 ? 5 : 4);
    const BottleneckResult found = solve_bottleneck(tables);
    const double best = EveryPlan(tables).best();
    REQUIRE(found.stages.empty() == !std::isfinite(best));
    const CertificateVerdict verdict = check_certificate(tables, {found.stages, found.seconds, found.lower_bound});
    CAPTURE(verdict.reason);
    REQUIRE(verdict.accepted);
    if (found.stages.empty()) {
      REQUIRE(std::isinf(found.lower_bound));
      continue;
    }
    REQUIRE(found.seconds == Approx(best).epsilon(1e-9).margin(0));
    REQUIRE(found.lower_bound <= best * (1 + 1e-12));
    REQUIRE(found.lower_bound >= best * (1 - 1e-8));
    ++feasible;
    pipelined += found.stages.size() > 1 ? 1 : 0;
    if (best == 0) continue;
    CHECK_FALSE(check_certificate(tables, {found.stages, found.seconds, found.lower_bound * 1.001}).accepted);
    CHECK_FALSE(check_certificate(tables, {found.stages, found.seconds * 0.999, found.lower_bound}).accepted);
    CHECK_FALSE(check_certificate(tables, {{}, 0, std::numeric_limits<double>::infinity()}).accepted);
    BottleneckCertificate tampered{found.stages, found.seconds, found.lower_bound};
    tampered.stages.front().nodes.pop_back();
    tampered.stages.front().variants.pop_back();
    CHECK_FALSE(check_certificate(tables, tampered).accepted);
    const CertificateVerdict loose = check_certificate(tables, {found.stages, found.seconds, found.lower_bound / 2});
    CHECK(loose.accepted);
    CHECK(loose.gap == Approx(1).epsilon(1e-6));
  }
  CHECK(feasible > 500);
  CHECK(pipelined > 100);
}

TEST_CASE("solve_bottleneck: exact with edges that skip stages", "[equality]") {
  int pipelined = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    CAPTURE(seed);
    const VariantTables tables = skipping_tables(seed);
    const BottleneckResult found = solve_bottleneck(tables);
    const CertificateVerdict verdict = check_certificate(tables, {found.stages, found.seconds, found.lower_bound});
    CAPTURE(verdict.reason);
    REQUIRE(verdict.accepted);
    if (found.stages.empty()) continue;
    REQUIRE(verdict.gap <= 1e-8);
    pipelined += found.stages.size() > 2 ? 1 : 0;
  }
  CHECK(pipelined > 800);
}

TEST_CASE("solve_bottleneck: exact on branching graphs, bound is tight", "[equality]") {
  int feasible = 0, pipelined = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    const VariantTables tables = branching_tables(seed);
    const BottleneckResult found = solve_bottleneck(tables);
    const CertificateVerdict verdict = check_certificate(tables, {found.stages, found.seconds, found.lower_bound});
    CAPTURE(verdict.reason);
    REQUIRE(verdict.accepted);
    REQUIRE(verdict.gap <= 1e-8);
    if (found.stages.empty()) continue;
    ++feasible;
    pipelined += found.stages.size() > 1 ? 1 : 0;
    CHECK_FALSE(check_certificate(tables, {found.stages, found.seconds, found.lower_bound * 1.001}).accepted);
    const SlowestStage objective(tables);
    const PipelineTerms terms = objective(found.stages);
    CHECK(objective.fits(terms));
    CHECK(objective.seconds(terms).value() == Approx(found.seconds).epsilon(1e-12));
  }
  CHECK(feasible > 200);
  CHECK(pipelined > 100);
}

TEST_CASE("solve_bottleneck: a spent budget leaves plan, bound and gap") {
  int open = 0, planned = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const VariantTables tables = branching_tables(seed);
    const BottleneckResult exact = solve_bottleneck(tables);
    for (const ExactBottleneckStaging small :
         {ExactBottleneckStaging{.max_states = 100}, ExactBottleneckStaging{.max_states = 3000},
          ExactBottleneckStaging{.max_tails = 3}}) {
      const BottleneckResult found = solve_bottleneck(tables, small);
      CHECK(found.states <= 2 * small.max_states);
      if (exact.stages.empty()) CHECK(found.stages.empty());
      if (found.stages.empty()) continue;
      ++planned;
      CHECK(found.seconds >= exact.seconds * (1 - 1e-12));
      CHECK(found.lower_bound <= exact.seconds * (1 + 1e-12));
      open += found.lower_bound < found.seconds * (1 - 1e-6) ? 1 : 0;
      const CertificateVerdict verdict = check_certificate(tables, {found.stages, found.seconds, found.lower_bound});
      CAPTURE(verdict.reason);
      CHECK(verdict.accepted);
    }
  }
  CHECK(open > 50);
  CHECK(planned > 200);
}

TEST_CASE("solve_bottleneck: never slower with more devices or memory") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    VariantTables tables = branching_tables(seed);
    const double before = solve_bottleneck(tables).seconds;
    tables.memory *= 1.5;
    const double roomier = solve_bottleneck(tables).seconds;
    CHECK((std::isinf(before) || roomier <= before * (1 + 2e-9)));
    ++tables.devices;
    CHECK((std::isinf(roomier) || solve_bottleneck(tables).seconds <= roomier * (1 + 2e-9)));
  }
}

TEST_CASE("check_certificate: accepts a worse plan, not a false bound") {
  VariantTables tables = random_tables(3, 1);
  tables = {};
  for (int i = 0; i < 4; ++i) tables.graph.add_node(i);
  for (int i = 0; i < 3; ++i) tables.graph.add_edge(NodeId(i), NodeId(i + 1), 0);
  tables.tensor_degrees = {1};
  tables.replicas = {1};
  tables.work_share = {1};
  tables.border_cost = tables.parameter_cost = {0};
  tables.devices = 2;
  tables.most_replicas = 2;
  tables.memory = 100;
  for (std::size_t i = 0; i < 4; ++i) {
    tables.variants.push_back({{NodeVariant{
        .name = "only", .work = 1, .in = std::vector<double>(i > 0, 0.0), .out = std::vector<double>(i < 3, 0.0)}}});
  }
  const BottleneckResult best = solve_bottleneck(tables);
  CHECK(best.seconds == 2);
  BottleneckCertificate worse{
      {{{NodeId(0)}, 1, 1, {0}}, {{NodeId(1), NodeId(2), NodeId(3)}, 1, 1, {0, 0, 0}}}, 3, best.lower_bound};
  CHECK(check_certificate(tables, worse).accepted);
  CHECK(check_certificate(tables, worse).gap == Approx(0.5).epsilon(1e-6));
  worse.lower_bound = 2.002;  // 0.1 % above the optimum, below this plan
  CHECK_FALSE(check_certificate(tables, worse).accepted);
}

TEST_CASE("solve_bottleneck: malformed tables are refused by name") {
  const auto refused = [](const std::function<void(VariantTables&)>& spoil, const std::string& part) {
    VariantTables tables = random_tables(10, 5);
    while (tables.graph.node_count() < 2) tables = random_tables(20, 5);
    spoil(tables);
    CHECK_THROWS_WITH(solve_bottleneck(tables), Catch::Contains(part));
  };
  refused([](VariantTables& t) { t.devices = 0; }, "at least one device");
  refused([](VariantTables& t) { t.memory = -1; }, "memory");
  refused([](VariantTables& t) { t.memory = std::nan(""); }, "memory");
  refused([](VariantTables& t) { t.variants[0][0][0].work = -1; }, "node 10");
  refused([](VariantTables& t) { t.variants[0][0][0].bytes = std::nan(""); }, "not a number");
  refused([](VariantTables& t) { t.variants[1] = {{}}; }, "no variant");
  refused(
      [](VariantTables& t) {
        t.graph.add_edge(NodeId(0), NodeId(1), 0);
        t.graph.add_edge(NodeId(1), NodeId(0), 0);
      },
      "cycle");
}
