#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/torch/device.hpp>

#include "../../numerics/whole_plans.hpp"

// What once trained otherwise than one process without a word, on devices: right, or refused on all ranks.
namespace gpu_silent_test {

using namespace whole_plans;
using numerics::check_close;

/// Kinds of plans for as many ranks as there are.
std::vector<Kind> kinds_here(const ap::World& world) {
  std::vector<Kind> here;
  for (auto& kind : kinds()) {
    if (kind.ranks != world.size()) continue;
    kind.options.costs = ap::CostChoice::kRoofline;  // measuring takes seconds
    here.push_back(kind);
  }
  return here;
}

void check_whole(Model& model, Net& net, const std::string& when) {
  const auto want = net.named_parameters();
  for (const auto& item : model->named_parameters()) {
    check_close(model->gather(item.value()).cpu(), want[item.key()], kTolerance, when + ", " + item.key());
  }
}

TEST_CASE("for_whole_parameters on GPUs: equals one process, any plan") {
  const DoublePrecision guard;
  ap::World world(0, nullptr);
  REQUIRE(ap::device(world).is_cuda());
  const auto rescale = [](const std::string& name, Tensor& value, Tensor& gradient, auto&) {
    if (value.dim() == 2 && name != "unread") value.div_(value.norm(2, 1, true));
    if (gradient.defined()) gradient.div_(gradient.norm() + 1);
  };
  for (const auto& kind : kinds_here(world)) {
    INFO(kind.name);
    Net net;
    torch::optim::SGD expected(net.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    Model model(world, Net(), kind.options);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    model->attach(optimizer);
    for (int step = 0; step < 3; ++step) {
      expected.zero_grad();
      loss_of(net, world.size()).backward();
      const auto norm = torch::nn::utils::clip_grad_norm_(net.mixed->parameters(), 0.05);
      {
        const torch::NoGradGuard no_grad;
        std::set<const void*> seen;  // one layer has two names
        for (auto& item : net.named_parameters()) {
          if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
          auto gradient = item.value().grad();
          std::map<std::string, Tensor> none;
          rescale(item.key(), item.value(), gradient, none);
        }
      }
      expected.step();

      optimizer.zero_grad();
      loss_on(model, world).backward();
      const auto clipped = ap::clip_grad_norm_(model, model->module().mixed->parameters(), 0.05);
      CHECK(clipped.item<double>() == Approx(norm).epsilon(1e-12));
      ap::for_whole_parameters(model, rescale);
      optimizer.step();
    }
    check_whole(model, net, "after three steps");
    const auto& weight = model->module().up->weight;
    CHECK(model->norm(weight).item<double>() == Approx(net.up->weight.norm().item<double>()).epsilon(1e-12));
    CHECK(model->dot(weight.grad(), weight).item<double>() ==
          Approx((net.up->weight.grad() * net.up->weight).sum().item<double>()).epsilon(1e-10));
  }
}

TEST_CASE("parameter shards on GPUs: whole-tensor operators throw") {
  const DoublePrecision guard;
  ap::World world(0, nullptr);
  for (const auto& kind : kinds_here(world)) {
    INFO(kind.name);
    Model model(world, Net(), kind.options);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    model->attach(optimizer);
    loss_on(model, world).backward();
    optimizer.step();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->owned_parameters()) {
      const bool is_part = !model->shard(parameter).whole || model->shard(parameter).dim >= 0;
      if (is_part && parameter.numel() > 0) {
        CHECK_THROWS_AS(parameter.norm(), ap::InvalidArgument);
        if (parameter.grad().defined()) CHECK_THROWS_AS(parameter.grad().sum(), ap::InvalidArgument);
      }
      CHECK_NOTHROW(parameter.mul_(0.5).add_(torch::zeros_like(parameter)));
    }
    world.barrier();
  }
}

TEST_CASE("load before first call on GPUs: later settings stay") {
  const DoublePrecision guard;
  ap::World world(0, nullptr);
  const auto folder = std::filesystem::temp_directory_path() / "autopar_gpu_silent_test";
  const auto options = [](double rate) { return torch::optim::SGDOptions(rate).momentum(0.9); };
  {
    Model model(world, Net(), ap::Options{.costs = ap::CostChoice::kRoofline});
    torch::optim::SGD optimizer(model->parameters(), options(0.1));
    model->attach(optimizer);
    loss_on(model, world).backward();
    optimizer.step();
    model->save(folder.string(), optimizer);
  }
  Net net;
  torch::optim::SGD expected(net.parameters(), options(0.1));
  for (const double rate : {0.1, 1e-3}) {
    static_cast<torch::optim::SGDOptions&>(expected.param_groups()[0].options()).lr(rate);
    if (rate < 0.1) {
      const torch::NoGradGuard no_grad;
      net.head->weight.fill_(0.25);
    }
    expected.zero_grad();
    loss_of(net, world.size()).backward();
    expected.step();
  }
  Model model(world, Net(), ap::Options{.costs = ap::CostChoice::kRoofline});
  torch::optim::SGD optimizer(model->parameters(), options(0.5));
  model->attach(optimizer);
  model->load(folder.string(), optimizer);
  static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options()).lr(1e-3);
  {
    const torch::NoGradGuard no_grad;
    model->module().head->weight.fill_(0.25);
  }
  loss_on(model, world).backward();
  optimizer.step();
  check_whole(model, net, "after the load");
  world.barrier();
  if (world.rank() == 0) std::filesystem::remove_all(folder);
}

/// Everything on every rank.
ap::Options replicas(const ap::World& world) {
  return {.stages = 1, .microbatches = 1, .zero = 0, .replicas = {world.size()}, .costs = ap::CostChoice::kRoofline};
}

TEST_CASE("loss on GPUs: penalty term exact, unwrapped backward refused") {
  const DoublePrecision guard;
  ap::World world(0, nullptr);
  const auto device = ap::device(world);
  Net net;
  torch::optim::SGD expected(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Model model(world, Net(), replicas(world));
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  model->attach(optimizer);
  for (int step = 0; step < 3; ++step) {
    expected.zero_grad();
    (loss_of(net, world.size()) + 0.01 * net.up->weight.pow(2).sum()).backward();
    expected.step();
    optimizer.zero_grad();
    loss_on(model, world).backward();
    (0.01 * model->module().up->weight.pow(2).sum()).backward();
    optimizer.step();
  }
  check_whole(model, net, "with a term of parameters");
  const auto x = samples(0, kSamples).to(device), y = targets(0, kSamples).to(device);
  CHECK_THROWS_AS(model->module().forward(x, y).backward(), ap::InvalidArgument);
}

TEST_CASE("unregistered trainable tensor: is refused on GPUs") {
  struct Unregistered : nets::Linears {
    Unregistered() : Linears(4, {{"layer", 2}}) {}
    Tensor forward(const Tensor& x) { return (Linears::forward(x) * scale).pow(2).mean(); }
    Tensor scale = torch::ones({2}, torch::requires_grad());
  };
  const DoublePrecision guard;
  ap::World world(0, nullptr);
  ap::AutoParallel<Unregistered> model(world, Unregistered(), replicas(world));
  CHECK_THROWS_AS(model(samples(0, kSamples)), ap::CaptureError);
}

TEST_CASE("optimizer on GPUs: a rank that steps more often is named") {
  const DoublePrecision guard;
  ap::World world(0, nullptr);
  Model model(world, Net(), replicas(world));
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  model->attach(optimizer);
  loss_on(model, world).backward();
  optimizer.step();
  if (world.rank() == 0) optimizer.step();
  // A layer has two names, so libtorch steps it twice in each step.
  CHECK_THROWS_WITH(loss_on(model, world),
                    Catch::Matchers::Contains("rank 0 has stepped 4 times, rank 1 has stepped 2"));
}

TEST_CASE("local indices on GPUs: equal one process") {
  struct Neighbours : nn::Module {
    Neighbours() {
      nets::register_all(*this, "embed", embed, "head", head);
      const torch::NoGradGuard no_grad;
      for (auto& parameter : parameters())
        parameter.copy_(torch::arange(parameter.numel(), torch::kDouble).sin().view_as(parameter));
    }
    Tensor forward(const Tensor& x, const Tensor& neighbours) {
      const auto h = torch::tanh(embed(x));
      return head(h + h.index_select(0, neighbours)).pow(2).mean();
    }
    nn::Linear embed{4, 6}, head{6, 2};
  };
  const DoublePrecision guard;
  ap::World world(0, nullptr);
  ap::Options options{.local_indices = {1}, .costs = ap::CostChoice::kRoofline};
  ap::AutoParallel<Neighbours> model(world, Neighbours(), options);
  const auto own = torch::arange(kSamples).flip(0);
  model(samples(world.rank() * kSamples, (world.rank() + 1) * kSamples), own).backward();
  Neighbours net;
  std::vector<Tensor> neighbours;
  for (int rank = 0; rank < world.size(); ++rank) neighbours.push_back(own + rank * kSamples);
  net.forward(samples(0, world.size() * kSamples), torch::cat(neighbours)).backward();
  const auto want = net.named_parameters();
  for (const auto& item : model->named_parameters()) {
    if (!model->owns(item.value())) continue;
    check_close(item.value().grad().cpu(), want[item.key()].grad(), kTolerance, "gradient of " + item.key());
  }
}

}  // namespace gpu_silent_test
