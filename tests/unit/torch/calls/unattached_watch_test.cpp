#include "torch/calls/unattached_watch.hpp"

#include <torch/torch.h>

#include <catch_shim.hpp>

using namespace autopar;

namespace unattached_watch_test {

TEST_CASE("UnattachedWatch: reports a change once, unless attached") {
  const auto a = torch::ones({3, 4}), b = torch::ones({2000});
  calls::UnattachedWatch watch;
  watch.note_gradient(a);
  watch.note_gradient(b);
  CHECK_FALSE(watch.look().defined());  // call 1 after the gradients: nothing has changed
  b.data().add_(1);                     // as SGD does: the version stays as it was
  CHECK(watch.look().is_same(b));
  CHECK(watch.is_over());
  b.data().add_(1);
  watch.note_gradient(b);
  CHECK_FALSE(watch.look().defined());

  calls::UnattachedWatch attached;
  auto parameters = std::vector<torch::Tensor>{torch::ones({4}).set_requires_grad(true)};
  attached.note_gradient(parameters[0]);
  const torch::optim::SGD optimizer(parameters, 0.1);
  attached.cover(optimizer);
  attached.note_gradient(parameters[0]);
  parameters[0].data().add_(1);
  CHECK_FALSE(attached.look().defined());
}

TEST_CASE("UnattachedWatch: checks calls 1, 2, 4, ... 64 alone") {
  const auto a = torch::ones({5});
  calls::UnattachedWatch watch;
  watch.note_gradient(a);
  for (int call = 1; call <= 32; ++call) CHECK_FALSE(watch.look().defined());
  a.data().add_(1);  // a step after many calls whose gradients add up
  for (int call = 33; call < 64; ++call) CHECK_FALSE(watch.look().defined());
  CHECK(watch.look().is_same(a));

  calls::UnattachedWatch over;
  over.note_gradient(a);
  for (int call = 1; call <= 64; ++call) CHECK_FALSE(over.look().defined());
  CHECK(over.is_over());
  a.data().add_(1);
  for (int call = 65; call <= 128; ++call) CHECK_FALSE(over.look().defined());
}

}  // namespace unattached_watch_test
