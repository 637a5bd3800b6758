#include "on_ranks.hpp"

#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <catch_shim.hpp>
#include <says.hpp>

#include <autopar/shard/collectives.hpp>
#include <autopar/shard/cross_entropy.hpp>
#include <autopar/shard/linear_cross_entropy.hpp>
#include <autopar/shard/top_k.hpp>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using ap::Placed;
using ap::Split;
using namespace shard_test;

namespace {

/// One way to compute a loss, and its data.
struct Case {
  int classes = 0;
  ap::ParallelCrossEntropyOptions options;
  Tensor logits, target, upstream;
  std::string name;
};

/// With libtorch's operators, all classes in one place.
Tensor dense_loss(const Case& test, const Tensor& logits) {
  auto z = logits;
  if (const auto margin = test.options.margin()) {
    const auto counts = test.target.ne(test.options.ignore_index()).unsqueeze(1);
    const auto index = test.target.unsqueeze(1).masked_fill(counts.logical_not(), 0);
    const auto cosine = z.gather(1, index);
    const auto turned = torch::where(cosine > -std::cos(margin->arc), torch::cos(torch::acos(cosine) + margin->arc),
                                     cosine - margin->arc * std::sin(margin->arc));
    z = z.scatter(1, index, torch::where(counts, turned - margin->cosine, cosine)) * margin->scale;
  }
  return F::cross_entropy(z, test.target,
                          F::CrossEntropyFuncOptions()
                              .weight(test.options.weight())
                              .ignore_index(test.options.ignore_index())
                              .reduction(test.options.reduction())
                              .label_smoothing(test.options.label_smoothing()));
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int classes : {8, 21, 3, 1}) {
    for (const int kind : {0, 1, 2}) {  // plain, ArcFace, CosFace
      for (const double smoothing : {0.0, 0.1}) {
        for (const bool weighted : {false, true}) {
          for (const int reduction : {0, 1, 2}) {
            Case test;
            test.classes = classes;
            auto& options = test.options;
            options.label_smoothing(smoothing);
            if (reduction == 0) options.reduction(torch::kNone);
            if (reduction == 1) options.reduction(torch::kSum);
            if (weighted) options.weight(torch::rand({classes}) + 0.1);
            if (kind == 1) options.margin(ap::Margin{.scale = 4, .arc = 0.5});
            if (kind == 2) options.margin(ap::Margin{.scale = 4, .cosine = 0.35});
            test.logits = kind == 0 ? torch::randn({6, classes}) * 5 : torch::rand({6, classes}) * 1.9 - 0.95;
            test.target = torch::randint(classes, {6});
            if (weighted) options.ignore_index(0);
            if (!weighted) test.target[4] = -100;
            if (classes == 1 && weighted) options.ignore_index(-7);
            test.upstream = reduction == 0 ? torch::randn({6}) : torch::randn({});
            test.name = std::to_string(classes) + " classes, margin " + std::to_string(kind) + ", smoothing " +
                        std::to_string(smoothing) + (weighted ? ", weighted" : "") + ", reduction " +
                        std::to_string(reduction);
            all.push_back(test);
          }
        }
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("parallel_cross_entropy: equals torch's with every option") {
  const DoublePrecision doubles;
  torch::manual_seed(17);
  const auto all = cases();
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, [&](ap::World&, const ap::Groups& groups) {
      const auto& g = groups.tensor;
      for (const auto& test : all) {
        const auto x = leaf(test.logits);
        const auto wanted = dense_loss(test, x);
        wanted.backward(test.upstream);
        for (const bool in_place : {true, false}) {
          const auto own = leaf(part_of(test.logits, g, 1));
          const auto z = own * 1;  // no leaf
          const auto before = z.detach().clone();
          const auto logits = Placed::shard(z, g, 1, Split::even(test.classes, ranks));
          auto options = test.options;
          ap::ParallelCrossEntropyLoss loss(options.in_place(in_place));
          const auto got = loss(logits, test.target);
          must_equal(got, wanted, test.name);
          got.backward(test.upstream);
          must_equal(own.grad(), part_of(x.grad(), g, 1), test.name + ": gradient");
          if (!in_place) must_equal(z, before, "logits are as they were");
        }
      }
    });
  }
}

namespace {

// As a device's library brings them, here for CPUs.
std::atomic<int> device_calls;

bool statistics_of_device(const Tensor& logits, const Tensor& target, std::int64_t first_class, const Tensor& made) {
  ++device_calls;
  const auto own = target - first_class;
  const auto here = own.ge(0).logical_and(own.lt(logits.size(1)));
  made[0].copy_(logits.logsumexp(1));
  made[1].fill_(1);
  made[2].copy_(logits.gather(1, own.masked_fill(here.logical_not(), 0).unsqueeze(1)).squeeze(1) * here);
  return true;
}

bool gradient_of_device(const Tensor& logits, const Tensor& target, const std::optional<Tensor>& weight,
                        const Tensor& log_sums, const Tensor& gradient, std::int64_t first_class, std::int64_t classes,
                        const Tensor& made) {
  ++device_calls;
  const auto counts = target.ge(0).logical_and(target.lt(classes));
  const auto factors = weight ? weight->index_select(0, target.clamp_min(0)) : torch::ones_like(gradient);
  const auto columns = torch::arange(first_class, first_class + logits.size(1));
  const auto is_target = columns.unsqueeze(0).eq(target.unsqueeze(1));
  const auto of_row = (gradient * factors * counts).unsqueeze(1);
  made.copy_(((logits - log_sums.unsqueeze(1)).exp() - is_target.to(torch::kDouble)) * of_row);
  return true;
}

}  // namespace

TEST_CASE("parallel_cross_entropy: a device's kernels have their part of the loss") {
  const DoublePrecision doubles;
  torch::manual_seed(23);
  auto all = cases();
  std::erase_if(all, [](const Case& test) { return test.classes < 3; });
  torch::Library library(torch::Library::IMPL, "autopar", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library.impl("class_block_statistics", statistics_of_device);
  library.impl("class_block_gradient", gradient_of_device);
  device_calls = 0;
  int plain = 0;
  for (const auto& test : all) plain += test.options.label_smoothing() == 0 && !test.options.margin() ? 1 : 0;
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, [&](ap::World&, const ap::Groups& groups) {
      for (const auto& test : all) {
        const auto x = leaf(test.logits), own = leaf(part_of(test.logits, groups.tensor, 1));
        const auto wanted = dense_loss(test, x);
        wanted.backward(test.upstream);
        const auto logits = Placed::shard(own * 1, groups.tensor, 1, Split::even(test.classes, ranks));
        const auto got = ap::parallel_cross_entropy(logits, test.target, test.options);
        must_equal(got, wanted, test.name);
        got.backward(test.upstream);
        must_equal(own.grad(), part_of(x.grad(), groups.tensor, 1), test.name + ": gradient");
      }
    });
  }
  CHECK(plain > 0);
  CHECK(device_calls == 2 * (2 + 3) * plain);
}

TEST_CASE("parallel_cross_entropy: any dims, and replicated logits") {
  const DoublePrecision doubles;
  torch::manual_seed(19);
  const auto vector = torch::randn({5}), images = torch::randn({2, 5, 3, 2});
  const auto one = torch::tensor(3), pixels = torch::randint(5, {2, 3, 2});
  on_ranks(3, [&](ap::World&, const ap::Groups& groups) {
    const auto& g = groups.tensor;
    must_equal(ap::parallel_cross_entropy(ap::scatter(vector, g, 0), one), F::cross_entropy(vector, one), "[C]");
    for (const bool none : {false, true}) {
      const auto torch_options =
          none ? nn::CrossEntropyLossOptions().reduction(torch::kNone) : nn::CrossEntropyLossOptions();
      const auto x = leaf(images), y = leaf(images);
      const auto wanted = F::cross_entropy(y, pixels, torch_options);
      wanted.sum().backward();
      const auto got = ap::parallel_cross_entropy(ap::scatter(x, g, 1), pixels, torch_options);
      must_equal(got, wanted, "[N, C, …]");
      got.sum().backward();
      must_equal(x.grad(), y.grad(), "[N, C, …]: gradient");
      must_equal(ap::parallel_cross_entropy(images, pixels, torch_options), wanted, "on all ranks");
    }
  });
}

// TorchShard, faults 4 and 5: a loss on gathered logits was wrong by log P, one on a slice without its tag local.
TEST_CASE("parallel_cross_entropy: slices are not taken for full logits") {
  const DoublePrecision doubles;
  torch::manual_seed(23);
  const auto logits = torch::randn({4, 21});
  const auto target = torch::randint(5, {4});
  on_ranks(4, [&](ap::World&, const ap::Groups& groups) {
    const auto slice = ap::scatter(logits, groups.tensor, 1);
    must_equal(ap::parallel_cross_entropy(ap::gather(slice), target), F::cross_entropy(logits, target), "gathered");
    check_says({"Shard(1)", "gather(x)"}, [&] { (void)F::cross_entropy(slice, target); });
    const auto heated = slice.map([](const Tensor& t) { return t * 2; });
    must_equal(ap::parallel_cross_entropy(heated, target), F::cross_entropy(logits * 2, target),
               "after element-wise work");
  });
}

TEST_CASE("parallel_cross_entropy: extreme, masked, ignored, no samples") {
  const DoublePrecision doubles;
  const auto infinity = std::numeric_limits<double>::infinity();
  auto far = torch::tensor({{1e4, -1e4, 3., 4.}, {-1e4, -1e4 + 1, -1e4 + 2, -1e4}});
  auto masked = torch::tensor({{-infinity, -infinity, 1., 2.}, {1., 2., -infinity, -infinity}});
  const auto target = torch::tensor({3, 1});
  const auto ignored = torch::full({2}, -100, torch::kLong);
  on_ranks(2, [&](ap::World&, const ap::Groups& groups) {
    const auto& g = groups.tensor;
    for (const auto& logits : {far, masked}) {
      const auto x = leaf(logits), y = leaf(logits);
      const auto got = ap::parallel_cross_entropy(ap::scatter(x, g, 1), target);
      const auto wanted = F::cross_entropy(y, target);
      must_equal(got, wanted, "loss");
      got.backward();
      wanted.backward();
      must_equal(x.grad(), y.grad(), "gradient");
    }
    must_equal(ap::parallel_cross_entropy(ap::scatter(far, g, 1), ignored), F::cross_entropy(far, ignored), "NaN");
    const auto none = torch::empty({0, 4});
    const auto sum = nn::CrossEntropyLossOptions().reduction(torch::kSum);
    must_equal(ap::parallel_cross_entropy(ap::scatter(none, g, 1), ignored.slice(0, 0, 0), sum), torch::zeros({}), "0");
  });
}

TEST_CASE("parallel_cross_entropy: 16-bit logits are rounded once") {
  torch::manual_seed(29);
  const auto logits = (torch::randn({8, 300}) * 6).to(torch::kBFloat16);
  const auto target = torch::randint(300, {8});
  on_ranks(2, [&](ap::World&, const ap::Groups& groups) {
    const auto x = leaf(part_of(logits, groups.tensor, 1)), y = leaf(logits.to(torch::kDouble));
    const auto got = ap::parallel_cross_entropy(Placed::shard(x * 1, groups.tensor, 1), target);
    const auto wanted = F::cross_entropy(y, target);
    must_be(got.scalar_type() == torch::kFloat, "type");
    must_equal(got, wanted, "loss", 1e-6);
    got.backward();
    wanted.backward();
    const auto want = part_of(y.grad(), groups.tensor, 1);
    const auto error = (x.grad().to(torch::kDouble) - want).abs();
    must_be((error <= want.abs() / 256 + 1e-7).all().item<bool>(), "gradient: more than one rounding");
  });
}

TEST_CASE("parallel_cross_entropy: a bad target is named on all ranks") {
  const DoublePrecision doubles;
  for (const std::int64_t bad : {21, -1, 1'000'000}) {
    on_ranks(4, [&](ap::World& world, const ap::Groups& groups) {
      const auto logits = ap::scatter(torch::zeros({3, 21}), groups.tensor, 1);
      const auto target =
          world.rank() == 2 ? torch::tensor(std::vector<std::int64_t>{0, 1, bad}) : torch::tensor({0, 1, 2});
      check_says({"target " + std::to_string(bad), "position 2", "rank 2", "21 classes", "-100"},
                 [&] { (void)ap::parallel_cross_entropy(logits, target); });
      const auto loss =
          ap::parallel_cross_entropy(logits, torch::tensor(std::vector<std::int64_t>{0, 1, bad}),
                                     ap::ParallelCrossEntropyOptions().check_targets(false).reduction(torch::kNone));
      must_be(loss.isnan().sum().item<int>() == 1 && loss[2].isnan().item<bool>(), "unchecked: NaN");
    });
  }
}

TEST_CASE("parallel_cross_entropy: unsupported input is refused") {
  const DoublePrecision doubles;
  on_ranks(2, [](ap::World& world, const ap::Groups& groups) {
    const auto& g = groups.tensor;
    const auto zeros = torch::zeros({3, 4});
    const auto logits = ap::scatter(zeros, g, 1);
    const auto target = torch::tensor({0, 1, 2});
    check_says({"not those on rank 0", "gather features and targets"},
               [&] { (void)ap::parallel_cross_entropy(logits, target + (world.rank() == 0 ? 1 : 0)); });
    check_says({"gather targets"}, [&] { (void)ap::parallel_cross_entropy(logits, target.slice(0, 0, 2)); });
    check_says({"probabilities"}, [&] { (void)ap::parallel_cross_entropy(logits, zeros); });
    check_says({"Shard(0)", "gather(x)"}, [&] {
      (void)ap::parallel_cross_entropy(ap::scatter(torch::zeros({4, 3}), g, 0), target);
    });
    check_says({"Shard(2)", "flatten(0, -2)"}, [&] {
      (void)ap::parallel_cross_entropy(ap::scatter(torch::zeros({3, 1, 4}), g, 2), target);
    });
    check_says({"Partial()", "reduce(x)"},
               [&] { (void)ap::parallel_cross_entropy(Placed::partial(zeros, g), target); });
    const auto with = [&](const ap::ParallelCrossEntropyOptions& options) {
      (void)ap::parallel_cross_entropy(logits, target, options);
    };
    check_says({"weight of 2", "4"}, [&] { with(ap::ParallelCrossEntropyOptions().weight(torch::ones({2}))); });
    check_says({"label_smoothing"}, [&] { with(ap::ParallelCrossEntropyOptions().label_smoothing(1.5)); });
    check_says({"scale"}, [&] { with(ap::ParallelCrossEntropyOptions().margin(ap::Margin{.scale = 0})); });

    const auto x = leaf(zeros.slice(1, 0, 2));
    const auto loss = ap::parallel_cross_entropy(Placed::shard(x * 1, g, 1), target);
    loss.backward({}, true);
    check_says({"second backward", "in_place(false)"}, [&] { loss.backward(); });
    const auto again = ap::parallel_cross_entropy(Placed::shard(x, g, 1), target);  // a leaf is not overwritten
    again.backward({}, true);
    again.backward();
    must_equal(x, zeros.slice(1, 0, 2), "leaf");
  });
}

TEST_CASE("parallel_cross_entropy: all classes of a rank may be -inf") {
  const DoublePrecision doubles;
  torch::manual_seed(29);
  auto logits = torch::randn({5, 6});
  logits.slice(1, 0, 2).fill_(-std::numeric_limits<double>::infinity());
  logits[3][4] = -std::numeric_limits<double>::infinity();
  const auto target = torch::tensor({2, 3, 5, 2, 5});
  const auto dense = leaf(logits);
  const auto wanted = nn::functional::cross_entropy(dense, target);
  wanted.backward();
  on_ranks(3, [&](ap::World&, const ap::Groups& groups) {
    const auto& g = groups.tensor;
    const auto x = leaf(part_of(logits, g, 1));
    const auto got = ap::parallel_cross_entropy(Placed::shard(x, g, 1), target);
    must_equal(got, wanted, "loss");
    got.backward();
    must_equal(x.grad(), part_of(dense.grad(), g, 1), "logits");
  });
}

TEST_CASE("linear_cross_entropy: autocast applies to products alone") {
  torch::manual_seed(41);
  const nn::Linear dense(8, 10);
  const auto x = torch::randn({6, 8});
  const auto target = torch::randint(10, {6});
  on_ranks(2, [&](ap::World&, const ap::Groups& groups) {
    ap::ParallelLinear head(*dense, 1, groups.tensor);
    const auto features = leaf(x);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const auto loss = ap::linear_cross_entropy(features, head, target);
    const auto logits = at::linear(x, dense->weight, dense->bias);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    must_be(logits.scalar_type() == at::kBFloat16, "autocast is on");
    must_equal(loss, nn::functional::cross_entropy(logits.to(at::kFloat), target), "loss", 1e-6);
    loss.backward();
    must_be(features.grad().scalar_type() == at::kFloat, "features");
    must_be(head->weight.grad().scalar_type() == at::kFloat, "weight");
  });
}

TEST_CASE("linear_cross_entropy: chunks of either dim equal the dense") {
  const DoublePrecision doubles;
  torch::manual_seed(31);
  const auto all = cases();
  for (const int ranks : {1, 2, 4}) {
    on_ranks(ranks, [&](ap::World&, const ap::Groups& groups) {
      const auto& g = groups.tensor;
      for (std::size_t i = 0; i < all.size(); ++i) {
        const auto& test = all[i];
        // logits as they are: features are one-hot, the weight their transpose
        const auto features = leaf(torch::eye(6)), weight = leaf(test.logits.t());
        const bool has_bias = i % 4 != 3;
        const auto bias = has_bias ? leaf(torch::linspace(-0.02, 0.02, test.classes)) : Tensor();
        const auto wanted = dense_loss(test, at::linear(features, weight, bias));
        wanted.backward(test.upstream);
        const auto split = Split::even(test.classes, ranks);
        const auto w = leaf(part_of(weight, g, 0, split));
        const auto b = has_bias ? leaf(part_of(bias, g, 0, split)) : Tensor();
        const auto placed_bias = has_bias ? std::optional(Placed::shard(b, g, 0, split)) : std::nullopt;
        for (const bool own_samples : {false, true}) {
          const auto x = leaf(own_samples ? part_of(torch::eye(6), g, 0) : torch::eye(6));
          const auto placed = own_samples ? Placed::shard(x, g, 0) : Placed(x);
          w.mutable_grad() = Tensor();
          if (has_bias) b.mutable_grad() = Tensor();
          const auto chunks = i % 3 == 0   ? ap::LogitChunks::kAuto
                              : i % 3 == 1 ? ap::LogitChunks::kRows
                                           : ap::LogitChunks::kClasses;
          const auto got = ap::linear_cross_entropy(
              placed, Placed::shard(w, g, 0, split), placed_bias, test.target,
              ap::LinearCrossEntropyOptions(test.options).chunks(chunks).chunk_elements(i % 2 == 0 ? 12 : 1 << 20));
          must_equal(got, wanted, test.name);
          got.backward(test.upstream);
          must_equal(w.grad(), part_of(weight.grad(), g, 0, split), test.name + ": weight");
          if (has_bias) must_equal(b.grad(), part_of(bias.grad(), g, 0, split), test.name + ": bias");
          must_equal(x.grad(), own_samples ? part_of(features.grad(), g, 0) : features.grad(),
                     test.name + ": features");
        }
      }
    });
  }
}

TEST_CASE("linear_cross_entropy: refuses layers not sharded by class") {
  const DoublePrecision doubles;
  torch::manual_seed(37);
  nn::Linear dense(4, 7);
  const auto x = torch::randn({5, 4});
  const auto target = torch::randint(7, {5});
  on_ranks(3, [&](ap::World&, const ap::Groups& groups) {
    const auto& g = groups.tensor;
    ap::ParallelLinear head(*dense, 1, g), row(*dense, 0, g), whole(ap::ParallelLinearOptions(4, 7));
    const auto loss = ap::linear_cross_entropy(x, head, target);
    must_equal(loss, F::cross_entropy(dense(x), target), "loss");
    loss.backward();
    must_be(head->weight.grad().defined(), "gradient");
    (void)ap::linear_cross_entropy(x, whole, target);
    check_says({"sharded by class", "dim 1"}, [&] { (void)ap::linear_cross_entropy(x, row, target); });
    check_says({"gather them"}, [&] { (void)ap::linear_cross_entropy(x, head, target.slice(0, 1)); });
    check_says({"own samples", "replicas"},
               [&] { (void)ap::linear_cross_entropy(ap::scatter(x, g, 0), whole, target); });
    check_says({"target 9", "7 classes"}, [&] { (void)ap::linear_cross_entropy(x, head, target * 0 + 9); });
    check_says({"[N, D]"}, [&] { (void)ap::linear_cross_entropy(x.slice(1, 1), head, target); });
  });
}

TEST_CASE("top_k: classes and accuracy equal those of full logits") {
  const DoublePrecision doubles;
  torch::manual_seed(41);
  for (const int classes : {21, 5, 2}) {
    const auto logits = torch::randn({40, classes});
    auto target = torch::randint(classes, {40});
    target[3] = -100;
    for (const int ranks : {1, 2, 4}) {
      on_ranks(ranks, [&](ap::World&, const ap::Groups& groups) {
        const auto z = ap::scatter(logits, groups.tensor, 1);
        for (const std::int64_t k : {1, 2, 5}) {
          if (k > classes) {
            check_says({"no 5 largest"}, [&] { (void)ap::top_k(z, k); });
            continue;
          }
          const auto [values, indices] = ap::top_k(z, k);
          const auto [want_values, want_indices] = logits.topk(k, 1);
          must_equal(values, want_values, "values", 0);
          must_be(torch::equal(indices, want_indices), "classes");
          const auto hits = want_indices.eq(target.unsqueeze(1)).sum().item<double>();
          const auto accuracy = ap::top_k_accuracy(z, target, {1, k});
          must_be(std::abs(accuracy[1].item<double>() - hits / 39) < 1e-12, "accuracy");
        }
        check_says({"top_k takes"}, [&] {
          (void)ap::top_k(Placed::shard(torch::ones({1, 2, 2}), groups.tensor, 0), 1);
        });
      });
    }
  }
}

TEST_CASE("top_k: masked classes are classes, too") {
  const DoublePrecision doubles;
  const auto logits = torch::tensor({{0.5, -HUGE_VAL, -HUGE_VAL, 2.0, -HUGE_VAL}});
  on_ranks(4, [&](ap::World&, const ap::Groups& groups) {
    const auto [values, classes] = ap::top_k(ap::scatter(logits, groups.tensor, 1), 4);
    must_equal(values.slice(1, 0, 2), torch::tensor({{2.0, 0.5}}), "values", 0);
    must_be(values.slice(1, 2).isinf().all().item<bool>(), "masked");
    must_be(std::get<0>(classes.sort(1)).diff(1, 1).gt(0).all().item<bool>(), "each class once");
    must_be(classes.ge(0).logical_and(classes.lt(5)).all().item<bool>(), "classes that there are");
  });
}
