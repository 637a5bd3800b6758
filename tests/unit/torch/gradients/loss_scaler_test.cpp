#include "torch/gradients/loss_scaler.hpp"

#include <catch_shim.hpp>

namespace autopar {

TEST_CASE("LossScaler: halves on overflow, doubles after good steps") {
  gradients::LossScaler scaler;
  CHECK(scaler.scale() == 65536);
  scaler.update(true);
  scaler.update(true);
  CHECK(scaler.state() == gradients::LossScaler::State{16384, 0, 2});
  for (std::int64_t i = 1; i < gradients::LossScaler::kGrowthInterval; ++i) scaler.update(false);
  CHECK(scaler.scale() == 16384);
  scaler.update(true);  // begins the interval again
  for (std::int64_t i = 1; i < gradients::LossScaler::kGrowthInterval; ++i) scaler.update(false);
  CHECK(scaler.state() == gradients::LossScaler::State{8192, gradients::LossScaler::kGrowthInterval - 1, 3});
  scaler.update(false);
  CHECK(scaler.state() == gradients::LossScaler::State{16384, 0, 3});
  CHECK(gradients::LossScaler(scaler.state()).state() == scaler.state());
}

TEST_CASE("LossScaler: scale and reciprocal stay normal numbers") {
  gradients::LossScaler low, high({gradients::LossScaler::kLargest, gradients::LossScaler::kGrowthInterval - 1, 0});
  for (int i = 0; i < 1000; ++i) low.update(true);
  CHECK(low.scale() == gradients::LossScaler::kSmallest);
  high.update(false);
  CHECK(high.scale() == gradients::LossScaler::kLargest);
}

}  // namespace autopar
