#include <exception>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/DeviceAccelerator.h>
#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <autopar/autopar.hpp>

#include "deterministic_cudnn.hpp"
#include "replayed_training.hpp"

// Steps that are recorded and replayed beside the same steps launched kernel by kernel: the same bits, whatever happens
// between them.
namespace gpu_repeated_steps_test {

namespace ap = autopar;
namespace F = torch::nn::functional;
using torch::Tensor;

constexpr std::int64_t kImages = 16, kClasses = 10, kChannels = 8, kSide = 8;

/// Two convolutions with batch norms, a shared weight and a counter; without labels its results are logits, and the
/// loss is the user's.
struct Net : torch::nn::Module {
  explicit Net(double dropout = 0) : dropout_(dropout) {
    nets::register_all(*this, "first", first, "norm", norm, "second", second, "head", head);
    calls = register_buffer("calls", torch::zeros({}));
  }
  Tensor logits(const Tensor& images) {
    if (is_training()) calls += 1;
    auto x = torch::relu(norm(first(images)));
    x = torch::relu(norm(second(x) + x));
    if (dropout_ > 0) x = F::dropout(x, F::DropoutFuncOptions().p(dropout_).training(is_training()));
    return head(x.flatten(1));
  }
  Tensor forward(const Tensor& images, const Tensor& labels) {
    const auto made = logits(images);
    return labels.defined() ? F::cross_entropy(made, labels) : made;
  }

  torch::nn::Conv2d first{torch::nn::Conv2dOptions(3, kChannels, 3).padding(1)},
      second{torch::nn::Conv2dOptions(kChannels, kChannels, 3).padding(1)};
  torch::nn::BatchNorm2d norm{kChannels};
  torch::nn::Linear head{kChannels * kSide * kSide, kClasses};
  Tensor calls;

 private:
  double dropout_;
};

struct Setting {
  ap::CudaGraphs graphs = ap::CudaGraphs::kAuto;
  ap::Precision precision = ap::Precision::kModule;
  bool is_loss_outside = false;
  double dropout = 0;
};

using Model = ap::AutoParallel<std::shared_ptr<Net>>;

struct Batch {
  Tensor images, labels;
};

Batch batch_of(std::int64_t samples, c10::Device device) {
  return {torch::randn({samples, 3, kSide, kSide}).to(device), torch::randint(kClasses, {samples}).to(device)};
}

using Training = ReplayedTraining;

/// What happens before a step, by its number, in place of zero_grad.
using Between = std::function<void(int step, Model& model, Net& net, torch::optim::Optimizer& optimizer)>;

void nothing(int, Model&, Net&, torch::optim::Optimizer&) {}

Training train(
    ap::World& world, const Setting& setting, int steps, const Between& between,
    const std::function<std::int64_t(int)>& samples = [](int) { return kImages; },
    const Between& before_backward = nothing) {
  torch::manual_seed(3);
  const auto net = std::make_shared<Net>(setting.dropout);
  ap::Options options;
  options.precision = setting.precision;
  options.cuda_graphs = setting.graphs;
  Model model(world, net, options);
  ap::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  model->attach(optimizer);
  torch::manual_seed(4);
  Training training;
  for (int step = 0; step < steps; ++step) {
    const auto batch = batch_of(samples(step), ap::device(world));
    between(step, model, *net, optimizer);
    const auto made = model(batch.images, setting.is_loss_outside ? Tensor() : batch.labels);
    const auto loss = setting.is_loss_outside ? F::cross_entropy(made.to(torch::kFloat), batch.labels) : made;
    before_backward(step, model, *net, optimizer);
    loss.backward();
    optimizer.step();
    training.losses.push_back(loss.item<double>());
  }
  for (const auto& each : net->named_parameters()) training.state.emplace_back(each.key(), each.value().detach().cpu());
  for (const auto& each : net->named_buffers()) training.state.emplace_back(each.key(), each.value().detach().cpu());
  training.replayed = model->stats().replayed;
  return training;
}

void zero_grad(int, Model&, Net&, torch::optim::Optimizer& optimizer) { optimizer.zero_grad(); }

TEST_CASE("CUDA graphs: repeated steps are replayed bit for bit", "[gpu]") {
  ap::World world(0, nullptr);
  const DeterministicCuDnn kernels;
  for (const ap::Precision precision :
       {ap::Precision::kModule, ap::Precision::kBf16, ap::Precision::kBf16Compute, ap::Precision::kFp16}) {
    for (const bool is_loss_outside : {false, true}) {
      INFO(ap::option_text(precision) << (is_loss_outside ? ", loss outside" : ""));
      const auto replayed = train(world, {ap::CudaGraphs::kAuto, precision, is_loss_outside}, 10, zero_grad);
      const auto launched = train(world, {ap::CudaGraphs::kOff, precision, is_loss_outside}, 10, zero_grad);
      CHECK(replayed.replayed == 6);
      CHECK(launched.replayed == 0);
      check_same(replayed, launched);
    }
  }
}

TEST_CASE("CUDA graphs: zero_grad may precede the outside loss backward", "[gpu]") {
  ap::World world(0, nullptr);
  const DeterministicCuDnn kernels;
  const auto samples = [](int) { return kImages; };
  for (const bool accumulates : {false, true}) {
    const Between drop = [accumulates](int step, Model&, Net&, torch::optim::Optimizer& optimizer) {
      if (!accumulates || step != 7) optimizer.zero_grad();
    };
    const auto replayed =
        train(world, {ap::CudaGraphs::kAuto, ap::Precision::kModule, true}, 12, nothing, samples, drop);
    CHECK(replayed.replayed == (accumulates ? 4 : 8));  // none after one whose gradients cannot be replayed
    check_same(replayed,
               train(world, {ap::CudaGraphs::kOff, ap::Precision::kModule, true}, 12, nothing, samples, drop));
  }
}

TEST_CASE("CUDA graphs: several forwards precede or lack a backward", "[gpu]") {
  ap::World world(0, nullptr);
  const DeterministicCuDnn kernels;
  std::vector<std::vector<Tensor>> trained;
  std::vector<std::int64_t> replayed;
  for (const ap::CudaGraphs graphs : {ap::CudaGraphs::kAuto, ap::CudaGraphs::kOff}) {
    torch::manual_seed(3);
    const auto net = std::make_shared<Net>();
    ap::Options options;
    options.cuda_graphs = graphs;
    Model model(world, net, options);
    torch::optim::SGD optimizer(net->parameters(), 0.05);
    torch::manual_seed(4);
    for (int step = 0; step < 12; ++step) {
      const auto one = batch_of(kImages, ap::device(world)), two = batch_of(kImages, ap::device(world));
      optimizer.zero_grad();
      const auto first = model(one.images, Tensor());
      auto loss = F::cross_entropy(first, one.labels);
      if (step == 8) loss = loss + F::cross_entropy(model(two.images, Tensor()), two.labels);
      if (step == 9) static_cast<void>(model(two.images, Tensor()));
      if (step == 10) {
        const auto gradient = torch::autograd::grad({loss}, {net->head->weight})[0];
        net->head->weight.mutable_grad() = gradient.clone();
      } else {
        loss.backward();
      }
      optimizer.step();
    }
    std::vector<Tensor> parameters;
    for (const auto& parameter : net->parameters()) parameters.push_back(parameter.detach().cpu());
    for (const auto& buffer : net->buffers()) parameters.push_back(buffer.detach().cpu());
    trained.push_back(std::move(parameters));
    replayed.push_back(model->stats().replayed);
  }
  CHECK(replayed[0] >= 4);
  CHECK(replayed[1] == 0);
  for (std::size_t i = 0; i < trained[0].size(); ++i) CHECK(torch::equal(trained[0][i], trained[1][i]));
}

TEST_CASE("CUDA graphs: parameter write before backward is an error", "[gpu]") {
  ap::World world(0, nullptr);
  const Between write = [](int step, Model&, Net& net, torch::optim::Optimizer&) {
    const torch::NoGradGuard no_grad;
    if (step == 8) net.head->weight.mul_(0.5);
  };
  const auto samples = [](int) { return kImages; };
  CHECK_THROWS_WITH(train(world, {ap::CudaGraphs::kAuto, ap::Precision::kModule, true}, 10, zero_grad, samples, write),
                    Catch::Matchers::ContainsSubstring("was written between the forward and the backward"));
}

TEST_CASE("CUDA graphs: user changes between steps take effect", "[gpu]") {
  ap::World world(0, nullptr);
  const DeterministicCuDnn kernels;
  const std::map<std::string, Between> cases{
      {"weights written in place",
       [](int step, Model&, Net& net, torch::optim::Optimizer& optimizer) {
         optimizer.zero_grad();
         const torch::NoGradGuard no_grad;
         if (step == 6) net.first->weight.mul_(0.5);
         if (step == 7) net.head->weight.data().add_(0.25);
         if (step == 8) net.norm->running_mean.fill_(0.125);
       }},
      {"weights replaced",
       [](int step, Model&, Net& net, torch::optim::Optimizer& optimizer) {
         optimizer.zero_grad();
         if (step == 6) net.first->weight.set_data(net.first->weight.detach().clone().mul_(2));
       }},
      {"a weight that lies otherwise in its memory",
       [](int step, Model&, Net& net, torch::optim::Optimizer& optimizer) {
         optimizer.zero_grad();
         if (step == 6) net.second->weight.set_data(net.second->weight.detach().transpose(0, 1));
       }},
      {"gradients that stay",
       [](int step, Model&, Net&, torch::optim::Optimizer& optimizer) {
         if (step % 3 != 2) optimizer.zero_grad();
       }},
      {"gradients set to zero",
       [](int, Model&, Net&, torch::optim::Optimizer& optimizer) { optimizer.zero_grad(false); }},
      {"a layer that is frozen",
       [](int step, Model&, Net& net, torch::optim::Optimizer& optimizer) {
         optimizer.zero_grad();
         if (step == 6) net.second->weight.requires_grad_(false);
         if (step == 9) net.second->weight.requires_grad_(true);
       }},
      {"another learning rate",
       [](int step, Model&, Net&, torch::optim::Optimizer& optimizer) {
         optimizer.zero_grad();
         for (auto& group : optimizer.param_groups())
           static_cast<torch::optim::SGDOptions&>(group.options()).lr(0.05 / (1 + step));
       }},
      {"evaluation",
       [](int step, Model& model, Net& net, torch::optim::Optimizer& optimizer) {
         optimizer.zero_grad();
         if (step % 3 != 0) return;
         const torch::NoGradGuard no_grad;
         model->eval();
         const auto batch = batch_of(kImages, net.head->weight.device());
         static_cast<void>(model(batch.images, batch.labels));
         model->train();
       }},
  };
  for (const auto& [name, between] : cases) {
    INFO(name);
    const std::pair<ap::Precision, bool> settings[] = {
        {ap::Precision::kModule, false}, {ap::Precision::kModule, true}, {ap::Precision::kBf16Compute, false}};
    for (const auto& [precision, is_loss_outside] : settings) {
      INFO(ap::option_text(precision) << (is_loss_outside ? ", loss outside" : ", loss in forward"));
      const auto replayed = train(world, {ap::CudaGraphs::kAuto, precision, is_loss_outside}, 13, between);
      const bool can_be = is_loss_outside || name != "gradients set to zero";
      CHECK((replayed.replayed > 0) == can_be);
      check_same(replayed, train(world, {ap::CudaGraphs::kOff, precision, is_loss_outside}, 13, between));
    }
  }
}

TEST_CASE("CUDA graphs: smaller last batch runs eagerly, graph is kept", "[gpu]") {
  ap::World world(0, nullptr);
  const DeterministicCuDnn kernels;
  const auto samples = [](int step) { return step % 6 == 5 ? kImages / 2 : kImages; };
  const auto replayed = train(world, {ap::CudaGraphs::kAuto}, 14, zero_grad, samples);
  CHECK(replayed.replayed >= 7);
  check_same(replayed, train(world, {ap::CudaGraphs::kOff}, 14, zero_grad, samples));
}

/// Steps, then one call without gradients, for which the device has too little memory beside a recording, then steps.
std::pair<Training, Tensor> with_evaluation(ap::World& world, ap::CudaGraphs graphs) {
  constexpr std::int64_t kMany = 32768, kLeft = 64 << 20;  // samples, bytes: two results of a convolution
  constexpr int kSteps = 12;
  Tensor evaluated;
  const auto evaluate = [&](int step, Model& model, Net& net, torch::optim::Optimizer& optimizer) {
    optimizer.zero_grad();
    if (step != kSteps / 2) return;
    const auto device = ap::device(world);
    const auto images = batch_of(kMany, device).images;
    at::accelerator::emptyCache();
    const auto free = static_cast<std::int64_t>(at::accelerator::getMemoryInfo(device.index()).first);
    Tensor others;
    if (graphs != ap::CudaGraphs::kOff)
      others = torch::empty({free - kLeft}, torch::dtype(torch::kByte).device(device));
    const torch::NoGradGuard no_grad;
    net.eval();
    evaluated = model(images, Tensor());
    net.train();
  };
  auto training = train(world, {graphs}, kSteps, evaluate, [](int) { return kMany; });
  return {std::move(training), evaluated};
}

TEST_CASE("CUDA graphs: graph memory is freed for an eager call", "[gpu]") {
  ap::World world(0, nullptr);
  const DeterministicCuDnn kernels;
  const auto [recorded, result] = with_evaluation(world, ap::CudaGraphs::kAuto);
  CHECK(recorded.replayed > 0);
  CHECK(recorded.replayed < 4);  // none after that
  const auto [launched, expected] = with_evaluation(world, ap::CudaGraphs::kOff);
  check_same(recorded, launched);
  CHECK(torch::equal(result, expected));
}

TEST_CASE("CUDA graphs: kept gradients and results are not overwritten", "[gpu]") {
  ap::World world(0, nullptr);
  torch::manual_seed(3);
  const auto net = std::make_shared<Net>();
  Model model(world, net);
  ap::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05));
  model->attach(optimizer);
  std::vector<std::pair<Tensor, Tensor>> kept;  // as given, and a copy
  for (int step = 0; step < 10; ++step) {
    const auto batch = batch_of(kImages, ap::device(world));
    optimizer.zero_grad();
    auto loss = model(batch.images, batch.labels);
    loss.backward();
    const auto result = loss.detach(), gradient = net->head->weight.grad();
    kept.emplace_back(result, result.clone());
    if (step % 2 == 1) kept.emplace_back(gradient, gradient.clone());
    optimizer.step();
    if (step == 7) kept.erase(kept.begin(), kept.begin() + 4);
  }
  for (const auto& [given, copy] : kept) CHECK(torch::equal(given, copy));
}

TEST_CASE("CUDA graphs: replayed dropout equals the eager call's", "[gpu]") {
  ap::World world(0, nullptr);
  const DeterministicCuDnn kernels;
  for (const bool is_loss_outside : {false, true}) {
    INFO((is_loss_outside ? "loss outside" : "loss in forward"));
    const auto training =
        train(world, {ap::CudaGraphs::kAuto, ap::Precision::kModule, is_loss_outside, 0.5}, 10, zero_grad);
    CHECK(training.replayed == 6);
    check_same(training,
               train(world, {ap::CudaGraphs::kOff, ap::Precision::kModule, is_loss_outside, 0.5}, 10, zero_grad));
    CHECK(training.losses[8] != training.losses[9]);
  }
}

/// A transformer's block as people write it: attention that drops, residuals that drop, noise.
struct Block : torch::nn::Module {
  static constexpr std::int64_t kWidth = 64, kHeads = 2, kWords = 16;

  explicit Block(bool is_loss_outside) : is_loss_outside_(is_loss_outside) {
    nets::register_all(*this, "in", in, "out", out, "wide", wide, "narrow", narrow, "norm", norm, "last_norm",
                       last_norm, "drop", drop);
  }
  Tensor forward(const Tensor& x) {
    auto made = block(block(x + 0.1 * torch::randn_like(x)));
    return is_loss_outside_ ? made : made.square().mean();
  }

  torch::nn::Linear in{kWidth, 3 * kWidth}, out{kWidth, kWidth}, wide{kWidth, 4 * kWidth}, narrow{4 * kWidth, kWidth};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({kWidth})}, last_norm{torch::nn::LayerNormOptions({kWidth})};
  torch::nn::Dropout drop{0.2};

 private:
  Tensor block(const Tensor& x) {
    const auto heads = in(x).view({x.size(0), kWords, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4}).unbind();
    const auto read = at::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, is_training() ? 0.1 : 0.0);
    const auto y = norm(x + drop(out(read.transpose(1, 2).reshape(x.sizes()))));
    return last_norm(y + drop(narrow(torch::gelu(wide(y)))));
  }

  bool is_loss_outside_;
};

struct BlockSetting {
  ap::CudaGraphs graphs = ap::CudaGraphs::kAuto;
  ap::Precision precision = ap::Precision::kBf16Compute;
  ap::Recompute recompute = ap::Recompute::kToFit;
  int microbatches = 0;
  bool is_loss_outside = false, checks_between = false;
};

struct BlockTraining {
  std::vector<Tensor> parameters;
  std::int64_t replayed = 0;
};

BlockTraining train_block(ap::World& world, const BlockSetting& setting) {
  torch::manual_seed(3);
  const auto net = std::make_shared<Block>(setting.is_loss_outside);
  ap::Options options;
  options.precision = setting.precision;
  options.cuda_graphs = setting.graphs;
  options.recompute = setting.recompute;
  if (setting.microbatches > 0) options.microbatches = setting.microbatches;
  ap::AutoParallel<std::shared_ptr<Block>> model(world, net, options);
  ap::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));
  model->attach(optimizer);
  torch::manual_seed(4);
  for (int step = 0; step < 10; ++step) {
    const auto x = torch::randn({8, Block::kWords, Block::kWidth}).to(ap::device(world));
    optimizer.zero_grad();
    if (setting.checks_between && step % 3 == 1) {
      const torch::NoGradGuard no_grad;
      model->eval();
      static_cast<void>(model(x));
      model->train();
    }
    auto made = model(x);
    if (setting.checks_between && step == 8) {  // a second forward before the backward of the first
      made = made + model(2 * x);
    }
    (setting.is_loss_outside ? made.to(torch::kFloat).square().mean() : made).backward();
    optimizer.step();
  }
  BlockTraining training;
  for (const auto& parameter : net->parameters()) training.parameters.push_back(parameter.detach().cpu());
  training.replayed = model->stats().replayed;
  return training;
}

TEST_CASE("CUDA graphs: dropout, micro-batches and recompute replay", "[gpu]") {
  ap::World world(0, nullptr);
  const DeterministicCuDnn kernels;
  for (const ap::Precision precision : {ap::Precision::kModule, ap::Precision::kBf16Compute}) {
    for (const ap::Recompute recompute : {ap::Recompute::kNever, ap::Recompute::kAlways}) {
      for (const int microbatches : {1, 2}) {
        for (const bool is_loss_outside : {false, true}) {
          INFO(ap::option_text(precision) << ", recompute " << ap::option_text(recompute) << ", " << microbatches
                                          << " micro-batches" << (is_loss_outside ? ", loss outside" : ""));
          BlockSetting setting{ap::CudaGraphs::kAuto, precision,       recompute,
                               microbatches,          is_loss_outside, is_loss_outside};
          const auto replayed = train_block(world, setting);
          setting.graphs = ap::CudaGraphs::kOff;
          const auto launched = train_block(world, setting);
          CHECK(replayed.replayed >= 4);
          CHECK(launched.replayed == 0);
          for (std::size_t i = 0; i < launched.parameters.size(); ++i)
            CHECK(torch::equal(replayed.parameters[i], launched.parameters[i]));
        }
      }
    }
  }
}

/// Counts weights of targets, for which the host waits.
struct Waiting : torch::nn::Module {
  Waiting() {
    layer = register_module("layer", torch::nn::Linear(8, kClasses));
    weights = register_buffer("weights", torch::linspace(0.5, 1.5, kClasses));
  }
  Tensor forward(const Tensor& x, const Tensor& labels) {
    return F::cross_entropy(layer(x), labels, F::CrossEntropyFuncOptions().weight(weights));
  }
  torch::nn::Linear layer{nullptr};
  Tensor weights;
};

TEST_CASE("CUDA graphs: step that synchronises runs eagerly, as before", "[gpu]") {
  ap::World world(0, nullptr);
  std::vector<Tensor> trained;
  for (const ap::CudaGraphs graphs : {ap::CudaGraphs::kAuto, ap::CudaGraphs::kOff}) {
    torch::manual_seed(3);
    const auto net = std::make_shared<Waiting>();
    ap::Options options;
    options.cuda_graphs = graphs;
    ap::AutoParallel<std::shared_ptr<Waiting>> model(world, net, options);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    torch::manual_seed(4);
    for (int step = 0; step < 8; ++step) {
      const auto x = torch::randn({kImages, 8}).to(ap::device(world));
      const auto labels = torch::randint(kClasses, {kImages}).to(ap::device(world));
      optimizer.zero_grad();
      model(x, labels).backward();
      optimizer.step();
    }
    trained.push_back(net->layer->weight.detach().cpu());
  }
  CHECK(torch::equal(trained[0], trained[1]));
}

}  // namespace gpu_repeated_steps_test
