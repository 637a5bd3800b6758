#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <vector>

#include <catch_shim.hpp>

#include "clip_kernels.hpp"
#include "torch/fused/gradient_norm.hpp"
#include "torch/gradients/norm_over_ranks.hpp"

namespace gpu_gradient_norm_test {

using autopar::gradients::NormOverRanks;
using torch::Tensor;

const c10::Device kGpu(at::kCUDA, 0);

/// More than one launch takes, of all types and layouts, among them what the kernels leave to libtorch.
std::vector<Tensor> tensors_of_all_kinds() {
  std::vector<Tensor> tensors;
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kComplexFloat}) {
    const auto options = at::TensorOptions(type).device(kGpu);
    for (int i = 0; i < 250; ++i) tensors.push_back(torch::randn({i}, options));
    tensors.push_back(torch::randn({300, 1001}, options).t());
    tensors.push_back(torch::randn({65536 + 3}, options).narrow(0, 3, 65536));
    tensors.push_back(torch::randn({64}, options).slice(0, 0, 64, 2));
    tensors.push_back(torch::randn({2, 3, 4, 5}, options).contiguous(at::MemoryFormat::ChannelsLast));
  }
  tensors.push_back(torch::randn({77}));  // on the host
  return tensors;
}

Tensor by_rank(const std::vector<Tensor>& tensors, double p, c10::Device device) {
  NormOverRanks norm(p, 3, 1, device);
  for (const auto& tensor : tensors) norm.add(tensor.to(device.is_cpu() ? device : tensor.device()));
  return norm.by_rank();
}

TEST_CASE("gradient norm: GPU kernels equal lists on the CPU", "[gpu][gradient_norm]") {
  torch::manual_seed(9);
  const auto tensors = tensors_of_all_kinds();
  for (const double p : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    INFO("p = " << p);
    CHECK(autopar::fused::has_norm_kernels(kGpu, p) == (p != 3));
    const auto made = by_rank(tensors, p, kGpu);
    CHECK(at::allclose(made.cpu(), by_rank(tensors, p, at::kCPU), 1e-6, 0));  // complex numbers: fp32 moduli
    CHECK(torch::equal(made, by_rank(tensors, p, kGpu)));
    CHECK(torch::equal(by_rank({}, p, kGpu), torch::zeros({3}, made.options())));
    std::vector<Tensor> real;
    for (const auto& tensor : tensors)
      if (!tensor.is_complex()) real.push_back(tensor);
    CHECK(at::allclose(by_rank(real, p, kGpu).cpu(), by_rank(real, p, at::kCPU), 1e-12, 0));
  }
}

TEST_CASE("gradient norm: the GPU's factor is libtorch's", "[gpu][gradient_norm]") {
  for (const double p : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
    for (const double most : {0.25, 1e3}) {
      const auto norms = torch::tensor({3.0, 0.0, 4.0}, torch::kDouble);
      for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
        const auto on_gpu = NormOverRanks(p, 3, 0, kGpu).clip(norms.to(kGpu), most, type);
        const auto on_cpu = NormOverRanks(p, 3, 0, at::kCPU).clip(norms, most, type);
        CHECK(at::allclose(on_gpu.norm.cpu(), on_cpu.norm, 1e-15, 0));
        CHECK(at::allclose(on_gpu.factor.cpu(), on_cpu.factor, 1e-15, 0));
        CHECK(on_gpu.given.scalar_type() == type);
        CHECK(torch::equal(on_gpu.given.cpu(), on_cpu.given));
      }
    }
  }
  const auto none = NormOverRanks(2, 1, 0, kGpu)
                        .clip(torch::full({1}, NAN, at::TensorOptions(at::kDouble).device(kGpu)), 1, at::kFloat);
  CHECK(std::isnan(none.norm.item<double>()));
  CHECK(std::isnan(none.factor.item<double>()));
}

TEST_CASE("clip_grad_norm_ on a GPU: at most six kernels", "[gpu][gradient_norm]") {
  autopar::World world(0, nullptr);
  gpu_clip::check_clip(world, 1);
}

}  // namespace gpu_gradient_norm_test
