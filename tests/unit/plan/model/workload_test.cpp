#include <autopar/plan/model/workload.hpp>

#include <catch_shim.hpp>

#include <set>

#include <autopar/cost/roofline.hpp>
#include <autopar/plan/memory/memory.hpp>
#include <autopar/plan/model/pipeline_of.hpp>
#include <autopar/testing/random_models.hpp>

#include "unit/plan/random_stagings.hpp"

using namespace autopar;
using testing::Dice;

namespace {

/// What the parameters that a stage reads hold together, trainable ones first.
struct ReadByStage {
  std::int64_t bytes[2] = {0, 0}, elements[2] = {0, 0};
  std::int64_t copies = 0, copied = 0;  // bytes of copies, and of the parameters that they are of
  friend bool operator==(const ReadByStage&, const ReadByStage&) = default;
};

std::vector<ReadByStage> read_by_stages(const Workload& work, const Staging& staging) {
  std::vector<ReadByStage> out;
  for (const auto& nodes : nodes_by_stage(staging)) {
    std::set<ParameterId> read;
    for (const NodeId node : nodes) read.insert(work.graph[node].parameters.begin(), work.graph[node].parameters.end());
    ReadByStage& sums = out.emplace_back();
    for (const ParameterId parameter : read) {
      const ParameterProfile& one = work.parameters[parameter.index()];
      sums.bytes[one.trainable ? 0 : 1] += one.bytes.value();
      sums.elements[one.trainable ? 0 : 1] += one.elements;
      sums.copies += one.copy.value();
      sums.copied += one.copy > Bytes(0) ? one.bytes.value() : 0;
    }
  }
  return out;
}

std::int64_t gradient_bytes(const SizedPipeline& sized) {
  std::int64_t sum = 0;
  for (const auto& buckets : sized.bucket_bytes) {
    for (const Bytes bucket : buckets) sum += bucket.value();
  }
  return sum;
}

/// Nodes that read up to 40 parameters each, some of them tied.
ModelProfile with_many_parameters(Dice& dice) {
  ModelProfile model = testing::random_model(dice, 8);
  for (const NodeId node : model.graph.nodes()) {
    for (int more = dice(0, 40); more > 0; --more) {
      const bool trainable = !dice.chance(20);
      model.graph[node].parameters.push_back(ParameterId::of(model.parameters.size()));
      model.parameters.push_back({"more", Bytes(dice(0, 9999)), trainable, dice(0, 2500)});
      if (more % 3 == 0) model.parameters.back().copy = model.parameters.back().bytes / 2;
      if (dice.chance(5)) model.graph[NodeId(0)].parameters.push_back(model.graph[node].parameters.back());
    }
  }
  return model;
}

}  // namespace

TEST_CASE("bundle_parameters: every stage of any staging reads the same", "[laws]") {
  int fewer = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    Dice dice(seed + 81'000);
    const ModelProfile model = with_many_parameters(dice);
    const Cluster cluster = testing::small_cluster(6);
    const RooflineCost cost(cluster);
    const Workload fine = make_workload(model, cost);
    Workload bundled = fine;
    const Bytes bundle(dice(1, 60'000));
    detail::bundle_parameters(bundled, bundle);
    CHECK(bundled.parameters.size() <= fine.parameters.size());
    fewer += bundled.parameters.size() < fine.parameters.size() ? 1 : 0;
    for (const NodeId node : bundled.graph.nodes()) {
      const auto& parameters = bundled.graph[node].parameters;
      CHECK(std::is_sorted(parameters.begin(), parameters.end()));
      CHECK(std::adjacent_find(parameters.begin(), parameters.end()) == parameters.end());
    }
    for (const ParameterProfile& one : bundled.parameters) CHECK(one.bytes < bundle + Bytes(40'001));

    const Staging staging = test::random_staging(dice, fine, 6);
    CHECK(read_by_stages(bundled, staging) == read_by_stages(fine, staging));
    const auto ranks = place(staging.replicas, RankPlacement::kReplicasTogether);
    CHECK(gradient_bytes(make_pipeline(bundled, staging, ranks, 6)) ==
          gradient_bytes(make_pipeline(fine, staging, ranks, 6)));

    // Shares of bundles are rounded up once, and not for each parameter; so are states.
    Constraints constraints;
    constraints.optimizer_state_factor = dice(0, 4) / 2.0;
    const auto rounding = static_cast<std::int64_t>(fine.parameters.size()) * (constraints.gradient_copies + 2);
    for (int zero = 0; zero <= 3; ++zero) {
      const auto exact = fixed_memory(fine, constraints, staging, zero);
      const auto about = fixed_memory(bundled, constraints, staging, zero);
      for (std::size_t s = 0; s < exact.size(); ++s) {
        CHECK(about[s].total() <= exact[s].total());
        CHECK(exact[s].total() <= about[s].total() + Bytes(rounding));
        CHECK(about[s].gathered == exact[s].gathered);
      }
    }
  }
  CHECK(fewer > 300);
}

TEST_CASE("bundle_parameters: tied or mixed-kind ones are not bundled") {
  ModelProfile model = testing::chain(2, 1e6, 1000, 400);
  const auto add = [&](int node, bool trainable) {
    model.graph[NodeId(node)].parameters.push_back(ParameterId::of(model.parameters.size()));
    model.parameters.push_back({"more", Bytes(10), trainable, 5});
    return model.graph[NodeId(node)].parameters.back();
  };
  for (int i = 0; i < 3; ++i) (void)add(0, true);
  (void)add(0, false);
  model.graph[NodeId(1)].parameters.push_back(add(0, true));  // tied
  const RooflineCost cost(testing::small_cluster(2));
  Workload work = make_workload(model, cost);
  detail::bundle_parameters(work, Bytes(1'000'000));
  std::vector<std::int64_t> bytes;
  for (const auto& parameter : work.parameters) bytes.push_back(parameter.bytes.value());
  std::sort(bytes.begin(), bytes.end());
  CHECK(bytes == std::vector<std::int64_t>{10, 10, 1000, 1030});
  CHECK(work.graph[NodeId(0)].parameters.size() == 3);
  CHECK(work.graph[NodeId(1)].parameters.size() == 2);
}
