#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <autopar/autopar.hpp>
#include <autopar/schedule/traits.hpp>
#include <autopar/torch/device.hpp>

#include "../deterministic_cudnn.hpp"
#include "../replayed_training.hpp"

// Steps that all ranks record, exchanges included, and replay, beside the same steps launched kernel by kernel: the
// same bits, whatever one of the ranks does between them.
namespace gpu_mpi_repeated_steps_test {

namespace ap = autopar;
namespace F = torch::nn::functional;
using torch::Tensor;

constexpr std::int64_t kSamples = 8, kWidth = 32, kClasses = 10;
constexpr int kBlocks = 4, kSteps = 10, kBefore = 4;  ///< steps until the first replay

struct Block : torch::nn::Module {
  Block() { nets::register_all(*this, "wide", wide, "narrow", narrow, "norm", norm); }
  Tensor forward(const Tensor& x) { return norm(x + narrow(torch::gelu(wide(x)))); }

  torch::nn::Linear wide{kWidth, 4 * kWidth}, narrow{4 * kWidth, kWidth};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({kWidth})};
};

/// Blocks with a batch norm behind them, whose statistics are the batch's; without labels its results are logits.
struct Net : torch::nn::Module {
  explicit Net(double dropout) : dropout_(dropout) {
    for (int i = 0; i < kBlocks; ++i) blocks->push_back(std::make_shared<Block>());
    nets::register_all(*this, "blocks", blocks, "norm", norm, "head", head);
  }
  Tensor forward(const Tensor& input, const Tensor& labels) {
    auto x = input;
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    if (dropout_ > 0) x = F::dropout(x, F::DropoutFuncOptions().p(dropout_).training(is_training()));
    const auto logits = head(norm(x));
    return labels.defined() ? F::cross_entropy(logits, labels) : logits;
  }

  torch::nn::ModuleList blocks;
  torch::nn::BatchNorm1d norm{kWidth};
  torch::nn::Linear head{kWidth, kClasses};

 private:
  double dropout_;
};

using Model = ap::AutoParallel<std::shared_ptr<Net>>;

using Training = ReplayedTraining;

struct Setting {
  ap::Options options;
  bool is_loss_outside = false;
  double dropout = 0;
  std::function<std::int64_t(int step, int rank)> samples = [](int, int) { return kSamples; };
};

/// What happens before a step; calls zero_grad itself.
using Between = std::function<void(int step, int rank, Model& model, torch::optim::Optimizer& optimizer)>;

void zero_grad(int, int, Model&, torch::optim::Optimizer& optimizer) { optimizer.zero_grad(); }

Training train(ap::World& world, Setting setting, ap::CudaGraphs graphs, const Between& between = zero_grad) {
  torch::manual_seed(3);
  const auto net = std::make_shared<Net>(setting.dropout);
  setting.options.cuda_graphs = graphs;
  setting.options.costs = ap::CostChoice::kRoofline;  // measuring takes seconds
  Model model(world, net, setting.options);
  ap::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
  model->attach(optimizer);
  torch::manual_seed(4 + world.rank());
  Training training;
  for (int step = 0; step < kSteps; ++step) {
    const auto count = setting.samples(step, world.rank());
    const auto device = ap::device(world);
    const auto x = torch::randn({count, kWidth}).to(device);
    const auto labels = torch::randint(kClasses, {count}).to(device);
    between(step, world.rank(), model, optimizer);
    auto loss = model(x, setting.is_loss_outside ? Tensor() : labels);
    if (setting.is_loss_outside) {
      const auto sum =
          F::cross_entropy(loss.to(torch::kFloat), labels, F::CrossEntropyFuncOptions().reduction(torch::kSum));
      loss = ap::global_mean(world, sum, count);
    }
    loss.backward();
    optimizer.step();
    training.losses.push_back(loss.item<double>());
  }
  const auto whole = model->gather_state();
  for (const auto& item : whole) training.state.emplace_back(item.key(), item.value().cpu());
  training.replayed = model->stats().replayed;
  return training;
}

struct Kind {
  std::string name;
  ap::Options options;
  bool has_loss_outside = false;  ///< is tried with it, too: a model takes seconds
};

/// Kinds of plans for as many ranks as there are.
std::vector<Kind> kinds(int ranks) {
  std::vector<Kind> kinds;
  for (const int zero : {0, 1, 2, 3})
    kinds.push_back({"replicas, ZeRO " + std::to_string(zero),
                     {.stages = 1, .microbatches = 2, .tensor_parallel = 1, .zero = zero, .replicas = {ranks}},
                     zero == 1});
  for (const int zero : {0, 1, 2, 3}) {
    Kind rounded = kinds[static_cast<std::size_t>(zero)];
    rounded.name += ", gradients sent in bf16";
    rounded.options.reduce_dtype = ap::ReduceDtype::kBf16;
    kinds.push_back(rounded);
  }
  for (const auto schedule : {ap::ScheduleKind::kGPipe, ap::ScheduleKind::kOneFOneB, ap::ScheduleKind::kInterleaved,
                              ap::ScheduleKind::kZbH1, ap::ScheduleKind::kZbV, ap::ScheduleKind::kSynthesised}) {
    ap::Options options{.stages = 2, .microbatches = 4, .tensor_parallel = 1, .replicas = {ranks / 2}};
    options.schedule = schedule;
    kinds.push_back(
        {"two stages, " + std::string(ap::traits_of(schedule).name), options, schedule == ap::ScheduleKind::kOneFOneB});
  }
  kinds.push_back({"tensor shards", {.stages = 1, .microbatches = 1, .tensor_parallel = ranks, .replicas = {1}}, true});
  if (ranks == 4) {
    kinds.push_back({"two stages of shards", {.stages = 2, .microbatches = 2, .tensor_parallel = 2, .replicas = {1}}});
    kinds.push_back({"replicas of shards, ZeRO 2",
                     {.stages = 1, .microbatches = 2, .tensor_parallel = 2, .zero = 2, .replicas = {2}}});
    kinds.push_back({"four stages", {.stages = 4, .microbatches = 4, .tensor_parallel = 1, .replicas = {1}}});
  }
  return kinds;
}

TEST_CASE("recorded steps on several GPUs: the same bits, any plan") {
  ap::World world(0, nullptr);
  REQUIRE(ap::device(world).is_cuda());
  const DeterministicCuDnn kernels;
  for (const auto& kind : kinds(world.size())) {
    for (const bool is_loss_outside : {false, true}) {
      if (is_loss_outside && !kind.has_loss_outside) continue;
      INFO(kind.name << (is_loss_outside ? ", loss outside" : ""));
      const Setting setting{kind.options, is_loss_outside, 0.1};
      const auto replayed = train(world, setting, ap::CudaGraphs::kAuto);
      CHECK(replayed.replayed == kSteps - kBefore);
      const auto launched = train(world, setting, ap::CudaGraphs::kOff);
      CHECK(launched.replayed == 0);
      check_same(replayed, launched);
    }
  }
}

TEST_CASE("recorded steps on several GPUs: what one rank does takes effect") {
  ap::World world(0, nullptr);
  const DeterministicCuDnn kernels;
  std::vector<Tensor> held;
  const std::vector<std::pair<std::string, Between>> cases{
      {"one rank holds gradients",
       [&](int step, int rank, Model& model, torch::optim::Optimizer& optimizer) {
         if (step == 6 && rank == 1) held.push_back(model->owned_parameters().front().grad());
         if (step == 8) held.clear();
         optimizer.zero_grad();
       }},
      {"one rank moves a parameter",
       [](int step, int rank, Model& model, torch::optim::Optimizer& optimizer) {
         optimizer.zero_grad();
         auto& weight = model->module().head->weight;
         if (step == 6 && rank == 0) weight.set_data(weight.detach().clone());
       }},
      {"evaluation",
       [](int step, int, Model& model, torch::optim::Optimizer& optimizer) {
         optimizer.zero_grad();
         if (step % 3 != 0) return;
         const torch::NoGradGuard no_grad;
         model->eval();
         const auto device = model->module().head->weight.device();
         static_cast<void>(
             model(torch::ones({kSamples, kWidth}).to(device), torch::zeros({kSamples}, torch::kLong).to(device)));
         model->train();
       }},
      {"a smaller batch on one rank", zero_grad},
  };
  for (const auto& [name, between] : cases) {
    for (const bool is_loss_outside : {false, true}) {
      INFO(name << (is_loss_outside ? ", loss outside" : ""));
      Setting setting{{.stages = 1, .microbatches = 2, .tensor_parallel = 1, .zero = 0, .replicas = {world.size()}},
                      is_loss_outside};
      if (name.starts_with("a smaller"))
        setting.samples = [](int step, int rank) { return step == 7 && rank == 1 ? kSamples / 2 : kSamples; };
      const auto replayed = train(world, setting, ap::CudaGraphs::kAuto, between);
      CHECK(replayed.replayed > 0);
      held.clear();
      check_same(replayed, train(world, setting, ap::CudaGraphs::kOff, between));
      held.clear();
    }
  }
}

}  // namespace gpu_mpi_repeated_steps_test
