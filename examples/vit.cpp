// A long training in few lines: a small vision transformer on Fashion-MNIST, on any number of ranks. The folder has
// checkpoints, the best weights and figures; Ctrl-C saves, and the same command goes on.
//
//   mpiexec -n 2 vit FOLDER [STEPS]
#include <iostream>
#include <string>
#include <tuple>

#include <torch/torch.h>
#include <autopar/autopar.hpp>
#include <autopar/training/training.hpp>

#include "data/fashion_mnist.hpp"

namespace ap = autopar;
namespace nn = torch::nn;
namespace training = ap::training;

constexpr int64_t kWidth = 64, kPatch = 7, kBatch = 256;
constexpr auto kData = "/usr/share/datasets/fashion-mnist";

struct VitImpl : nn::Module {
  static nn::TransformerEncoderLayer layer() {
    return nn::TransformerEncoderLayer(
        nn::TransformerEncoderLayerOptions(kWidth, 4).dim_feedforward(4 * kWidth).dropout(0.1));
  }
  /// The mean loss, and how many are right.
  std::tuple<torch::Tensor, torch::Tensor> forward(const torch::Tensor& images, const torch::Tensor& labels) {
    const auto x = patches(images).flatten(2).permute({2, 0, 1}) + places;  // [place, sample, width]
    const auto scores = head(blocks(x).mean(0));
    return {nn::functional::cross_entropy(scores, labels), scores.argmax(1).eq(labels).sum()};
  }
  nn::Conv2d patches = register_module("patches", nn::Conv2d(nn::Conv2dOptions(1, kWidth, kPatch).stride(kPatch)));
  torch::Tensor places = register_parameter("places", 0.02 * torch::randn({16, 1, kWidth}));
  nn::TransformerEncoder blocks = register_module("blocks", nn::TransformerEncoder(layer(), 3));
  nn::Linear head = register_module("head", nn::Linear(kWidth, 10));
};
TORCH_MODULE(Vit);

double accuracy(ap::AutoParallel<Vit>& model, ShardedLoader& held_out) {
  const torch::NoGradGuard no_grad;
  model->eval();
  int64_t right = 0;  // of all ranks
  held_out.start(std::nullopt);
  while (const auto batch = held_out.next()) right += std::get<1>(model(batch->images, batch->labels)).item<int64_t>();
  model->train();
  return static_cast<double>(right) / static_cast<double>(held_out.size());
}

int main(int argc, char** argv) try {
  ap::World world(argc, argv);
  const std::string folder = argc > 1 ? argv[1] : "run";
  const int64_t steps = argc > 2 ? std::stoll(argv[2]) : 4000, parts = training::parts_of(world, kBatch, 64);
  const auto device = ap::device(world);
  const auto data = read_fashion_mnist(kData, "train");
  ShardedLoader held_out(read_fashion_mnist(kData, "t10k"), 1000, world.rank(), world.size(), torch::kFloat, device);

  torch::manual_seed(1);
  ap::AutoParallel<Vit> model(world, [] { return Vit(); }, {.gradient_accumulation = true});
  ap::optim::AdamW optimizer(
      training::decayed_and_not(model->parameters(), ap::optim::AdamWOptions().weight_decay(0.05)));
  model->attach(optimizer);
  training::Epochs order(world, data.size());
  model->keep("order", order);
  const training::RunOptions options{.folder = folder, .steps = steps, .save_every = 200, .work = {"images", kBatch}};
  training::Run run(world, options, model, optimizer);
  while (run.next()) {
    const double rate = 1e-3 * training::cosine_decay(run.step(), steps, 100);
    training::set_learning_rate(optimizer, rate);
    optimizer.zero_grad();
    const auto loss = training::accumulate(model, parts, [&](int64_t) {
      const auto [images, labels] = data.batch(order.share(kBatch / parts), device);
      return std::get<0>(model(images, labels));
    });
    model->clip_grad_norm_(1.0);
    optimizer.step();
    if (run.is_due()) run.log({{"loss", loss.item<double>()}, {"lr", rate}});
    if (run.is_each(500)) {
      const double right = accuracy(model, held_out);
      run.note({{"accuracy", right}});
      run.save_best("accuracy", right);
    }
  }
  return run.exit_status();
} catch (const ap::PlanOnly&) {
  return 0;
} catch (const std::exception& error) {
  std::cerr << "vit: " << error.what() << std::endl;
  return 1;
}
