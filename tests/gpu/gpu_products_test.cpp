#include <torch/torch.h>

#include <catch_shim.hpp>
#include <temp_folder.hpp>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/mm.h>

#include "kernels/gemm/measured_products.hpp"
#include "torch/autograd/row_products.hpp"
#include "torch/device/room_for_messages.hpp"
#include "torch/fused/products.hpp"
#include "torch/fused/vectorised_rows.hpp"

// Large products by an algorithm of cuBLASLt that was measured, beside libtorch's.
namespace gpu_products_test {

using torch::Tensor;

/// The worst element, beside the largest.
double error(const Tensor& made, const Tensor& exact) {
  return ((made.to(at::kDouble) - exact).abs().max() / exact.abs().max()).item<double>();
}

/// Half of a unit in the last place of the largest, about.
double rounding(at::ScalarType type) { return type == at::kFloat ? 1e-6 : type == at::kHalf ? 6e-4 : 5e-3; }

Tensor random(std::vector<std::int64_t> sizes, at::ScalarType type) { return torch::randn(sizes, at::kCUDA).to(type); }

void check_linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  INFO(x.sizes() << " to " << weight.size(0) << ", " << c10::toString(x.scalar_type())
                 << (bias.defined() ? ", bias" : ""));
  const auto ours = autopar::fused::large_linear(x, weight, bias);
  REQUIRE(ours.defined());
  const auto theirs = torch::linear(x, weight, bias);
  REQUIRE(ours.sizes() == theirs.sizes());
  REQUIRE(ours.is_contiguous());
  REQUIRE(ours.scalar_type() == x.scalar_type());
  CHECK(error(ours, theirs.to(at::kDouble)) <= 2 * rounding(x.scalar_type()));
  CHECK(torch::equal(ours, autopar::fused::large_linear(x, weight, bias)));
}

void check_product(const Tensor& a, const Tensor& b, at::ScalarType type) {
  INFO(a.sizes() << " of strides " << a.strides() << " times " << b.sizes() << ", " << c10::toString(a.scalar_type())
                 << " to " << c10::toString(type));
  const auto to = torch::full({a.size(0), b.size(1)}, NAN, a.options().dtype(type));
  REQUIRE(autopar::fused::multiply_large({a, b, {}, to}));
  const auto theirs = type == a.scalar_type() ? at::mm(a, b) : at::mm(a, b, type);
  CHECK(error(to, theirs.to(at::kDouble)) <= (type == at::kFloat ? 1e-5 : 2 * rounding(type)));
  const auto again = autopar::fused::matrix_product(a, b, type);
  REQUIRE(again.scalar_type() == type);
  CHECK(torch::equal(to, again));
}

void check_sum(const Tensor& a, const Tensor& b) {
  const auto start = torch::randn({a.size(1), b.size(1)}, at::kCUDA);
  const auto product = autopar::autograd::product_over_rows(a, b);
  auto sum = start.clone(), again = start.clone();
  REQUIRE(autopar::fused::multiply_large({a.t(), b, {}, sum, true}));
  CHECK(error(sum, start.to(at::kDouble) + product.to(at::kDouble)) <= rounding(at::kFloat));
  autopar::autograd::put_product_over_rows(a, b, again, autopar::fused::Destination::kAdds);
  CHECK(torch::equal(sum, again));
  for (const std::int64_t rows : {a.size(0), std::int64_t{8}}) {  // the latter not a large product
    const auto written = torch::full({a.size(1), b.size(1)}, NAN, at::kCUDA);
    const auto few = a.narrow(0, 0, rows), others = b.narrow(0, 0, rows);
    autopar::autograd::put_product_over_rows(few, others, written, autopar::fused::Destination::kIsWritten);
    CHECK(error(written, autopar::autograd::product_over_rows(few, others).to(at::kDouble)) <= rounding(at::kFloat));
  }
}

TEST_CASE("large matmul: with room for messages too", "[gpu][products]") {
  torch::manual_seed(13);
  const auto x = random({4096, 2048}, at::kBFloat16), weight = random({6144, 2048}, at::kBFloat16);
  const autopar::devices::RoomForMessages room(true, x.device());
  check_linear(x, weight, {});
  check_product(x, weight.t(), at::kFloat);
}

TEST_CASE("large matmul: equals libtorch up to rounding, repeatable", "[gpu][products]") {
  torch::manual_seed(12);
  const std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> sizes{
      {4096, 2048, 2048}, {2048, 1024, 6144}, {4096, 2056, 1528}, {4001, 2048, 2056}};  // rows, inputs, outputs
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    for (const auto& [rows, inputs, outputs] : sizes) {
      const auto x = random({rows, inputs}, type), weight = random({outputs, inputs}, type);
      const auto gradient = random({rows, outputs}, type);
      check_linear(x, weight, random({outputs}, type));
      check_linear(x, weight, {});
      check_product(gradient, weight, type);
      check_product(gradient.t(), x, at::kFloat);
      check_sum(gradient, x);
    }
    check_linear(random({2, 2048, 2048}, type), random({2048, 2048}, type), random({2048}, type));
    const auto wide = random({4096, 3072}, type);
    check_product(wide.narrow(1, 1024, 2048), random({2048, 2048}, type), type);  // gaps between rows
    check_product(wide.narrow(1, 8, 2048).t(), random({4096, 2048}, type), at::kFloat);
    check_product(random({4096, 2048}, type), random({2048, 2048}, type).t(), at::kFloat);
  }
}

TEST_CASE("large matmul: first accumulating call adds once", "[gpu][products]") {
  const auto a = random({4096, 1920}, at::kBFloat16), b = random({4096, 2176}, at::kBFloat16);
  const auto start = torch::randn({1920, 2176}, at::kCUDA);
  const auto sum = start.clone();
  REQUIRE(autopar::fused::multiply_large({a.t(), b, {}, sum, true}));
  CHECK(error(sum, start.to(at::kDouble) + at::mm(a.t(), b, at::kFloat).to(at::kDouble)) <= 1e-5);
  check_sum(a, b);
}

TEST_CASE("product over rows: adds to sums of its own type, and writes over NaN", "[gpu][products]") {
  torch::manual_seed(3);
  for (const auto type : {at::kFloat, at::kDouble}) {
    const auto a = random({48, 65}, type), b = random({48, 33}, type), sum = random({65, 33}, type);
    const auto product = a.to(at::kDouble).t().mm(b.to(at::kDouble)), both = product + sum.to(at::kDouble);
    const double limit = type == at::kFloat ? 2e-6 : 1e-14;
    autopar::autograd::put_product_over_rows(a, b, sum, autopar::fused::Destination::kAdds);
    CHECK(error(sum, both) <= limit);
    sum.fill_(NAN);
    autopar::autograd::put_product_over_rows(a, b, sum, autopar::fused::Destination::kIsWritten);
    CHECK(error(sum, product) <= limit);
  }
}

TEST_CASE("large matmul: unsupported product writes nothing, falls back", "[gpu][products]") {
  const auto type = at::kBFloat16;
  const auto x = random({4096, 2048}, type), weight = random({2048, 2048}, type);
  const auto to = torch::zeros({4096, 2048}, x.options());
  const auto leaves = [&](const autopar::kernels::MatrixProduct& product) {
    return !autopar::fused::multiply_large(product) && product.to.count_nonzero().item<std::int64_t>() == 0;
  };
  CHECK(leaves({x.slice(0, 0, 1024), weight.t(), {}, to.slice(0, 0, 1024)}));            // small
  CHECK(leaves({random({4096, 4096}, type).slice(1, 0, 4096, 2), weight.t(), {}, to}));  // elements apart
  CHECK(leaves({random({4096, 2049}, type).narrow(1, 1, 2048), weight.t(), {}, to}));    // not in packs
  CHECK(leaves({x, weight.t(), {}, torch::zeros({2048, 4096}, x.options()).t()}));       // by columns
  CHECK(leaves({x.to(at::kFloat), weight.t().to(at::kFloat), {}, to.to(at::kFloat)}));
  for (const auto& odd : {random({4096, 2049}, type), random({4095, 2047}, type)}) {  // still right
    const auto other = random({2048, odd.size(1)}, type);
    CHECK_FALSE(autopar::fused::large_linear(odd, other, {}).defined());
    CHECK(torch::equal(autopar::fused::matrix_product(odd, other.t(), type), odd.mm(other.t())));
  }
  const auto turned = random({2048, 64, 64}, type).transpose(0, 2);  // [64, 64, 2048], a view
  CHECK_FALSE(autopar::fused::large_linear(turned, weight, {}).defined());
}

TEST_CASE("large matmul: padded logits use vectorised rows", "[gpu][products]") {
  constexpr std::int64_t kClasses = 2051, kRows = 4096, kInputs = 2048;
  const auto type = at::kBFloat16;
  const auto x = random({kRows, kInputs}, type), bias = random({kClasses}, type);
  const auto weight = autopar::fused::empty_in_packs(torch::empty({kClasses, kInputs}, at::kCUDA), type);
  weight.copy_(torch::randn({kClasses, kInputs}, at::kCUDA));
  for (const auto& added : {bias, Tensor()}) {
    const auto logits = autopar::fused::linear_in_padded_rows(x, weight, added);
    CHECK(error(logits, torch::linear(x, weight, added).to(at::kDouble)) <= 2 * rounding(type));
  }
  const auto rows = torch::zeros({kRows, autopar::fused::in_vectorised_rows(kClasses)}, x.options());
  const auto gradient = rows.narrow(1, 0, kClasses);
  gradient.copy_(torch::randn({kRows, kClasses}, at::kCUDA));
  CHECK(error(autopar::fused::gradient_through_padded_rows(gradient, x, weight), gradient.mm(weight).to(at::kDouble)) <=
        2 * rounding(type));
  const auto of_weight =
      torch::empty({kClasses, kInputs}, at::kCUDA);  // of 2051 rows: cuBLASLt would read them one by one
  CHECK_FALSE(autopar::fused::multiply_large({gradient.t(), x, {}, of_weight}));
  CHECK(torch::equal(autopar::fused::matrix_product(gradient.t(), x, at::kFloat), at::mm(gradient.t(), x, at::kFloat)));
}

TEST_CASE("large matmul: concurrent first calls give equal bits", "[gpu][products]") {
  const auto a = random({4096, 2304}, at::kBFloat16), b = random({2304, 2048}, at::kBFloat16);
  std::vector<Tensor> made(3);
  std::vector<std::thread> threads;
  for (auto& each : made) threads.emplace_back([&] { each = autopar::fused::matrix_product(a, b, at::kFloat); });
  for (auto& thread : threads) thread.join();
  for (const auto& each : made) CHECK(torch::equal(each, made[0]));
  CHECK(error(made[0], at::mm(a, b, at::kFloat).to(at::kDouble)) <= 1e-5);
}

TEST_CASE("large matmul: cached algorithm is used if bits agree", "[gpu][products]") {
  const TempFolder temp;
  const auto folder = [&] { return std::make_shared<autopar::CacheFolder>(temp / "kernels"); };
  const auto a = random({4096, 2112}, at::kBFloat16), b = random({2112, 2048}, at::kBFloat16);
  const auto made_by_new = [&] {
    autopar::kernels::MeasuredProducts products;
    products.keep_in(folder());
    const auto to = torch::empty({4096, 2048}, a.options());
    const autopar::kernels::MatrixProduct product{a, b, {}, to};
    REQUIRE(products.queue(product));
    return to;
  };
  const auto first = made_by_new();
  const auto name = std::filesystem::directory_iterator(temp / "kernels")->path().filename().string();
  INFO(name);
  const auto kept = folder()->read(name);
  REQUIRE(kept);
  const auto line = kept->find('\n') + 1;
  REQUIRE(line < kept->size());
  CHECK(torch::equal(first, made_by_new()));
  CHECK(folder()->read(name) == kept);
  for (char other = '0'; other < '8'; ++other) {  // a file that says any other
    REQUIRE(folder()->write(name, kept->substr(0, line) + other + kept->substr(line + 1)));
    CHECK(torch::equal(first, made_by_new()));
  }
}

TEST_CASE("large matmul: memory of autotuning trials is freed", "[gpu][products]") {
  const auto a = random({4096, 2560}, at::kHalf), b = random({2560, 2048}, at::kHalf);
  const auto stats = [] { return at::accelerator::getDeviceStats(0).allocated_bytes[0].current; };
  const auto before = stats();
  const auto made = autopar::fused::matrix_product(a, b, at::kHalf);
  CHECK(stats() - before == made.numel() * made.element_size());
}

}  // namespace gpu_products_test
