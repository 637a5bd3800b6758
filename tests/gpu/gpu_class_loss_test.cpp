#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <ATen/core/Reduction.h>
#include <torch/torch.h>

#include <catch_shim.hpp>

#include "shard/softmax_block.hpp"
#include "torch/fused/class_loss.hpp"

// The kernels of a cross entropy against libtorch's operators in double precision.
namespace gpu_class_loss_test {

using torch::Tensor;

struct Case {
  std::int64_t rows, classes;
  bool weighs = false;
  std::int64_t ignored = -100;
  std::int64_t reduction = at::Reduction::Sum;
};

struct Outcome {
  Tensor loss, gradient;
};

template <class Loss>
Outcome outcome(const Tensor& logits, Loss loss, std::int64_t gap = 0) {
  const auto leaf = logits.clone().requires_grad_();
  // What the gradient may take the memory of.
  const auto copy = gap == 0 ? leaf * 1 : at::constant_pad_nd(leaf, {0, gap}).narrow(1, 0, leaf.size(1));
  const auto of = loss(copy);
  const auto factor = torch::linspace(0.5, 2, of.numel(), of.options()).view_as(of);
  const auto gradient = torch::autograd::grad({(of * factor).sum()}, {leaf})[0];
  return {of.detach().to(at::kDouble), gradient.to(at::kDouble)};
}

double distance(const Tensor& a, const Tensor& b) { return ((a - b).norm() / (b.norm() + 1e-30)).item<double>(); }

TEST_CASE("fused cross entropy: equals libtorch, also for 16-bit logits", "[gpu]") {
  torch::manual_seed(6);
  const std::vector<Case> cases{{64, 50304},
                                {33, 1000, true, 7},
                                {5, 1001, true, 2, at::Reduction::Mean},
                                {17, 3, false, 1, at::Reduction::None},
                                {1, 8, false, -100, at::Reduction::Mean},
                                {128, 30522, false, 0, at::Reduction::Mean}};
  for (const auto& one : cases) {
    const auto target = torch::randint(one.classes, {one.rows}, at::device(at::kCUDA).dtype(at::kLong));
    const auto weight = torch::rand({one.classes}, at::kCUDA) + 0.5;
    const auto drawn = torch::randn({one.rows, one.classes}, at::kCUDA) * 4;
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const bool overwrites : {false, true}) {
        INFO(one.rows << " x " << one.classes << ", " << c10::toString(type) << (overwrites ? ", in place" : ""));
        const auto logits = drawn.to(type);
        const auto weights = one.weighs ? std::optional(weight) : std::nullopt;
        REQUIRE(autopar::fused::has_class_loss_kernels(logits, target, weights));
        const auto made = outcome(logits, [&](const Tensor& of) {
          return autopar::fused::cross_entropy_in_kernels(of, target, weights, one.reduction, one.ignored, overwrites);
        });
        const auto exact = outcome(logits.to(at::kDouble), [&](const Tensor& of) {
          const auto wide = one.weighs ? std::optional(weight.to(at::kDouble)) : std::nullopt;
          return at::cross_entropy_loss(of, target, wide, one.reduction, one.ignored);
        });
        const double rounding = type == at::kFloat ? 2e-6 : type == at::kHalf ? 1e-3 : 4e-3;
        CHECK(distance(made.loss, exact.loss) <= 2e-6);
        CHECK(distance(made.gradient, exact.gradient) <= rounding);
        const auto of_rows_with_gaps = outcome(
            logits,
            [&](const Tensor& of) {
              return autopar::fused::cross_entropy_in_kernels(of, target, weights, one.reduction, one.ignored,
                                                              overwrites);
            },
            8 - one.classes % 8);
        CHECK(distance(of_rows_with_gaps.loss, made.loss) <= 2e-6);
        CHECK(distance(of_rows_with_gaps.gradient, made.gradient) <= rounding);
      }
    }
  }
}

TEST_CASE("fused cross entropy: bad target gives NaN, inf logits work", "[gpu]") {
  const auto infinite = std::numeric_limits<float>::infinity();
  const auto logits = torch::tensor({{1.f, 2.f, -infinite}, {-infinite, -infinite, 3.f}, {0.f, 1.f, 2.f}}, at::kCUDA);
  const auto losses = [&](std::vector<std::int64_t> targets) {
    const auto target = torch::tensor(targets, at::kLong).to(at::kCUDA);
    return autopar::fused::cross_entropy_in_kernels(logits, target, {}, at::Reduction::None, -100, false).cpu();
  };
  const auto expected =
      at::cross_entropy_loss(logits.cpu(), torch::tensor({1, 2, 0}, at::kLong), {}, at::Reduction::None);
  CHECK(torch::allclose(losses({1, 2, 0}), expected, 1e-6, 1e-6));
  const auto odd = losses({3, -1, -100});
  CHECK(odd.isnan().sum().item<std::int64_t>() == 2);
  CHECK(odd[2].item<float>() == 0);
}

TEST_CASE("fused cross entropy: blocks of classes match double precision", "[gpu]") {
  torch::manual_seed(7);
  const auto reference = [](const Tensor& of) { return of.cpu().to(at::kDouble); };
  for (const auto& [rows, classes, first, all] : std::vector<std::array<std::int64_t, 4>>{
           {64, 25152, 25152, 50304}, {33, 501, 0, 1000}, {128, 15258, 15264, 30522}}) {
    const auto index = torch::randint(all, {rows}, at::device(at::kCUDA).dtype(at::kLong));
    const autopar::detail::Targets targets{index, index.ne(3)};
    const auto weight = torch::rand({all}, at::kCUDA) + 0.5;
    for (const bool weighs : {false, true}) {
      autopar::detail::RowLoss loss;
      loss.classes = all;
      auto exact_loss = loss;
      if (weighs) loss.weight = weight;
      if (weighs) exact_loss.weight = reference(weight);
      for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        INFO(classes << " of " << all << " classes, " << c10::toString(type) << (weighs ? ", weighted" : ""));
        const auto logits = (torch::randn({rows, classes}, at::kCUDA) * 4).to(type);
        const autopar::detail::Targets there{index.cpu(), targets.counts.cpu()};
        const auto statistics = autopar::detail::block_statistics(logits, first, targets, loss);
        const auto exact = autopar::detail::block_statistics(reference(logits), first, there, exact_loss);
        CHECK(distance(reference(statistics), exact) <= 2e-6);
        const auto log_sums = exact[0] + 0.5, gradient = torch::linspace(0.5, 2, rows, at::kDouble);
        const auto wanted = torch::empty_like(reference(logits));
        autopar::detail::block_gradient(reference(logits), first, there, exact_loss, exact[0], log_sums, gradient,
                                        wanted);
        const auto single = [](const Tensor& of) { return of.to(at::device(at::kCUDA).dtype(at::kFloat)); };
        for (const bool in_place : {false, true}) {
          const auto from = logits.clone();
          const auto made = in_place ? from : torch::full_like(logits, 7);
          autopar::detail::block_gradient(from, first, targets, loss, single(exact[0]), single(log_sums),
                                          single(gradient), made);
          const double rounding = type == at::kFloat ? 2e-6 : type == at::kHalf ? 1e-3 : 4e-3;
          CHECK(distance(reference(made), wanted) <= rounding);
        }
      }
    }
  }
}

}  // namespace gpu_class_loss_test
