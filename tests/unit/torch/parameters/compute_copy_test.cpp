#include "torch/parameters/compute_copy.hpp"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/InferenceMode.h>
#include <torch/torch.h>

#include <autopar/torch/optim/fused.hpp>
#include <catch_shim.hpp>

namespace compute_copy_test {

namespace ap = autopar;
using ap::parameters::ComputeCopy;
using at::Tensor;

Tensor parameter(at::IntArrayRef sizes = {6, 5}) {
  auto made = torch::randn(sizes).set_requires_grad(true);
  ComputeCopy::keep(made, at::kBFloat16);
  return made;
}

const Tensor& copy_of(const Tensor& parameter) { return ComputeCopy::of(parameter)->current(parameter); }

bool is_rounded(const Tensor& copy, const Tensor& parameter) {
  return copy.scalar_type() == at::kBFloat16 && torch::equal(copy, parameter.detach().to(at::kBFloat16));
}

/// Whether the copy is given as it is: what is put into it by force stays there.
bool is_believed(const Tensor& parameter) {
  const torch::NoGradGuard no_grad;
  const auto before = copy_of(parameter).clone();
  const auto poisoned = ComputeCopy::of(parameter)->to_write(parameter).memory;
  poisoned.fill_(77);
  const bool believed = (copy_of(parameter) == 77).all().item<bool>();
  if (believed) poisoned.copy_(before);
  return believed;
}

/// As `at::_fused_adamw_`, which counts no version.
void fused_step(const Tensor& p) {
  at::_fused_adamw_({p}, {torch::ones_like(p)}, {torch::zeros_like(p)}, {torch::zeros_like(p)}, {}, {torch::ones({})},
                    0.1, 0.9, 0.99, 0, 1e-8, false, false);
}

template <class Optimizer, class Options>
void step(const Tensor& p, Options options) {
  Optimizer optimizer({p}, options);
  p.mutable_grad() = torch::ones_like(p);
  optimizer.step();
}

using Writer = std::pair<std::string, std::function<void(Tensor&)>>;

const std::vector<Writer> kWriters{
    {"an operator", [](Tensor& p) { p.mul_(2); }},
    {"a view", [](Tensor& p) { p[1].fill_(4); }},
    {"data()", [](Tensor& p) { p.data().mul_(2); }},
    {"data() of a view", [](Tensor& p) { p.view(-1).data().mul_(2); }},
    {"detach()", [](Tensor& p) { p.detach().mul_(2); }},
    {"other data", [](Tensor& p) { p.set_data(torch::randn_like(p)); }},
    {"a pointer", [](Tensor& p) { p.data_ptr<float>()[3] = 9; }},
    {"a fused operator", fused_step},
    {"operators on lists", [](Tensor& p) { at::_foreach_add_({p}, 1); }},
    {"torch::optim::AdamW", [](Tensor& p) { step<torch::optim::AdamW>(p, torch::optim::AdamWOptions(0.1)); }},
    {"torch::optim::SGD", [](Tensor& p) { step<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1)); }},
    {"our AdamW", [](Tensor& p) { step<ap::optim::AdamW>(p, torch::optim::AdamWOptions(0.1)); }},
    {"inference mode",
     [](Tensor& p) {
       const c10::InferenceMode inference;
       p.mul_(2);
     }},
};

TEST_CASE("ComputeCopy: cast again after each write, and only then") {
  torch::manual_seed(1);
  for (const auto& [name, write] : kWriters) {
    INFO(name);
    auto p = parameter();
    REQUIRE(is_rounded(copy_of(p), p));
    CHECK(is_believed(p));
    auto unknown = p.data();  // made before, used after
    for (int round = 0; round < 3; ++round) {
      {
        const torch::NoGradGuard no_grad;
        write(p);
      }
      if (ComputeCopy::of(p) == nullptr) break;  // with its old data
      CHECK(is_rounded(copy_of(p), p));
      CHECK(is_believed(p));
    }
    if (ComputeCopy::of(p) == nullptr) continue;
    unknown.add_(1);
    CHECK(is_rounded(copy_of(p), p));
  }
}

TEST_CASE("ComputeCopy: readers of the parameter leave it valid") {
  auto p = parameter();
  static_cast<void>(copy_of(p));
  static_cast<void>(p.detach().sum().item<double>());
  static_cast<void>(p.clone());
  static_cast<void>(torch::mm(p, p.t()));
  static_cast<void>(at::linalg_vector_norm(p));
  static_cast<void>(torch::zeros_like(p).copy_(p));
  static_cast<void>(p.const_data_ptr<float>()[0]);
  (p * p).sum().backward();
  CHECK(is_believed(p));
}

TEST_CASE("ComputeCopy: a held copy keeps its values") {
  auto p = parameter();
  const auto held = copy_of(p).detach();
  const auto before = held.clone();
  CHECK_FALSE(ComputeCopy::of(p)->to_write(p).memory.defined());
  step<ap::optim::AdamW>(p, torch::optim::AdamWOptions(0.1));
  CHECK(torch::equal(held, before));
  CHECK(is_rounded(copy_of(p), p));
  CHECK(torch::equal(held, before));
}

TEST_CASE("ComputeCopy: dropped on request") {
  auto p = parameter();
  static_cast<void>(copy_of(p));
  ComputeCopy::drop(p);
  CHECK(ComputeCopy::of(p) == nullptr);
  step<ap::optim::AdamW>(p, torch::optim::AdamWOptions(0.1));
  CHECK(ComputeCopy::of(p) == nullptr);
}

TEST_CASE("ComputeCopy: not for shared, strided or foreign memory") {
  auto shared = torch::randn({4, 4});
  const auto user = shared.view(-1);
  auto gaps = torch::randn({4, 4}).slice(1, 0, 4, 2);
  std::vector<float> numbers(4);
  auto foreign = torch::from_blob(
      numbers.data(), {4}, [](void*) {}, at::kFloat);
  for (auto* tensor : {&shared, &gaps, &foreign}) {
    ComputeCopy::keep(*tensor, at::kBFloat16);
    CHECK(ComputeCopy::of(*tensor) == nullptr);
  }
}

/// Some with a copy, of each type, and one without; a third layout has none that can be written as the parameter is.
std::vector<Tensor> parameters_with_copies() {
  std::vector<Tensor> made{torch::randn({13}), torch::randn({40, 7}), torch::randn({}),
                           torch::randn({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast)};
  for (auto& p : made) p.set_requires_grad(true);
  ComputeCopy::keep(made[0], at::kBFloat16);
  ComputeCopy::keep(made[1], at::kHalf);
  ComputeCopy::keep(made[3], at::kBFloat16);
  return made;
}

template <class Optimizer, class Options>
void check_steps(const Options& options) {
  torch::manual_seed(2);
  const auto with = parameters_with_copies();
  std::vector<Tensor> without;
  for (const auto& p : with) without.push_back(p.detach().clone().set_requires_grad(true));
  Optimizer ours(with, options), plain(without, options);
  for (int i = 0; i < 4; ++i) {
    for (std::size_t k = 0; k < with.size(); ++k) {
      if (auto* copy = ComputeCopy::of(with[k])) static_cast<void>(copy->current(with[k]));
      with[k].mutable_grad() = torch::randn_like(with[k]);
      without[k].mutable_grad() = with[k].grad().clone();
    }
    ours.step();
    plain.step();
    for (std::size_t k = 0; k < with.size(); ++k) {
      REQUIRE(torch::equal(with[k], without[k]));
      auto* copy = ComputeCopy::of(with[k]);
      if (copy == nullptr) continue;
      const auto written = copy->to_write(with[k]).memory.clone();  // before anyone could cast
      CHECK(torch::equal(written, with[k].detach().to(copy->type())));
      CHECK(is_believed(with[k]));
    }
  }
}

TEST_CASE("ComputeCopy: fused steps write it and equal the plain ones") {
  check_steps<ap::optim::AdamW>(torch::optim::AdamWOptions(0.1).weight_decay(0.1));
  check_steps<ap::optim::Adam>(torch::optim::AdamOptions(0.1).weight_decay(0.1));
  check_steps<ap::optim::Adam>(torch::optim::AdamOptions(0.1).amsgrad(true));
  check_steps<ap::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
}

// ---------------------------------------------------------------- copies in 8 bits

/// A layer with scales whose next weight is cast by 16, until `scales_change`.
struct Scaled {
  ap::fp8::Layers layers;

  Scaled() {
    layers.start({"weight"}, at::kCPU);
    scales_change(20);
  }
  void scales_change(float most) {
    const std::vector<float> calls(ap::fp8::Layers::kHistory, most);
    layers.set_histories({{"weight", {calls, calls, calls}}});
  }
  ap::fp8::NextScale next() { return layers.find("weight")->next_of_weight(); }
  float told() { return next().scale.most.item<float>(); }
};

Tensor cast_of(const Tensor& parameter, const Tensor& factor) {
  return (parameter.detach().to(at::kBFloat16).to(at::kFloat) * factor).clamp(-448, 448).to(at::kFloat8_e4m3fn);
}

bool same_bytes(const Tensor& a, const Tensor& b) { return torch::equal(a.view(at::kByte), b.view(at::kByte)); }

float most_of(const Tensor& parameter) { return parameter.detach().to(at::kBFloat16).abs().max().item<float>(); }

TEST_CASE("ComputeCopy in 8 bits: cast by the next scale after each write, and only then") {
  torch::manual_seed(3);
  for (const auto& [name, write] : kWriters) {
    INFO(name);
    Scaled scaled;
    auto p = parameter({5, 32});
    const auto rows = [&] { return ComputeCopy::of(p)->current_in_8_bits(p, scaled.next()); };
    REQUIRE(same_bytes(rows(), cast_of(p, scaled.next().scale.factor)));
    CHECK(scaled.told() == most_of(p));
    const auto* const memory = rows().const_data_ptr();
    for (int round = 0; round < 3; ++round) {
      {
        const torch::NoGradGuard no_grad;
        write(p);
      }
      if (ComputeCopy::of(p) == nullptr) break;  // with its old data
      CHECK(same_bytes(rows(), cast_of(p, scaled.next().scale.factor)));
      CHECK(scaled.told() >= most_of(p));
      CHECK(rows().const_data_ptr() == memory);
      ComputeCopy::of(p)->to_write(p).memory.view(at::kByte).fill_(1);  // by force
      CHECK(same_bytes(rows(), torch::ones_like(p, at::kByte)));
      p.data().add_(0);
    }
  }
}

TEST_CASE("ComputeCopy in 8 bits: our steps write it, the 16-bit copy goes") {
  Scaled scaled;
  auto p = parameter({16, 48});
  static_cast<void>(copy_of(p));
  auto* const copy = ComputeCopy::of(p);
  static_cast<void>(copy->current_in_8_bits(p, scaled.next()));
  CHECK(copy->to_write(p).memory.scalar_type() == at::kFloat8_e4m3fn);
  scaled.scales_change(300);  // a call comes between
  step<ap::optim::AdamW>(p, torch::optim::AdamWOptions(0.1));
  const auto written = copy->to_write(p).memory.clone();  // before anyone could cast
  CHECK(same_bytes(written, cast_of(p, scaled.next().scale.factor)));
  CHECK(scaled.told() == most_of(p));
  CHECK(is_rounded(copy_of(p), p));  // a call without gradients
  step<ap::optim::SGD>(p, torch::optim::SGDOptions(0.1));
  CHECK(is_rounded(copy_of(p), p));
  CHECK(same_bytes(copy->current_in_8_bits(p, scaled.next()), cast_of(p, scaled.next().scale.factor)));
}

TEST_CASE("ComputeCopy in 8 bits: cast again for other scales, tells magnitudes again") {
  Scaled scaled;
  auto p = parameter({4, 16});
  auto* const copy = ComputeCopy::of(p);
  static_cast<void>(copy->current_in_8_bits(p, scaled.next()));
  scaled.scales_change(300);
  CHECK(scaled.told() == 0);
  CHECK(same_bytes(copy->current_in_8_bits(p, scaled.next()), cast_of(p, scaled.next().scale.factor)));
  CHECK(scaled.told() == most_of(p));
}

TEST_CASE("ComputeCopy in 8 bits: a held copy keeps its values, layers may be gone") {
  auto scaled = std::make_unique<Scaled>();
  auto p = parameter({4, 16});
  auto* const copy = ComputeCopy::of(p);
  auto held = copy->current_in_8_bits(p, scaled->next()).detach();
  const auto before = held.clone();
  scaled.reset();
  CHECK_FALSE(copy->to_write(p).memory.defined());
  step<ap::optim::AdamW>(p, torch::optim::AdamWOptions(0.1));
  CHECK(same_bytes(held, before));
  held.reset();
  step<ap::optim::AdamW>(p, torch::optim::AdamWOptions(0.1));
  CHECK_FALSE(same_bytes(copy->to_write(p).memory, before));
}

TEST_CASE("ComputeCopy in 8 bits: not for rows with gaps") {
  Scaled scaled;
  auto p = torch::empty_strided({16, 32}, {1, 16}).normal_().set_requires_grad(true);
  ComputeCopy::keep(p, at::kBFloat16);
  REQUIRE(ComputeCopy::of(p) != nullptr);
  CHECK_FALSE(ComputeCopy::of(p)->current_in_8_bits(p, scaled.next()).defined());
  CHECK(is_rounded(copy_of(p), p));
}

}  // namespace compute_copy_test
