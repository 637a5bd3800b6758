#include <torch/torch.h>

#include <vector>

#include <catch_shim.hpp>

#include "torch/fused/running_statistics.hpp"

namespace gpu_running_statistics_test {

using autopar::fused::NormStatistics, autopar::fused::PooledStatistics;
using torch::Tensor;

/// Statistics of elements [elements, channels], as a batch norm leaves them.
NormStatistics seen(const Tensor& elements, const Tensor& running_mean, const Tensor& running_variance) {
  return {elements.mean(0),
          elements.var(0, true),
          static_cast<double>(elements.size(0)),
          false,
          true,
          running_mean,
          running_variance,
          0.1};
}

TEST_CASE("running statistics: kernels of one rank equal libtorch", "[gpu][running_statistics]") {
  torch::manual_seed(3);
  std::vector<NormStatistics> norms;
  std::vector<Tensor> wanted;
  constexpr int kNorms = 70;  // more than a launch takes
  for (int i = 0; i < kNorms; ++i) {
    const auto options = at::TensorOptions(i % 2 == 0 ? at::kFloat : at::kDouble).device(at::kCUDA);
    const auto elements = torch::randn({5 + i, 1 + 37 * i}, options);
    const auto mean = torch::randn({elements.size(1)}, options), variance = torch::rand({elements.size(1)}, options);
    auto wanted_mean = mean.clone(), wanted_variance = variance.clone();
    static_cast<void>(torch::batch_norm(elements, {}, {}, wanted_mean, wanted_variance, true, 0.1, 1e-5, false));
    norms.push_back(seen(elements, mean, variance));
    if (i == 3) {  // a norm that runs twice
      static_cast<void>(torch::batch_norm(elements + 1, {}, {}, wanted_mean, wanted_variance, true, 0.1, 1e-5, false));
      norms.push_back(seen(elements + 1, mean, variance));
      wanted.insert(wanted.end(), {wanted_mean, wanted_variance});
    }
    wanted.insert(wanted.end(), {wanted_mean, wanted_variance});
  }
  REQUIRE(PooledStatistics::takes(norms));
  const auto version = norms.front().running_mean._version();
  const PooledStatistics pooled(norms);
  const auto sums = pooled.sums();
  pooled.blend(sums, pooled.squares(sums));
  CHECK(norms.front().running_mean._version() > version);
  for (std::size_t i = 0; i < norms.size(); ++i) {
    INFO("norm " << i);
    const double tolerance = norms[i].running_mean.scalar_type() == at::kFloat ? 1e-5 : 1e-12;
    CHECK(at::allclose(norms[i].running_mean, wanted[2 * i], tolerance, tolerance));
    CHECK(at::allclose(norms[i].running_variance, wanted[2 * i + 1], tolerance, tolerance));
  }
}

TEST_CASE("running statistics: other types are left to libtorch", "[gpu][running_statistics]") {
  const auto half = torch::ones({4}, at::TensorOptions(at::kHalf).device(at::kCUDA));
  const auto single = half.to(at::kFloat);
  const NormStatistics taken{single, single, 2, false, true, single, single, 0.1};
  auto other = taken;
  other.running_mean = other.running_variance = half;
  CHECK(PooledStatistics::takes({taken}));
  CHECK_FALSE(PooledStatistics::takes({taken, other}));
}

}  // namespace gpu_running_statistics_test
