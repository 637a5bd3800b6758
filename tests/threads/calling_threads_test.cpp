#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>
#include <refusal.hpp>
#include <temp_folder.hpp>

#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

// Calls of a model come from one thread at a time; which one is all the same.
namespace calling_threads_test {

namespace ap = autopar;

/// Waits in forward, which runs while it is captured, for a second thread to have tried.
struct NetImpl : nets::MeanSquare<nets::Linears> {
  NetImpl() : MeanSquare(4, {{"linear", 3}}) {}
  at::Tensor forward(const at::Tensor& x) {
    if (during) during();
    return MeanSquare::forward(x);
  }
  std::function<void()> during;
};
TORCH_MODULE(Net);

std::string refused_elsewhere(const std::function<void()>& work) {
  std::string text;
  std::thread([&] { text = refusal(work); }).join();
  return text;
}

TEST_CASE("second calling thread: refused while a call is under way", "[threads]") {
  const TempFolder folder;
  ap::World world(0, nullptr);
  Net net, other_net;
  ap::AutoParallel<Net> model(world, net), other(world, other_net);
  const auto x = torch::ones({4, 4});
  other(x).backward();
  torch::optim::SGD optimizer(other->parameters(), 0.1);
  bool tried = false;
  net->during = [&] {
    if (std::exchange(tried, true)) return;
    const std::vector<std::function<void()>> calls{
        [&] { model(x); },
        [&] { other(x); },
        [&] { other->prepare(x); },
        [&] { other->save((folder / "checkpoint").string(), optimizer); },
        [&] { other->load((folder / "checkpoint").string(), optimizer); },
        [&] { static_cast<void>(other->gather(other->parameters()[0])); },
        [&] { static_cast<void>(other->clip_grad_norm_(1.0)); },
        [&] { static_cast<void>(ap::global_mean(world, torch::ones({}), 1)); },
        [&] { world.barrier(); }};
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const auto text = refused_elsewhere(calls[i]);
      CAPTURE(i, text);
      CHECK(contains(text, "another thread of this rank is in 'forward': calls must come from one thread"));
    }
  };
  model(x).backward();
  CHECK(tried);
  CHECK(refused_elsewhere([&] { other(x).backward(); }).empty());  // the way out
}

TEST_CASE("calling thread: may change, backward may use another one", "[threads]") {
  ap::loopback::run(2, [](ap::World& world) {
    torch::manual_seed(1);
    ap::AutoParallel<Net> model(world, Net());
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    const auto step = [&] {
      optimizer.zero_grad();
      const auto loss = model(torch::ones({4, 4}));
      std::async(std::launch::async, [&] { loss.backward(); }).get();
      optimizer.step();
    };
    step();
    std::async(std::launch::async, step).get();
    step();
  });
}

}  // namespace calling_threads_test
