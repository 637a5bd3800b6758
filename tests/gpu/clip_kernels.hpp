#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>

#include <ATen/DeviceAccelerator.h>

#include <autopar/autopar.hpp>

#include "traces/spans.hpp"

/// What clip_grad_norm_ launches on a rank, for as many tensors as `gpt` has.
namespace gpu_clip {

namespace ap = autopar;

struct Layers : torch::nn::Module {
  Layers() {
    for (int i = 0; i < kLayers; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
    register_module("layers", layers);
  }
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& wanted) {
    for (std::size_t i = 0; i < layers->size(); ++i) x = x + 0.01 * layers[i]->as<torch::nn::Linear>()->forward(x);
    return torch::mse_loss(x, wanted);
  }
  static constexpr int kLayers = 145, kWidth = 24;
  torch::nn::ModuleList layers;
};

/// Kernels of a span's list, without exchanges, copies and fills by the driver.
inline std::vector<std::string> kernels_of(const traces::profiler::ProfilerResult& recorded) {
  std::vector<std::string> kernels;
  for (const auto& span : traces::spans_of(recorded, c10::DeviceType::CUDA)) {
    if (!span.name.starts_with("Mem") && !span.name.starts_with("nccl")) kernels.push_back(span.name);
  }
  return kernels;
}

/// The norm is libtorch's, gradients are scaled, and a rank launches at most six kernels.
inline void check_clip(ap::World& world, int replicas) {
  ap::Options options;
  options.stages = 1;
  options.replicas = {replicas};
  options.costs = ap::CostChoice::kRoofline;
  options.device = ap::DeviceChoice::kCuda;
  options.log_level = "error";
  const auto device = ap::device(world);
  torch::manual_seed(4);
  ap::AutoParallel<Layers> model(world, std::make_shared<Layers>(), options);
  const auto x = torch::randn({8, Layers::kWidth}).to(device), y = torch::randn({8, Layers::kWidth}).to(device);
  model(x, y).backward();
  const auto parameters = model->parameters();
  REQUIRE(parameters.size() == 2 * Layers::kLayers);
  std::vector<torch::Tensor> copies;
  for (const auto& parameter : parameters) {
    copies.push_back(parameter.detach().clone().requires_grad_());
    copies.back().mutable_grad() = parameter.grad().clone();
  }
  const double most = 0.5 * torch::nn::utils::clip_grad_norm_(copies, 1e9);
  static_cast<void>(ap::clip_grad_norm_(model, parameters, 1e9));  // compiles the kernels, and changes nothing
  torch::Tensor norm;
  const auto recorded = traces::recorded(
      [&] {
        norm = ap::clip_grad_norm_(model, parameters, most);
        at::accelerator::synchronizeDevice(device.index());
      },
      device);
  const auto kernels = kernels_of(*recorded);
  std::string listed;
  for (const auto& kernel : kernels) listed += "\n  " + kernel;
  INFO("kernels of clip_grad_norm_:" << listed);
  CHECK(!kernels.empty());
  CHECK(kernels.size() <= 6);
  CHECK(norm.item<double>() == Approx(2 * most).epsilon(1e-5));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& before = copies[i].grad();
    CHECK(at::allclose(parameters[i].grad(), before * 0.5, 1e-4, 1e-12));
  }
}

}  // namespace gpu_clip
