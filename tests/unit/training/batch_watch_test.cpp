#include <autopar/training/batch_watch.hpp>

#include <autopar/core/error.hpp>

#include "catch_shim.hpp"

namespace batch_watch_test {

using autopar::training::BatchWatch;
using autopar::training::StepSize;

TEST_CASE("BatchWatch: refuses as many samples a rank on other ranks") {
  BatchWatch watch({256, 4}, 3, false);
  CHECK_THROWS_WITH(watch.see(192),
                    Catch::Matchers::Contains("192 samples on 3 ranks, and took 256 samples on 4 ranks"));
  BatchWatch late({256, 4}, 3, false);
  CHECK(late.see(40).empty());  // an epoch's rest
  CHECK_THROWS_AS(late.see(192), autopar::InvalidArgument);
}

TEST_CASE("BatchWatch: tells once where it is allowed") {
  BatchWatch watch({256, 4}, 3, true);
  CHECK(watch.see(192) == "a step takes 192 samples on 3 ranks, and took 256 samples on 4 ranks");
  CHECK(watch.see(192).empty());
  CHECK(watch.size() == StepSize{192, 3});
}

TEST_CASE("BatchWatch: says nothing of the same batch, the same ranks, or what is not known") {
  for (const StepSize before : {StepSize{256, 4}, StepSize{0, 0}, StepSize{300, 3}, StepSize{512, 3}}) {
    BatchWatch watch(before, 3, false);
    CHECK(watch.size() == before);
    for (const int samples : {0, 256, 13, 256}) CHECK(watch.see(samples).empty());
    CHECK(watch.size() == StepSize{256, 3});
  }
}

}  // namespace batch_watch_test
