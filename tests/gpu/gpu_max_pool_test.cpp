#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "kernels/max_pool_source.hpp"
#include "torch/device/device_context.hpp"
#include "torch/fused/fused_ops.hpp"

#include "gpu/kernel_error.hpp"

// The kernels of max-pooling against libtorch's operators, and against those in double precision.
namespace gpu_max_pool_test {

namespace ap = autopar;
using gpu_test::Outcome;
using torch::Tensor;

struct Case {
  std::vector<std::int64_t> sizes, kernel, stride, padding;
  bool ceil_mode = false;
};

/// A tensor for each of two readers.
using Twice = std::tuple<Tensor, Tensor>;

Twice joined(const Tensor& x, const Case& one, std::int64_t dilation = 1) {
  using Operator = Twice(const Tensor&, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, bool);
  static const auto op = gpu_test::operator_named<Operator>(ap::fused::kMaxPool);
  return op.call(x, one.kernel, one.stride, one.padding, {dilation, dilation}, one.ceil_mode);
}

Twice apart(const Tensor& x, const Case& one, std::int64_t dilation = 1) {
  const auto y = at::max_pool2d(x, one.kernel, one.stride, one.padding, {dilation, dilation}, one.ceil_mode);
  return {y, y};
}

Tensor images(const Tensor& numbers, c10::ScalarType type) {
  return gpu_test::at_type(numbers, type).contiguous(at::MemoryFormat::ChannelsLast);
}

/// Result and gradient, of as many readers as there are gradients of theirs.
template <class Operator>
Outcome outcome(Operator pool, const Case& one, const Tensor& x, const std::vector<Tensor>& given) {
  const auto leaf = x.detach().requires_grad_();
  const auto [first, second] = pool(leaf, one, 1);
  std::vector<Tensor> read{first};
  if (given.size() > 1) read.push_back(second);
  return gpu_test::in_double({{"result", first}, {"gradient", torch::autograd::grad(read, {leaf}, given)[0]}});
}

const std::vector<Case> kCases{
    {{8, 64, 17, 9}, {3, 3}, {2, 2}, {1, 1}},
    {{8, 64, 17, 9}, {3, 3}, {2, 2}, {1, 1}, true},
    {{2, 24, 33, 3}, {2, 2}, {}, {0, 0}},
    {{3, 8, 5, 7}, {5, 3}, {1, 2}, {2, 1}, true},
    {{4, 2048, 7, 7}, {7, 7}, {1, 1}, {0, 0}},
    {{2, 520, 12, 11}, {3, 2}, {3, 1}, {1, 0}, true},
    {{2, 8, 40, 40}, {16, 16}, {3, 5}, {8, 8}},
    {{1, 8, 1, 1}, {1, 1}, {1, 1}, {0, 0}},
    {{2, 16, 9, 300}, {2, 2}, {3, 3}, {0, 0}, false},
    {{16, 64, 112, 112}, {3, 3}, {2, 2}, {1, 1}},
};

TEST_CASE("max pool: kernels equal libtorch", "[gpu]") {
  REQUIRE(ap::devices::context_of(at::kCUDA).has_kernels(ap::kernels::kMaxPoolKernels, 0));
  for (const auto& one : kCases) {
    INFO(c10::IntArrayRef(one.sizes) << " by " << c10::IntArrayRef(one.kernel) << (one.ceil_mode ? ", ceil mode" : ""));
    torch::manual_seed(7);
    const auto x = torch::randn(one.sizes);
    const auto like = at::max_pool2d(x, one.kernel, one.stride, one.padding, 1, one.ceil_mode);
    const std::vector<Tensor> numbers{torch::randn_like(like), torch::randn_like(like)};
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const std::size_t readers : {1, 2}) {
        INFO(c10::toString(type) << ", readers: " << readers);
        const auto given = [&](c10::ScalarType to) {
          std::vector<Tensor> gradients;
          for (std::size_t i = 0; i < readers; ++i) gradients.push_back(images(numbers[i], to));
          return gradients;
        };
        const auto made = outcome(joined, one, images(x, type), given(type)),
                   libtorch = outcome(apart, one, images(x, type), given(type)),
                   exact = outcome(apart, one, images(x, at::kDouble), given(at::kDouble));
        CHECK(torch::equal(made[0].second, libtorch[0].second));
        gpu_test::check_error(made, libtorch, exact);
        CHECK(torch::equal(made[1].second, outcome(joined, one, images(x, type), given(type))[1].second));
      }
    }
  }
}

TEST_CASE("max pool: gradient goes to the first maximum, or last NaN", "[gpu]") {
  const Case one{{4, 16, 19, 21}, {3, 3}, {2, 2}, {1, 1}};
  torch::manual_seed(8);
  auto x = torch::randint(3, one.sizes).to(at::kFloat);
  const auto few = torch::rand(one.sizes) < 0.05;
  const auto with_nan = x.masked_fill(few, std::numeric_limits<float>::quiet_NaN());
  const auto like = at::max_pool2d(x, one.kernel, one.stride, one.padding);
  const auto given = torch::randint(-3, 4, like.sizes()).to(at::kFloat);  // whose sums are exact
  for (const auto& drawn : {x, with_nan}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const auto made = outcome(joined, one, images(drawn, type), {images(given, type)}),
                 expected = outcome(apart, one, images(drawn, type), {images(given, type)});
      CHECK(torch::allclose(made[0].second, expected[0].second, 0, 0, /*equal_nan=*/true));
      CHECK(torch::equal(made[1].second, expected[1].second));
    }
  }
  const Case halves{{2, 8, 6, 4}, {2, 2}, {2, 2}, {0, 0}};
  const auto least = images(torch::full(halves.sizes, -std::numeric_limits<float>::infinity()), at::kHalf);
  const auto ones = images(torch::ones({2, 8, 3, 2}), at::kHalf);
  const auto made = outcome(joined, halves, least, {ones})[1].second;
  CHECK(torch::equal(made.slice(2, 0, 6, 2).slice(3, 0, 4, 2), ones.to(at::kDouble)));
  CHECK(made.sum().item<double>() == ones.numel());
}

TEST_CASE("max pool: unsupported input runs in libtorch, errors too", "[gpu]") {
  const Case square{{3, 16, 8, 8}, {2, 2}, {2, 2}, {0, 0}};
  const auto numbers = torch::randn(square.sizes, at::kCUDA);
  const auto check = [&](const Tensor& x, std::int64_t dilation = 1) {
    const auto made = std::get<0>(joined(x, square, dilation)), expected = std::get<0>(apart(x, square, dilation));
    CHECK(torch::equal(made, expected));
    CHECK(made.strides() == expected.strides());
  };
  check(numbers);                                                             // channels apart
  check(numbers.narrow(1, 0, 6).contiguous(at::MemoryFormat::ChannelsLast));  // that packs do not divide
  check(numbers.contiguous(at::MemoryFormat::ChannelsLast).narrow(3, 1, 6));  // with gaps
  check(numbers.contiguous(at::MemoryFormat::ChannelsLast), 2);
  check(numbers.narrow(0, 0, 0).contiguous(at::MemoryFormat::ChannelsLast));
  check(numbers[0]);
  const Case too_large{{}, {9, 9}, {1, 1}, {0, 0}}, padded{{}, {2, 2}, {1, 1}, {2, 2}};
  for (const auto& wrong : {too_large, padded})
    CHECK_THROWS_AS(joined(numbers.contiguous(at::MemoryFormat::ChannelsLast), wrong), c10::Error);
}

}  // namespace gpu_max_pool_test
