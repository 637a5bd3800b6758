#include "torch/autograd/row_products.hpp"

#include <cstdint>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>

// Gradients of weights as products over rows, against libtorch's backward of convolutions.
namespace row_products_test {

using namespace autopar;
using torch::Tensor;

const autograd::ConvolutionForm kPointwise{{1, 1}, {0, 0}, {1, 1}, {0, 0}};

Tensor images(std::vector<std::int64_t> sizes, at::MemoryFormat format = at::MemoryFormat::ChannelsLast) {
  return torch::randn(sizes, torch::kDouble).contiguous(format);
}

TEST_CASE("pixel_rows_of: 1 x 1 weight gradient is a matrix product") {
  torch::manual_seed(5);
  const std::vector<std::vector<std::int64_t>> cases{{3, 8, 5, 6, 4}, {1, 2, 1, 7, 9}, {6, 5, 3, 1, 1}};
  for (const auto& sizes : cases) {
    const auto samples = sizes[0], inputs = sizes[1], outputs = sizes[2];
    const auto x = images({samples, inputs, sizes[3], sizes[4]});
    const auto gradient = images({samples, outputs, sizes[3], sizes[4]});
    const auto weight = torch::randn({outputs, inputs, 1, 1}, torch::kDouble);
    const auto rows = autograd::pixel_rows_of(kPointwise, gradient, x, weight);
    REQUIRE(rows);
    CHECK(rows->x.is_alias_of(x));
    CHECK(rows->gradient.is_alias_of(gradient));
    const auto exact = std::get<1>(kPointwise.backward(gradient, x, weight, {false, true, false}));
    const auto made = autograd::product_over_rows(rows->gradient, rows->x).view(weight.sizes());
    CHECK((made - exact).abs().max().item<double>() <= 1e-12);
    const auto start = torch::randn({outputs, inputs}, torch::kDouble), sum = start.clone();
    autograd::put_product_over_rows(rows->gradient, rows->x, sum, fused::Destination::kAdds);
    CHECK((sum - start - exact.view({outputs, inputs})).abs().max().item<double>() <= 1e-12);
    sum.fill_(NAN);
    autograd::put_product_over_rows(rows->gradient, rows->x, sum, fused::Destination::kIsWritten);
    CHECK((sum - exact.view({outputs, inputs})).abs().max().item<double>() <= 1e-12);
  }
}

TEST_CASE("pixel_rows_of: other convolutions and layouts have none") {
  const auto x = images({3, 8, 5, 5}), gradient = images({3, 8, 5, 5});
  const auto weight = torch::zeros({8, 8, 1, 1}, torch::kDouble);
  REQUIRE(autograd::pixel_rows_of(kPointwise, gradient, x, weight));
  const auto refuses = [&](auto change) {
    auto form = kPointwise;
    change(form);
    return !autograd::pixel_rows_of(form, gradient, x, weight);
  };
  CHECK(refuses([](autograd::ConvolutionForm& form) { form.stride = {1, 2}; }));
  CHECK(refuses([](autograd::ConvolutionForm& form) { form.padding = {0, 1}; }));
  CHECK(refuses([](autograd::ConvolutionForm& form) { form.groups = 2; }));
  CHECK(refuses([](autograd::ConvolutionForm& form) { form.transposed = true; }));
  const auto contiguous = images({3, 8, 5, 5}, at::MemoryFormat::Contiguous);
  CHECK_FALSE(autograd::pixel_rows_of(kPointwise, contiguous, x, weight));
  CHECK_FALSE(autograd::pixel_rows_of(kPointwise, gradient, contiguous, weight));
  CHECK_FALSE(autograd::pixel_rows_of(kPointwise, gradient, images({3, 16, 5, 5}).narrow(1, 0, 8), weight));
  CHECK_FALSE(autograd::pixel_rows_of(kPointwise, gradient, x, torch::zeros({8, 8, 1, 3}, torch::kDouble)));
  CHECK_FALSE(autograd::pixel_rows_of(kPointwise, gradient.slice(0, 0, 0), x.slice(0, 0, 0), weight));
  const autograd::ConvolutionForm of_lines{{1}, {0}, {1}, {0}};
  CHECK_FALSE(autograd::pixel_rows_of(of_lines, gradient.select(3, 0), x.select(3, 0), weight.select(3, 0)));
  CHECK_FALSE(autograd::gains_as_product(gradient, torch::zeros({2048, 1024, 1, 1}, torch::kBFloat16)));  // a CPU
}

}  // namespace row_products_test
