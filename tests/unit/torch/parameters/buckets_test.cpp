#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>
#include <temp_folder.hpp>
#include <trace_rows.hpp>

#include <autopar/autopar.hpp>
#include <autopar/cost/roofline.hpp>
#include <autopar/io/file.hpp>
#include <autopar/plan/model/parameter_groups.hpp>
#include <autopar/plan/model/pipeline_of.hpp>
#include <autopar/plan/model/tensor_shards.hpp>
#include <autopar/runtime/loopback.hpp>

#include "capture/trace/capture.hpp"
#include "torch/cost/profile.hpp"
#include "torch/engine/rank_runtime.hpp"
#include "torch/parameters/parameter_store.hpp"
#include "torch/passes/cast_hoist.hpp"
#include "torch/passes/linear_fold.hpp"
#include "torch/staging/shard_units.hpp"
#include "torch/staging/staged_graph.hpp"

// What the planner counts in buckets is what the runtime makes of them.
namespace buckets_test {

using namespace autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

/// Declared in another order than it is read, with a tied table, a frozen bias and sizes that do not align.
struct Net : nn::Module {
  Net() {
    nets::register_all(*this, "out", out, "table", table, "norm", norm, "first", first, "second", second);
    first->bias.requires_grad_(false);
    scale = register_parameter("scale", torch::tensor(1.5));
  }
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& y) {
    auto h = norm(torch::relu(first(F::linear(x, table->weight))));
    h = torch::relu(second(h)) * scale;
    return F::cross_entropy(out(F::linear(h, table->weight)), y);
  }
  nn::Linear out{7, 29};
  nn::Embedding table{7, 13};
  nn::LayerNorm norm{nn::LayerNormOptions({31})};
  nn::Linear first{7, 31}, second{31, 13};
  torch::Tensor scale;
};

/// The model on its way to a plan of so many stages, of two replicas each.
struct Divided {
  Divided(int stages, bool casts) {
    const std::vector<trace::InputSpec> specs{trace::input_spec(torch::zeros({4, 13})),
                                              trace::input_spec(torch::zeros({4}, at::kLong))};
    trace::CaptureOptions options;
    if (casts) options.autocast = autopar::trace::Autocast{at::kBFloat16, c10::DeviceType::CPU};
    graph = passes::fold_linear(trace::capture(
        *net, specs,
        [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> { return {net->forward(in[0], in[1])}; },
        options));
    if (casts) graph = passes::hoist_parameter_casts(std::move(graph));
    batch_plan = algebra::analyze_batch(graph);
    profile = cost::profile_graph(graph, batch_plan, c10::DeviceType::CPU);
    const auto atoms = profile.atoms.atoms.size();
    staging = {std::vector<int>(atoms, 0), std::vector<int>(static_cast<std::size_t>(stages), 2), 1};
    for (std::size_t atom = 0; atom < atoms; ++atom)
      staging.stage_of[atom] = static_cast<int>(atom * static_cast<std::size_t>(stages) / atoms);
    staging::StageMap map;
    for (const NodeId atom : profile.atoms.atom_of)
      map.stage_of.push_back(atom.valid() ? StageId(staging.stage_of[atom.index()]) : StageId::none());
    for (int s = 0; s < stages; ++s) {
      map.meshes.push_back({Rank(2 * s), Rank(2 * s + 1)});
      plan.stages.emplace_back().mesh = map.meshes.back();
    }
    plan.world = 2 * stages;
    division = staging::divide(graph, batch_plan, map, plan.world);
    meshes = map.meshes;
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      if (!batch_plan.ops[i].in_stage) continue;
      for_each_input(graph.ops[i], [&](ValueId value) {
        const auto& info = graph.value(value);
        if (info.kind != ValueKind::kParameter) return;
        auto& of_parameter = store.named(info.name).stages;
        if (std::find(of_parameter.begin(), of_parameter.end(), map.stage_of[i]) == of_parameter.end())
          of_parameter.push_back(map.stage_of[i]);
      });
    }
  }

  [[nodiscard]] const parameters::ManagedTensor& tensor_of(ValueId value) const {
    return store.named(graph.value(value).name);
  }
  [[nodiscard]] std::vector<parameters::ShardUnit> units() const {
    return staging::shard_units(graph, batch_plan, division, profile.atoms, plan,
                                [&](ValueId value) -> const parameters::ManagedTensor& { return tensor_of(value); });
  }
  [[nodiscard]] std::string name_of(ParameterId id) const {
    return store.named(profile.model.parameters[id.index()].name).name();
  }

  std::shared_ptr<Net> net = std::make_shared<Net>();
  parameters::ParameterStore store{*net, Rank(0)};
  OpGraph graph;
  algebra::BatchSemantics batch_plan;
  cost::GraphProfile profile;
  Staging staging;
  staging::StagedGraph division;
  Plan plan;
  std::vector<Mesh> meshes;
};

/// Elements, then (name, offset) of each tensor.
using Described = std::pair<std::int64_t, std::vector<std::pair<std::string, std::int64_t>>>;
/// Buckets in their order, by the ranks that sum them.
using Buckets = std::map<std::vector<Rank>, std::vector<Described>>;

std::string text_of(const Buckets& buckets) {
  std::string text;
  for (const auto& [ranks, of_group] : buckets) {
    text += "ranks from " + std::to_string(ranks.front().value()) + ", " + std::to_string(ranks.size()) + ":\n";
    for (const auto& [elements, tensors] : of_group) {
      text += " " + std::to_string(elements) + ":";
      for (const auto& [name, offset] : tensors) text += " " + name + "@" + std::to_string(offset);
      text += "\n";
    }
  }
  return text;
}

/// @param sharded  whether each rank has an equal part
void add(Buckets& out, const Divided& divided, const ParameterGroup& group, const std::vector<ParameterId>& members,
         const BucketCut& cut, bool sharded) {
  std::vector<Described> buckets;
  for (const auto& bucket : cut.buckets) {
    const auto ranks = static_cast<std::int64_t>(group.ranks.size());
    buckets.push_back({sharded ? bucket.elements_in_shards(ranks) : bucket.elements, {}});
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    buckets[static_cast<std::size_t>(cut.places[i].bucket)].second.emplace_back(divided.name_of(members[i]),
                                                                                cut.places[i].offset);
  }
  auto& all = out[group.ranks];
  all.insert(all.end(), buckets.begin(), buckets.end());
}

TEST_CASE("buckets: planner and runtime agree at every ZeRO level", "[buckets]") {
  int several = 0;
  for (const int stages : {1, 2}) {
    for (const bool casts : {false, true}) {
      Divided divided(stages, casts);
      Cluster cluster;
      cluster.devices = 4;
      cluster.levels = {{"link", 4, {}}};
      const RooflineCost costs(cluster);
      const Workload work = make_workload(divided.profile.model, costs);
      const auto groups = parameter_groups(work, divided.staging, divided.meshes);
      REQUIRE(groups.size() == (stages == 1 ? 1 : 3));
      for (const std::int64_t size : {1, 100, 500, 2'000, 4'000, 1 << 20}) {
        divided.plan.buckets = {Bytes(size)};
        for (const int zero : {0, 1, 2, 3}) {
          CAPTURE(stages, casts, size, zero);
          divided.plan.zero = zero;
          Buckets planned, made;
          for (const auto& group : groups) {
            if (zero == 0) {
              add(planned, divided, group, group.parameters, buckets_of(work, group, divided.plan.buckets), false);
              continue;
            }
            const ShardedBuckets sharded = sharded_buckets_of(work, group, divided.plan.buckets, zero);
            REQUIRE(sharded.whole.places.empty());
            add(planned, divided, group, group.parameters, sharded.units, true);
          }
          if (zero == 0) {
            const auto sized =
                make_pipeline(work, divided.staging, divided.meshes, divided.plan.world, divided.plan.buckets);
            std::map<std::vector<Rank>, int> counts;
            for (const auto& group : sized.pipeline.groups) counts[group.ranks] = group.buckets;
            for (const auto& of_stage : divided.meshes) {
              const engine::RankRuntime runtime(
                  divided.graph, divided.batch_plan, divided.division, of_stage.rank(0), at::kCPU,
                  engine::Stage::Leaves{.handle = [&](ValueId leaf) { return divided.tensor_of(leaf).handle; }}, false,
                  {}, {}, divided.plan.buckets);
              for (std::size_t g = 0; g < runtime.bucket_layouts().size(); ++g) {
                const auto& members = runtime.pipeline().groups[g].ranks;
                const auto& layout = runtime.bucket_layouts()[g];
                std::vector<Described> buckets;
                for (const auto& bucket : layout.buckets()) buckets.push_back({bucket.elements, {}});
                for (const auto& place : layout.places()) {
                  buckets[static_cast<std::size_t>(place.bucket)].second.emplace_back(
                      divided.tensor_of(ValueId::of(place.form.key)).name(), place.offset);
                }
                CHECK(counts.at(members) == runtime.pipeline().groups[g].buckets);
                made[members] = buckets;
              }
            }
          } else {
            for (const auto& unit : divided.units()) {
              auto& own =
                  made[unit.ranks].emplace_back(unit.elements, std::vector<std::pair<std::string, std::int64_t>>{});
              for (const auto& place : unit.places) own.second.emplace_back(place.names.front(), place.offset);
            }
          }
          CHECK(text_of(planned) == text_of(made));
          for (const auto& [members, buckets] : planned) several += buckets.size() > 1 ? 1 : 0;
        }
      }
    }
  }
  CHECK(several > 50);
}

TEST_CASE("buckets: tensor shards are cut as in the planner", "[buckets]") {
  Divided divided(1, false);
  const Mesh mesh({Rank(0), Rank(1), Rank(2), Rank(3)}, 2);
  divided.staging.tensor = {2};
  divided.plan.world = 4;
  divided.plan.stages.front().mesh = mesh;
  staging::StageMap map{std::vector<StageId>(divided.graph.ops.size(), StageId(0)), {mesh}, {}};
  divided.division = staging::divide(divided.graph, divided.batch_plan, map, 4);
  for (auto& tensor : divided.store.tensors()) tensor.replicas_of_shard = {{Rank(0), Rank(2)}, {Rank(1), Rank(3)}};
  Cluster cluster;
  cluster.devices = 4;
  cluster.levels = {{"link", 4, {}}};
  const RooflineCost costs(cluster);
  const Workload whole = make_workload(divided.profile.model, costs), work = in_shards(whole, divided.staging, false);
  bool uneven = false;
  for (std::size_t r = 0; r < work.region_shards.size(); ++r) {
    if (work.region_shards[r] == 1) continue;
    for (const auto& [leaf, slices] : divided.profile.region_slices[r]) {
      auto& tensor = divided.store.named(divided.graph.value(leaf).name);
      tensor.slices = slices;
      uneven = uneven || tensor.sizes_of_shard(0) != tensor.sizes_of_shard(1);
    }
  }
  REQUIRE(uneven);
  const auto groups = parameter_groups(work, divided.staging, {mesh});
  REQUIRE(groups.size() == 2);
  for (const std::int64_t size : {1, 100, 500, 2'000, 4'000, 1 << 20}) {
    divided.plan.buckets = {Bytes(size)};
    for (const int zero : {1, 2, 3}) {
      CAPTURE(size, zero);
      divided.plan.zero = zero;
      Buckets planned, made, names;
      const ShardedBuckets sharded = sharded_buckets_of(work, groups.front(), divided.plan.buckets, zero);
      add(planned, divided, groups.front(), groups.front().parameters, sharded.units, true);
      for (const auto& unit : divided.units()) {
        auto& own = made[unit.ranks].emplace_back(unit.elements, std::vector<std::pair<std::string, std::int64_t>>{});
        auto& named = names[unit.ranks].emplace_back(0, std::vector<std::pair<std::string, std::int64_t>>{});
        for (const auto& place : unit.places) {
          own.second.emplace_back(place.names.front(), place.offset);
          named.second.emplace_back(place.names.front(), 0);
        }
      }
      CHECK(text_of(planned) == text_of({*made.find(groups.front().ranks)}));
      CHECK(names.at(groups[0].ranks) == names.at(groups[1].ranks));
      CHECK(made.at(groups[0].ranks) != made.at(groups[1].ranks));
    }
  }
}

struct Trained {
  std::vector<at::Tensor> parameters;
  Plan plan;
  std::size_t sums = 0;  ///< of rank 0 in the last step
};

Trained train(int zero, const std::optional<Plan>& plan) {
  const TempFolder folder;
  Trained out;
  loopback::run(2, [&](World& world) {
    std::shared_ptr<Net> net;
    {
      static std::mutex generator;
      const std::lock_guard lock(generator);
      torch::manual_seed(3);
      net = std::make_shared<Net>();
    }
    AutoParallel<Net> model(world, net,
                            {.microbatches = 2, .zero = zero, .replicas = {2}, .trace_file = folder / "trace.json"});
    torch::optim::Adam optimizer(model->parameters(), 0.01);
    model->attach(optimizer);
    if (plan) model->deploy(*plan);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      const auto x = torch::arange(4 * 13, at::kFloat).reshape({4, 13}).add(world.rank() + step).sin();
      model(x, (torch::arange(4) * 5 + world.rank()).remainder(29)).backward();
      optimizer.step();
    }
    const auto state = model->gather_state();
    if (world.rank() != 0) return;
    for (const auto& item : state) out.parameters.push_back(item.value().clone());
    out.plan = model->plan();
  });
  const auto trace = trace_rows::latest_step_of(read_text_file(folder / "trace.json"), 0);
  for (const std::string word : {"reduction of bucket", "reduction into shards of bucket"}) {
    for (auto at = trace.find(word); at != std::string::npos; at = trace.find(word, at + 1)) ++out.sums;
  }
  return out;
}

TEST_CASE("buckets: size changes the reductions, not the results", "[buckets]") {
  for (const int zero : {0, 1, 2, 3}) {
    CAPTURE(zero);
    const auto usual = train(zero, {});
    CHECK(usual.plan.buckets == BucketPolicy{});
    auto plan = usual.plan;
    plan.buckets.size = Bytes(1'000);
    const auto small = train(zero, plan);
    CHECK(small.plan.buckets.size == Bytes(1'000));
    CHECK(small.sums > usual.sums);
    REQUIRE(small.parameters.size() == usual.parameters.size());
    for (std::size_t i = 0; i < small.parameters.size(); ++i)
      CHECK(torch::equal(small.parameters[i], usual.parameters[i]));
  }
}

}  // namespace buckets_test
