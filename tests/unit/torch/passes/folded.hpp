#pragma once

#include <cstdint>
#include <string_view>

#include <torch/torch.h>

#include <catch_shim.hpp>

#include "capture/replay/replay.hpp"

#include "unit/torch/capture/models.hpp"

// What tests of folds have in common.
namespace autopar::test {

/// Operators of that name whose result is of floating point: norms also count the batches.
inline std::int64_t count_floating(const OpGraph& graph, std::string_view name) {
  std::int64_t found = 0;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const auto op = OpId::of(i);
    if (graph.is(op, name) && c10::isFloatingType(graph.value(graph.output(op)).dtype)) ++found;
  }
  return found;
}

/// Results, gradients of all parameters, and buffers, which are then as before.
inline Tensors trained_by(TestModel& net, const OpGraph& graph, const Tensors& in) {
  Tensors buffers;
  for (const auto& buffer : net.buffers()) buffers.push_back(buffer.clone());
  replay::Replayer replayer(graph, replay::all_ops(graph), graph.outputs, at::kCPU);
  auto environment = replayer.environment();
  replay::bind_state(graph, net, environment);
  for (std::size_t i = 0; i < in.size(); ++i) environment[graph.inputs[i].index()] = in[i];
  replayer.run(environment, {in[0].size(0), in[0].size(0)});
  net.zero_grad();
  Tensors out;
  at::Tensor sum = torch::zeros({});
  for (const auto output : graph.outputs) {
    const auto& result = environment[output.index()];
    sum = sum + (result * torch::arange(1, result.numel() + 1, result.options()).view_as(result).cos()).sum();
    out.push_back(result.detach().clone());
  }
  sum.backward();
  for (const auto& parameter : net.parameters())
    out.push_back(parameter.grad().defined() ? parameter.grad().clone() : torch::zeros({}));
  std::size_t next = 0;
  for (auto& buffer : net.buffers()) {
    out.push_back(buffer.clone());
    buffer.copy_(buffers[next++]);
  }
  return out;
}

/// The folded program makes what the plain one does, with the same draws of the default generator. @param tolerance  0:
/// to the bit
inline void check_folded(TestModel& net, const OpGraph& plain, const OpGraph& folded, const Tensors& in,
                         double tolerance = 0) {
  constexpr std::uint64_t kSeed = 4;
  torch::manual_seed(kSeed);
  const auto expected = trained_by(net, plain, in);
  torch::manual_seed(kSeed);
  const auto made = trained_by(net, folded, in);
  REQUIRE(made.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO(i);
    if (tolerance == 0)
      CHECK(torch::equal(made[i], expected[i]));
    else
      CHECK(torch::allclose(made[i], expected[i], tolerance, tolerance));
  }
}

}  // namespace autopar::test
