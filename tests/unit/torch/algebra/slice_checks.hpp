#pragma once

#include <algorithm>
#include <random>
#include <string>

#include <autopar/core/error.hpp>

#include "slice_interpreter.hpp"

#include <catch_shim.hpp>

#include "torch/cost/profile.hpp"

namespace autopar::test {

using BatchSlice = SliceInterpreter::BatchSlice;

struct Planned {
  OpGraph graph;
  algebra::BatchSemantics plan;
};

inline Planned plan_of(const Case& test, Net& net) {
  std::vector<trace::InputSpec> specs;
  for (const auto& arg : test.args) {
    auto spec = trace::input_spec(make(arg, 3), batch_dim(arg));
    specs.push_back(spec);
  }
  auto graph = trace::capture(net, specs, [&](const Tensors& inputs) { return test.function(net, inputs); });
  auto plan = algebra::analyze_batch(graph, {test.batch_norm});
  return {std::move(graph), std::move(plan)};
}

/// Everything that training sees: results, gradients of arguments and parameters, buffers.
struct Trained {
  Tensors results, gradients, buffers;
};

template <class Run>
Trained train(Net& net, const Case& test, const Tensors& inputs, const Tensors& cotangents, const Run& run) {
  for (std::size_t i = 0; i < test.buffers.size(); ++i) {
    at::NoGradGuard no_grad;
    net.state(i).copy_(test.buffers[i]);
  }
  net.zero_grad();
  for (const auto& input : inputs) {
    if (input.requires_grad()) input.mutable_grad() = Tensor();
  }
  Trained seen;
  const auto results = run();
  Tensor objective;
  for (std::size_t i = 0; i < results.size(); ++i) {
    seen.results.push_back(results[i].detach().clone());
    if (!results[i].requires_grad()) continue;
    const auto term = (results[i] * cotangents[i]).sum();
    objective = objective.defined() ? objective + term : term;
  }
  if (objective.defined() && objective.requires_grad()) objective.backward();
  for (const auto& input : inputs) {
    if (input.requires_grad())
      seen.gradients.push_back(input.grad().defined() ? input.grad().clone() : torch::zeros_like(input));
  }
  for (const auto& parameter : net.parameters()) {
    seen.gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : torch::zeros_like(parameter));
  }
  for (const auto& buffer : net.buffers()) seen.buffers.push_back(buffer.clone());
  return seen;
}

inline void require_equal(const Tensors& actual, const Tensors& expected, const std::string& what) {
  REQUIRE(actual.size() == expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    INFO(what << " " << i);
    REQUIRE(actual[i].sizes() == expected[i].sizes());
    if (expected[i].numel() == 0) continue;
    const auto a = actual[i].to(torch::kDouble), b = expected[i].to(torch::kDouble);
    const double error = ((a - b).abs() / (1 + b.abs())).max().item<double>();
    INFO("error " << error);
    REQUIRE(error <= 1e-12);
  }
}

inline std::vector<BatchSlice> random_cut(std::int64_t batch, std::int64_t pieces, std::mt19937& random) {
  std::vector<std::int64_t> cuts{0, batch};
  for (std::int64_t i = 1; i < pieces; ++i)
    cuts.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(batch + 1)));
  std::sort(cuts.begin(), cuts.end());
  std::vector<BatchSlice> slices;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) slices.push_back({cuts[i], cuts[i + 1]});
  return slices;
}

/// A random chain of convex stages: a random order of the atoms that respects their dependencies, cut at random places.
inline std::vector<int> random_stages(const Planned& planned, int stages, std::mt19937& random) {
  const auto profile = cost::profile_graph(planned.graph, planned.plan);
  const auto& atoms = profile.model.graph;
  std::vector<std::size_t> missing(atoms.node_count());
  std::vector<NodeId> ready, order;
  for (const auto node : atoms.nodes()) {
    missing[node.index()] = atoms.in_edges(node).size();
    if (missing[node.index()] == 0) ready.push_back(node);
  }
  while (!ready.empty()) {
    std::swap(ready[random() % ready.size()], ready.back());
    const auto node = ready.back();
    ready.pop_back();
    order.push_back(node);
    for (const auto edge : atoms.out_edges(node)) {
      if (--missing[atoms.target(edge).index()] == 0) ready.push_back(atoms.target(edge));
    }
  }
  REQUIRE(order.size() == atoms.node_count());
  std::vector<int> stage_of(planned.graph.ops.size(), 0);
  int stage = 0;
  for (std::size_t k = 0; k < order.size(); ++k) {
    if (stage + 1 < stages && random() % (order.size() / static_cast<std::size_t>(stages) + 1) == 0) ++stage;
    for (const auto op : profile.atoms.atoms[order[k].index()]) stage_of[op.index()] = stage;
  }
  return stage_of;
}

inline void compare(const Case& test, Net& net, const Planned& planned, std::int64_t batch,
                    const std::vector<BatchSlice>& ranks, const std::vector<BatchSlice>& slices,
                    const std::vector<int>& stage_of = {}, int stages = 1) {
  Tensors inputs;
  for (const auto& arg : test.args) inputs.push_back(make(arg, batch));
  Tensors cotangents;
  {
    at::NoGradGuard no_grad;
    for (const auto& result : test.function(net, inputs)) {
      cotangents.push_back(torch::rand(result.sizes(), torch::kDouble) + 0.5);
    }
  }
  const auto expected = train(net, test, inputs, cotangents, [&] { return test.function(net, inputs); });
  const auto actual = train(net, test, inputs, cotangents, [&] {
    SliceInterpreter interpreter(planned.graph, planned.plan, net, inputs, batch);
    if (stages > 1) interpreter.cut(stage_of, stages);
    return interpreter.run(ranks, slices);
  });
  require_equal(actual.results, expected.results, "result");
  require_equal(actual.gradients, expected.gradients, "gradient");
  require_equal(actual.buffers, expected.buffers, "buffer");
}

inline std::string describe(const Planned& planned) {
  const auto op = planned.plan.first_whole_batch_op();
  return op.valid() ? planned.graph.describe(op) + ": " + planned.plan.handling(op).reason : "all ops may be split";
}

/// The function may be split, and random splits train as the whole batch does.
inline Planned expect_exact(const Case& test) {
  torch::manual_seed(1);
  Net net(test.parameters, test.buffers);
  auto planned = plan_of(test, net);
  INFO(describe(planned));
  REQUIRE_FALSE(planned.plan.first_whole_batch_op().valid());
  algebra::require_splittable(planned.graph, planned.plan);
  std::mt19937 random(7);
  for (const std::int64_t batch : {1, 4, 9}) {
    for (const int pieces : {1, 2, 3, 6}) {
      if (batch == 1 && pieces > 2) continue;
      INFO("batch " << batch << ", pieces " << pieces);
      const auto ranks = random_cut(batch, 3, random), slices = random_cut(batch, pieces, random);
      compare(test, net, planned, batch, ranks, slices);
      for (const int stages : {2, 4}) {
        INFO("stages " << stages);
        compare(test, net, planned, batch, ranks, slices, random_stages(planned, stages, random), stages);
      }
    }
  }
  return planned;
}

/// The function mixes samples at `op`, and one share with the whole batch trains as the whole batch does.
inline Planned expect_whole(const Case& test, const std::string& op, const std::string& reason = "") {
  torch::manual_seed(1);
  Net net(test.parameters, test.buffers);
  auto planned = plan_of(test, net);
  const auto found = planned.plan.first_whole_batch_op();
  REQUIRE(found.valid());
  INFO(describe(planned));
  CHECK(planned.graph.name(found) == "aten::" + op);
  CHECK_THAT(planned.plan.handling(found).reason, Catch::Matchers::Contains(reason));
  CHECK_THROWS_AS(algebra::require_splittable(planned.graph, planned.plan), CaptureError);
  std::mt19937 random(7);
  for (const std::int64_t batch : {4, 9})
    compare(test, net, planned, batch, random_cut(batch, 3, random), {{0, batch}});
  return planned;
}

inline void expect_refused(const Case& test, const std::string& text) {
  Net net(test.parameters, test.buffers);
  CHECK_THROWS_MATCHES(plan_of(test, net), CaptureError,
                       Catch::Matchers::Predicate<CaptureError>([&](const CaptureError& error) {
                         UNSCOPED_INFO(error.what());
                         return std::string(error.what()).find(text) != std::string::npos;
                       }));
}

}  // namespace autopar::test
