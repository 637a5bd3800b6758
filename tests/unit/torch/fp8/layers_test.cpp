#include "torch/fp8/layers.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <torch/types.h>

#include <catch_shim.hpp>

namespace autopar::test {
namespace {

using fp8::Layers;

double number(const at::Tensor& tensor) { return tensor.item<double>(); }

/// A training call of one rank in which the operands had these largest magnitudes.
void call_with(Layers& layers, double x, double weight, double gradient) {
  layers.begin_call();
  auto* const layer = layers.find("fc.weight");
  fused::see_largest(torch::full({3}, -x, torch::kBFloat16), layer->x().most);
  fused::see_largest(torch::full({2, 2}, weight, torch::kBFloat16), layer->of_weight().most);
  fused::see_largest(torch::full({1}, gradient, torch::kBFloat16), layer->gradient().most);
  layer->has_seen_gradient = true;
  layers.agree(layers.take_seen(0, 1));
}

TEST_CASE("fp8::Layers: scales are powers of two that just fit the largest of 16 calls", "[fp8]") {
  Layers layers;
  layers.start({"fc.weight"}, at::kCPU);
  auto* const layer = layers.find("fc.weight");
  REQUIRE(layer != nullptr);
  CHECK(layers.find("other.weight") == nullptr);
  CHECK_FALSE(layer->is_ready);
  call_with(layers, 3, 0.25, 1e-4);
  CHECK_FALSE(layer->is_ready);
  layers.begin_call();
  CHECK(layer->is_ready);
  CHECK(number(layer->x().factor) == 128);           // 448 / 3 = 149
  CHECK(number(layer->of_weight().factor) == 1024);  // 448 / 0.25 = 1792
  CHECK(number(layer->x().unit) == 1.0 / 128);
  const auto scaled = number(layer->gradient().factor) * 1e-4;
  CHECK((scaled <= 57344 && scaled * 2 > 57344 * 0.99));
  call_with(layers, 300, 0.25, 1e-4);
  for (int k = 0; k < 15; ++k) {
    call_with(layers, 3, 0.25, 1e-4);
    INFO(k);
    CHECK(number(layer->x().factor) == 1);  // of 300
  }
  call_with(layers, 3, 0.25, 1e-4);
  layers.begin_call();
  CHECK(number(layer->x().factor) == 128);  // 300 is 17 calls ago
}

TEST_CASE("fp8::Layers: scales that are taken stay as they are in later calls", "[fp8]") {
  Layers layers;
  layers.start({"fc.weight"}, at::kCPU);
  call_with(layers, 3, 1, 1);
  layers.begin_call();
  const auto taken = layers.find("fc.weight")->x();
  call_with(layers, 100, 1, 1);
  layers.begin_call();
  CHECK(number(taken.factor) == 128);
  CHECK(number(layers.find("fc.weight")->x().factor) == 4);
}

TEST_CASE("fp8::Layers: what is not finite or was not run leaves the history", "[fp8]") {
  Layers layers;
  layers.start({"fc.weight"}, at::kCPU);
  call_with(layers, 3, 1, 1);
  for (const double odd : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const auto before = layers.not_finite();
    call_with(layers, odd, 1, 1);
    layers.begin_call();
    CHECK(number(layers.find("fc.weight")->x().factor) == 128);
    CHECK(layers.not_finite() == before + 1);
  }
  layers.agree(layers.take_seen(0, 1));  // of a call that did not run the layer
  layers.begin_call();
  CHECK(number(layers.find("fc.weight")->x().factor) == 128);
}

TEST_CASE("fp8::Layers: the largest of all ranks counts", "[fp8]") {
  std::vector<Layers> ranks(3);
  at::Tensor all;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].start({"a", "b"}, at::kCPU);
    fused::see_largest(torch::full({2}, 1.0 + static_cast<double>(r)), ranks[r].find("b")->x().most);
    const auto seen = ranks[r].take_seen(r, ranks.size());
    all = all.defined() ? all + seen : seen;
  }
  for (auto& layers : ranks) {
    layers.agree(all);
    layers.begin_call();
    CHECK(number(layers.find("b")->x().factor) == 128);
    CHECK(number(layers.find("a")->x().factor) == 1);
  }
}

TEST_CASE("fp8::Layers: a rank that ran nothing has scales when others have", "[fp8]") {
  Layers layers, idle;
  layers.start({"fc.weight", "other.weight"}, at::kCPU);
  idle.start({"fc.weight", "other.weight"}, at::kCPU);
  call_with(layers, 3, 1, 1);
  for (auto* const rank : {&layers, &idle}) {
    CHECK_FALSE(rank->all_ready());
    for (const auto& seen : {layers.seen_gradients(), idle.seen_gradients()}) rank->add_seen_gradients(seen);
    rank->begin_call();
    CHECK(rank->ready() == std::vector<bool>{true, false});
  }
  idle.find("other.weight")->has_seen_gradient = true;
  idle.begin_call();
  CHECK(idle.all_ready());
}

TEST_CASE("fp8::Layers: histories are taken on as they are", "[fp8]") {
  Layers layers, others;
  layers.start({"fc.weight", "unused.weight"}, at::kCPU);
  for (int k = 0; k < 20; ++k) call_with(layers, 1 + k, 0.5, 1e-3 * (k + 1));
  const auto saved = layers.histories();  // before the next call has taken what the last one saw
  REQUIRE(saved.size() == 1);
  CHECK(saved.at("fc.weight").x.back() == 20);
  CHECK(saved.at("fc.weight").x.front() == 5);
  others.start({"fc.weight", "unused.weight"}, at::kCPU);
  others.set_histories(saved);
  layers.begin_call();
  others.begin_call();
  CHECK(others.find("fc.weight")->is_ready);
  CHECK_FALSE(others.find("unused.weight")->is_ready);
  CHECK(number(others.find("fc.weight")->x().factor) == number(layers.find("fc.weight")->x().factor));
  CHECK(number(others.find("fc.weight")->gradient().factor) == number(layers.find("fc.weight")->gradient().factor));
  CHECK((others.histories() == layers.histories()));
  others.set_histories({});
  CHECK_FALSE(others.find("fc.weight")->is_ready);
}

}  // namespace
}  // namespace autopar::test
