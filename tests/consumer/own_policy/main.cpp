// Trains with policies of the user's own, on 2 ranks, and checks that the plans are theirs and that the training is
// that of one process. policy_laws/ holds the same policies to the laws of their concepts.
#include "halves_staging.hpp"
#include "last_first.hpp"
#include "pairs_coarsening.hpp"
#include "slow_module.hpp"

#include <autopar/autopar.hpp>
#include <autopar/plan/planner.hpp>
#include <autopar/plan/search/uniform_staging.hpp>
#include <autopar/schedule/schedule.hpp>

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

namespace ap = autopar;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 4; ++i) layers_->push_back(torch::nn::Linear(8, 8));
    register_module("layers", layers_);
    to(torch::kDouble);
  }
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& y) {
    for (const auto& layer : *layers_) x = torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
    return torch::mse_loss(x, y);
  }
  torch::nn::ModuleList layers_;
};
TORCH_MODULE(Net);

using MyPlanner = ap::Planner<HalvesStaging, PairsCoarsening>;

int main(int argc, char** argv) {
  ap::World world(argc, argv);
  torch::manual_seed(3);  // the same samples on every rank
  const auto x = torch::randn({8, 8}, torch::kDouble);
  const auto y = torch::zeros({8, 8}, torch::kDouble);

  torch::manual_seed(5);
  Net reference;
  const auto expected = reference(x, y).item<double>();

  torch::manual_seed(5);
  ap::AutoParallel<Net, MyPlanner> model(world, [] { return Net(); });
  auto loss = model(x, y);  // the global batch is x twice, so that its mean is that of x
  loss.backward();

  ap::AutoParallel<Net, MyPlanner> finer(world, Net(), ap::Options{},
                                         MyPlanner{HalvesStaging{.microbatches = 4}, PairsCoarsening{}});
  finer(x, y);

  // A schedule of one's own runs as the orders of a plan.
  ap::Plan plan = finer->plan();
  plan.schedule = ap::kSynthesisedSchedule;
  plan.orders = ap::rank_orders_of(LastFirst{},
                                   {.ranks = plan.world, .stages = ap::meshes_of(plan), .channels = {}, .groups = {}},
                                   plan.microbatches);
  torch::manual_seed(5);
  ap::AutoParallel<Net> scheduled(world, Net());
  scheduled->deploy(plan);
  auto scheduled_loss = scheduled(x, y);
  scheduled_loss.backward();

  const auto first_stage_beside = [&](const std::string& slow) {
    ap::AutoParallel<Net, ap::Planner<ap::UniformStaging, SlowModule>> planned(
        world, Net(), ap::Options{.stages = 2}, ap::Planner{ap::UniformStaging{}, SlowModule{slow, 1000}});
    planned->prepare(x, y);
    return planned->plan().stages.front().atoms.size();
  };

  const bool halves =
      model->plan().stages.size() == 2 && model->plan().microbatches == 2 && finer->plan().microbatches == 4;
  const bool own_order = scheduled->plan().orders == plan.orders;
  const bool own_costs = first_stage_beside("layers.0") < first_stage_beside("layers.3");
  const auto wrong = [&](const torch::Tensor& found) { return std::abs(found.item<double>() - expected); };
  const double difference = std::max(wrong(loss), wrong(scheduled_loss));
  if (world.rank() == 0) {
    std::printf("halves: %d, own order: %d, own costs: %d, difference of the losses: %g\n", halves, own_order,
                own_costs, difference);
  }
  return halves && own_order && own_costs && difference < 1e-12 ? 0 : 1;
}
