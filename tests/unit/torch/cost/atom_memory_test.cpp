#include "torch/cost/atom_memory.hpp"

#include <optional>

#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <autopar/cost/tensor_regions.hpp>

#include "profiled.hpp"

namespace {

using namespace autopar;
using at::Tensor;
using test::profile;
using test::Profiled;
namespace F = torch::nn::functional;

/// A table, attention, a pair of linear layers and a class head.
struct Reader : torch::nn::Module {
  static constexpr std::int64_t kWidth = 24, kHeads = 6, kWords = 40;
  torch::nn::Embedding words{kWords, kWidth};
  torch::nn::Linear qkv{kWidth, 3 * kWidth}, proj{kWidth, kWidth}, up{kWidth, 4 * kWidth}, down{4 * kWidth, kWidth},
      head{kWidth, kWords};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({kWidth})}, norm2{torch::nn::LayerNormOptions({kWidth})};
  Reader() {
    nets::register_all(*this, "words", words, "qkv", qkv, "proj", proj, "up", up, "down", down, "head", head, "norm",
                       norm, "norm2", norm2);
  }
  Tensor forward(const Tensor& ids) {
    auto x = words(ids);
    const auto heads = qkv(x).view({x.size(0), x.size(1), 3, kHeads, -1}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto mixed = at::scaled_dot_product_attention(heads[0], heads[1], heads[2]).transpose(1, 2).flatten(2);
    x = norm(x + proj(mixed));
    x = norm2(x + torch::dropout(down(torch::gelu(up(x))), 0.1, true));
    return F::cross_entropy(head(x).flatten(0, 1), ids.flatten());
  }
};

/// What the shard with most units takes.
std::vector<AtomMemory> on_shard_of(const Profiled& p, const std::vector<tensor_parallel::ShardedStage>& stages) {
  const auto sharded = tensor_parallel::insert_moves(p.graph, stages);
  auto own = tensor_parallel::on_shard(sharded, std::vector<std::optional<int>>(stages.size(), 0));
  for (const auto& [op, step] : sharded.steps) {
    if (step.move == ir::ShardMove::kCopy) own.value(own.output(op)).storage = own.value(own.input(op, 0)).storage;
  }
  const auto atoms = cost::with_operators(p.profile.atoms, sharded.made_for);
  const auto plan = algebra::analyze_batch(sharded.graph);
  const cost::ProgramMemory takes(own, plan, atoms, {}, sharded.steps);
  std::vector<AtomMemory> out;
  for (std::size_t k = 0; k < atoms.atoms.size(); ++k) out.push_back(takes.of(NodeId::of(k)));
  return out;
}

bool none(ValueId) { return false; }

/// Each candidate apart, so that what enters and leaves it is whole.
std::vector<tensor_parallel::ShardedStage> apart(const Profiled& p,
                                                 const std::vector<tensor_parallel::TensorCandidate>& candidates,
                                                 int shards) {
  std::vector<tensor_parallel::ShardedStage> stages;
  for (const auto& each : candidates) {
    tensor_parallel::ShardTyping typing(p.graph, [&](OpId op) { return std::ranges::binary_search(each.ops, op); });
    stages.push_back({shards, typing.run(each.leaves, none)});
  }
  return stages;
}

/// All in one stage, where what follows candidates is cut by tokens.
std::vector<tensor_parallel::ShardedStage> in_a_row(const Profiled& p,
                                                    const std::vector<tensor_parallel::TensorCandidate>& candidates,
                                                    int shards) {
  tensor_parallel::LeafSlices leaves;
  for (const auto& each : candidates) leaves.insert(each.leaves.begin(), each.leaves.end());
  tensor_parallel::ShardTyping typing(p.graph, [&](OpId op) { return p.plan.handling(op).in_stage; });
  return {{shards, typing.run(leaves, none, shards)}};
}

}  // namespace

TEST_CASE("atom memory: predicted for shards is an upper bound") {
  Reader net;
  const auto ids = torch::randint(Reader::kWords, {4, 5});
  const auto p = profile(net, {ids}, [&](const auto& in) { return net.forward(in[0]); });
  const auto candidates = tensor_parallel::find_tensor_candidates(p.graph, p.plan);
  const auto& model = p.profile.model;
  REQUIRE(candidates.size() == 4);
  int with_whole = 0;
  for (const int shards : {2, 3, 4, 6}) {
    const auto takes = on_shard_of(p, apart(p, candidates, shards));
    for (const auto& region : model.tensor_regions) {
      if (region.follows >= 0) continue;
      for (const auto node : region.atoms) {
        const auto& atom = model.graph[node];
        for (const double samples : {1.0, 4.0, 64.0}) {
          CAPTURE(shards, atom.path, atom.name, samples);
          const auto said = [&](const Affine& all, const Affine& each) {
            return memory_of_shard(Bytes(static_cast<std::int64_t>(all.at(samples))), each, samples, region, shards)
                .value();
          };
          const auto& own = takes[node.index()];
          CHECK(said(atom.saved, atom.on_each_shard.saved) >= own.saved.at(samples) - 1);
          CHECK(said(atom.workspace, atom.on_each_shard.workspace) >= own.workspace.at(samples) - 1);
          CHECK(said(atom.forward_workspace, atom.on_each_shard.forward_workspace) >=
                own.forward_workspace.at(samples) - 1);
          CHECK(said(atom.deferred_weight, atom.on_each_shard.deferred_weight) >= own.deferred_weight.at(samples) - 1);
          CHECK(own.saved.at(samples) <= atom.saved.at(samples) + 9 * 5 * samples);  // an embedding's masks and indices
        }
        with_whole += atom.on_each_shard.workspace == Affine{} ? 0 : 1;
      }
    }
  }
  CHECK(with_whole > 0);
}

TEST_CASE("atom memory: row-parallel layers report memory and traffic") {
  struct Net : torch::nn::Module {
    torch::nn::Linear alone{24, 24}, head{24, 3};
    torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({24})};
    Net() { nets::register_all(*this, "alone", alone, "head", head, "norm", norm); }
    Tensor forward(const Tensor& x, const Tensor& y) {
      return F::cross_entropy(head(torch::softmax(alone(norm(x)), -1)), y);
    }
  } net;
  auto p = profile(net, {torch::randn({4, 24}), torch::zeros({4}, torch::kLong)},
                   [&](const auto& in) { return net.forward(in[0], in[1]); });
  CHECK_FALSE(p.profile.model.layers_by_inputs);
  p.profile = cost::profile_graph(p.graph, p.plan, c10::DeviceType::CPU, {}, tensor_parallel::SingleLayers::kByInputs);
  const auto& model = p.profile.model;
  const auto candidates =
      tensor_parallel::find_tensor_candidates(p.graph, p.plan, tensor_parallel::SingleLayers::kByInputs);
  CHECK(model.layers_by_inputs);
  REQUIRE(model.tensor_regions.size() == 2);
  constexpr double kFeatures = 24 * sizeof(float), kLogits = 3 * sizeof(float);
  for (const auto& region : model.tensor_regions) {
    const bool is_head = &region == &model.tensor_regions.back();
    CHECK(region.units == 24);
    CHECK(region.forward == Affine{is_head ? kLogits : kFeatures, 0});
    CHECK(region.backward == Affine{kFeatures / 2, 0});  // brought together, half of what a sum exchanges
    CHECK(region.forward_calls == 1);
    CHECK(region.backward_calls == 1);
    const auto& kept = model.graph[region.atoms.front()].on_each_shard.saved;
    CHECK((kept.per_sample > 0) == is_head);  // a softmax keeps its result, a norm does not
  }
  for (const int shards : {2, 3, 5, 24}) {
    CAPTURE(shards);
    double takes = 0, said = 0;
    for (const auto& atom : on_shard_of(p, apart(p, candidates, shards))) takes += atom.saved.at(4);
    for (const auto node : model.graph.nodes()) said += model.graph[node].saved.at(4);
    for (const auto& region : model.tensor_regions) {
      const auto& atom = model.graph[region.atoms.front()];
      said -= atom.saved.at(4);
      said += static_cast<double>(memory_of_shard(Bytes(static_cast<std::int64_t>(atom.saved.at(4))),
                                                  atom.on_each_shard.saved, 4, region, shards)
                                      .value());
    }
    CHECK(said >= takes - 1);
    CHECK(said <= takes + 2 * 4 * kFeatures);
  }
}

TEST_CASE("atom memory: estimate bounds sequence-parallel norms") {
  Reader net;
  const auto ids = torch::randint(Reader::kWords, {4, 5});
  const auto p = profile(net, {ids}, [&](const auto& in) { return net.forward(in[0]); });
  const auto& model = p.profile.model;
  const auto candidates = tensor_parallel::find_tensor_candidates(p.graph, p.plan);
  std::vector<const TensorRegion*> region_of(model.graph.node_count(), nullptr);
  int followers = 0;
  for (const auto& region : model.tensor_regions) {
    for (const auto node : region.atoms) region_of[node.index()] = &region;
    if (region.follows < 0) continue;
    ++followers;
    CHECK(region.units == 5);
    CHECK(region.parameters.empty());
  }
  CHECK(followers == 2);  // of attention and of the pair
  for (const int shards : {2, 3, 4, 5}) {
    for (const double samples : {1.0, 4.0, 64.0}) {
      CAPTURE(shards, samples);
      double takes = 0, whole_between = 0;
      for (const auto& atom : on_shard_of(p, in_a_row(p, candidates, shards))) takes += atom.saved.at(samples);
      std::int64_t said = 0;
      for (const auto node : model.graph.nodes()) {
        const auto& atom = model.graph[node];
        const auto all = Bytes(static_cast<std::int64_t>(atom.saved.at(samples)));
        const auto* region = region_of[node.index()];
        const bool sliced = region != nullptr && region->admits(shards);
        said += sliced ? memory_of_shard(all, atom.on_each_shard.saved, samples, *region, shards).value() : all.value();
        const bool between = region != nullptr && region->follows >= 0;
        whole_between += static_cast<double>(
            sliced && !between ? memory_of_shard(all, atom.on_each_shard.saved, samples, *region, shards).value()
                               : all.value());
      }
      CHECK(static_cast<double>(said) >= takes - 1);
      CHECK(static_cast<double>(said) < whole_between);
    }
  }
}
