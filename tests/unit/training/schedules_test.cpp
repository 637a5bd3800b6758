#include <autopar/training/schedules.hpp>

#include "catch_shim.hpp"

using autopar::training::cosine_decay;
using autopar::training::linear_decay;
using autopar::training::root_decay;
using autopar::training::step_decay;

TEST_CASE("learning rate: warm-up, then decay to the last step") {
  CHECK(linear_decay(0, 100, 4) == 0.25);
  CHECK(linear_decay(3, 100, 4) == 1);
  CHECK(linear_decay(4, 100, 4) == 1);
  CHECK(linear_decay(52, 100, 4) == Approx(0.5));
  CHECK(linear_decay(100, 100, 4) == 0);
  CHECK(linear_decay(100, 100, 4, 0.1) == Approx(0.1));
  CHECK(cosine_decay(52, 100, 4) == Approx(0.5));
  CHECK(cosine_decay(28, 100, 4) == Approx(0.5 + std::sqrt(0.5) / 2));
  CHECK(cosine_decay(100, 100, 4, 0.1) == Approx(0.1));
  CHECK(cosine_decay(1, 100, 4, 0.1) == 0.5);
}

TEST_CASE("root_decay: equals NVIDIA's BERT scripts") {
  CHECK(root_decay(1, 100, 4) == 0.5);
  CHECK(root_decay(4, 100, 4) == Approx(std::sqrt(0.96)));
  CHECK(root_decay(75, 100, 4) == Approx(0.5));
  CHECK(root_decay(100, 100, 4) == 0);
}

TEST_CASE("step_decay: steps begin at their step") {
  CHECK(step_decay(0, {30, 60}, 2) == 0.5);
  CHECK(step_decay(29, {30, 60}, 2) == 1);
  CHECK(step_decay(30, {30, 60}, 2) == Approx(0.1));
  CHECK(step_decay(60, {30, 60}, 2) == Approx(0.01));
  CHECK(step_decay(60, {30, 60}, 2, 0.5) == Approx(0.25));
}

TEST_CASE("learning rate: no warm-up, and only warm-up") {
  CHECK(linear_decay(0, 10, 0) == 1);
  CHECK(linear_decay(9, 10, 10) == 1);
  CHECK(cosine_decay(9, 10, 20) == 0.5);
}
