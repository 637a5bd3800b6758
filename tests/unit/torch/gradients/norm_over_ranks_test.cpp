#include "torch/gradients/norm_over_ranks.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>

namespace norm_over_ranks_test {

using autopar::gradients::NormOverRanks;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Of tensors that lie on ranks as `ranks` says.
double norm_of(const std::vector<at::Tensor>& tensors, const std::vector<int>& ranks, double p) {
  const int count = 3;
  auto summed = torch::zeros({count}, torch::kDouble);
  for (int r = 0; r < count; ++r) {
    NormOverRanks mine(p, count, r, at::kCPU);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (ranks[i] == r) mine.add(tensors[i]);
    }
    summed += mine.by_rank();
  }
  const auto norm = NormOverRanks(p, count, 0, at::kCPU).complete(summed);
  CHECK(norm.dim() == 0);
  return norm.item<double>();
}

TEST_CASE("norm over ranks: equals one process for every p and dtype") {
  const auto numbers = torch::linspace(-2, 3, 24, torch::kDouble).sin();
  const auto empty = torch::empty({0}, torch::kDouble);
  for (const double p : {0.5, 1.0, 1.5, 2.0, 3.0, 7.25, 40.0, kInfinity}) {
    INFO(p);
    const auto expected = torch::linalg_vector_norm(numbers, p).item<double>();
    const std::vector<at::Tensor> parts{numbers.narrow(0, 0, 5), empty, numbers.narrow(0, 5, 15).view({3, 5}),
                                        numbers.narrow(0, 20, 4)};
    CHECK(norm_of(parts, {0, 1, 2, 2}, p) == Approx(expected).epsilon(1e-14));
    CHECK(norm_of(parts, {1, 1, 1, 1}, p) == Approx(expected).epsilon(1e-14));
    CHECK(norm_of({empty}, {0}, p) == 0);
    CHECK(norm_of({torch::zeros({4})}, {1}, p) == 0);
    const auto complex = torch::complex(numbers, numbers.flip(0));
    CHECK(norm_of({complex.narrow(0, 0, 9), complex.narrow(0, 9, 15)}, {2, 0}, p) ==
          Approx(torch::linalg_vector_norm(complex.abs(), p).item<double>()).epsilon(1e-14));
    for (const auto type : {torch::kFloat, torch::kHalf, torch::kBFloat16}) {
      const auto narrow = numbers.to(type);
      CHECK(norm_of({narrow.narrow(0, 0, 9), narrow.narrow(0, 9, 15)}, {0, 1}, p) ==
            Approx(torch::linalg_vector_norm(narrow.to(torch::kDouble), p).item<double>()).epsilon(1e-2));
    }
    // A tensor that is given three times.
    NormOverRanks thrice(p, 1, 0, at::kCPU);
    for (int i = 0; i < 3; ++i) thrice.add(numbers);
    CHECK(thrice.complete(thrice.by_rank()).item<double>() ==
          Approx(torch::linalg_vector_norm(numbers.repeat({3}), p).item<double>()).epsilon(1e-14));
  }
}

TEST_CASE("norm over ranks: no overflow for large p, infinities stay") {
  const auto small = torch::full({4}, 1e-12, torch::kDouble), large = torch::full({4}, 1e12, torch::kDouble);
  CHECK(norm_of({small, small}, {0, 1}, 50) == Approx(1e-12 * std::pow(8, 1.0 / 50)).epsilon(1e-12));
  CHECK(norm_of({large, large}, {0, 1}, 50) == Approx(1e12 * std::pow(8, 1.0 / 50)).epsilon(1e-12));
  const auto with = [](double number) { return torch::tensor({1.0, number, 2.0}, torch::kDouble); };
  for (const double p : {1.0, 2.0, 3.0, kInfinity}) {
    CHECK(norm_of({with(kInfinity), with(1)}, {0, 1}, p) == kInfinity);
    CHECK(std::isnan(norm_of({with(std::nan("")), with(1)}, {2, 1}, p)));
  }
}

}  // namespace norm_over_ranks_test
