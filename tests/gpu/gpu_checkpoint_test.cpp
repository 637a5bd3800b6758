#include <torch/torch.h>

#include <catch_shim.hpp>
#include <temp_folder.hpp>

#include <string>
#include <utility>
#include <vector>

#include <autopar/autopar.hpp>

// A save in the background of a model on a GPU: its copies come from the stream in which steps are queued.
namespace gpu_checkpoint_test {

namespace ap = autopar;
using torch::Tensor;

/// Large enough that copies take longer than the host takes to queue the next steps.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 8; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
    register_module("layers", layers);
    register_module("norm", norm);
  }
  Tensor forward(const Tensor& input) {
    auto x = input;
    for (auto& layer : *layers) x = torch::gelu(layer->as<torch::nn::Linear>()->forward(x));
    return norm(x).pow(2).mean();
  }
  static constexpr std::int64_t kWidth = 2048;
  torch::nn::ModuleList layers;
  torch::nn::BatchNorm1d norm{kWidth};
};
TORCH_MODULE(Net);

std::vector<std::pair<std::string, Tensor>> copies_of(ap::AutoParallel<Net>& model) {
  std::vector<std::pair<std::string, Tensor>> copies;
  for (const auto& item : model->gather_state()) copies.emplace_back(item.key(), item.value().clone());
  return copies;
}

TEST_CASE("save in the background: what was there at the call, while steps go on", "[gpu]") {
  const TempFolder folder;
  ap::World world(0, nullptr);
  torch::manual_seed(4);
  ap::AutoParallel<Net> model(world, Net());
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
  model->attach(optimizer);
  const auto x = torch::randn({64, NetImpl::kWidth});
  const auto step = [&] {
    optimizer.zero_grad();
    model(x).backward();
    optimizer.step();
  };
  for (int k = 0; k < 3; ++k) step();
  for (int round = 0; round < 2; ++round) {  // the second reuses the pinned memory of the first
    for (const auto format : {ap::single_file(), ap::sharded()}) {
      CAPTURE(round, format == ap::sharded());
      const auto expected = copies_of(model);
      const auto calls = model->stats().calls;
      model->save(folder / "run", optimizer, {.format = format, .wait = false});
      for (int k = 0; k < 5; ++k) step();
      model->wait();
      model->load(folder / "run", optimizer);
      CHECK(model->stats().calls == calls);
      const auto loaded = copies_of(model);
      REQUIRE(loaded.size() == expected.size());
      for (std::size_t i = 0; i < loaded.size(); ++i) {
        CAPTURE(expected[i].first);
        CHECK(torch::equal(loaded[i].second, expected[i].second));
      }
    }
  }
}

}  // namespace gpu_checkpoint_test
