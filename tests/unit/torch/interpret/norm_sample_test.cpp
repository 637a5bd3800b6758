#include <torch/torch.h>

#include <catch_shim.hpp>

#include <utility>
#include <vector>

#include "torch/interpret/norm_sample.hpp"

// Statistics of slices, pooled, are those of the batch (Chan, Golub, LeVeque 1979).
namespace norm_sample_test {

using autopar::interpret::NormSample;
using torch::Tensor;

/// As a batch norm with momentum 1 leaves them: of data [elements, channels], unbiased.
NormSample given(const Tensor& data) {
  return {data.mean(0), data.var(0, true), static_cast<double>(data.size(0)), false, true};
}

void check_close(const Tensor& a, const Tensor& b, double tolerance) {
  CAPTURE(a, b);
  CHECK(torch::allclose(a, b, tolerance, tolerance));
}

TEST_CASE("pool: statistics of slices become those of the batch") {
  torch::manual_seed(5);
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    const double tolerance = type == torch::kFloat ? 1e-5 : 1e-12;
    std::vector<Tensor> batches;
    for (const int64_t pixels : {1, 4, 9}) batches.push_back(torch::randn({7 * pixels, 5}, type) * 3 + 2);
    std::vector<NormSample> seen;
    for (const auto& [first, last] : {std::pair<int64_t, int64_t>{0, 1}, {1, 4}, {4, 7}}) {  // one element, too
      std::vector<NormSample> next;
      for (const auto& batch : batches) {
        const auto pixels = batch.size(0) / 7;
        next.push_back(given(batch.slice(0, first * pixels, last * pixels)));
      }
      next.push_back({});  // a norm of another stage
      autopar::interpret::pool(seen, std::move(next));
    }
    REQUIRE(seen.size() == 4);
    for (std::size_t i = 0; i < batches.size(); ++i) {
      CAPTURE(i);
      CHECK_FALSE(seen[i].as_given);
      CHECK(seen[i].count == static_cast<double>(batches[i].size(0)));
      check_close(seen[i].mean, batches[i].mean(0).to(torch::kDouble), tolerance);
      check_close(seen[i].variance, batches[i].var(0, false).to(torch::kDouble), tolerance);
    }
    CHECK(seen[3].count == 0);
  }
}

TEST_CASE("pool: a single slice's statistics are kept unwritten") {
  torch::manual_seed(6);
  const auto batch = torch::randn({8, 3}, torch::kDouble);
  std::vector<NormSample> seen;
  const auto first = given(batch.slice(0, 0, 4)), second = given(batch.slice(0, 4, 8));
  const auto mean = first.mean.clone(), variance = first.variance.clone();
  autopar::interpret::pool(seen, {first});
  CHECK(seen[0].as_given);
  CHECK(seen[0].variance.is_same(first.variance));
  autopar::interpret::pool(seen, {second});
  CHECK(torch::equal(first.mean, mean));
  CHECK(torch::equal(first.variance, variance));
  check_close(seen[0].variance, batch.var(0, false), 1e-12);
}

TEST_CASE("pool: instance norm's statistics are means over samples") {
  torch::manual_seed(7);
  const auto means = torch::randn({6, 3}, torch::kDouble), variances = torch::rand({6, 3}, torch::kDouble);
  std::vector<NormSample> seen;
  for (const auto& [first, last] : {std::pair<int64_t, int64_t>{0, 1}, {1, 6}}) {
    const auto part = [&, from = first, to = last](const Tensor& all) { return all.slice(0, from, to).mean(0); };
    autopar::interpret::pool(seen, {{part(means), part(variances), static_cast<double>(last - first), true, true}});
  }
  check_close(seen[0].mean, means.mean(0), 1e-12);
  check_close(seen[0].variance, variances.mean(0), 1e-12);
}

}  // namespace norm_sample_test
