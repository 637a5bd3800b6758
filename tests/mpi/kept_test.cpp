#include <torch/data/samplers.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/types.h>

#include <catch_shim.hpp>
#include <nets.hpp>
#include <temp_folder.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <autopar/autopar.hpp>

// Kept values between processes: archives that are equal in all of them, and those of each rank.
namespace kept_test {

namespace ap = autopar;
using torch::data::samplers::DistributedRandomSampler;
using torch::data::samplers::RandomSampler;

/// Rank 0's text, on every rank.
std::string same_everywhere(ap::World& world, const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  const auto told = world.broadcast({bytes.begin(), bytes.end()}, ap::Rank(0), "name of the folder");
  return {reinterpret_cast<const char*>(told.data()), told.size()};
}

TEST_CASE("keep: samplers of all processes are saved and go on") {
  torch::set_num_threads(1);
  ap::World world(0, nullptr);
  const TempFolder own_folder;
  const auto folder = same_everywhere(world, (own_folder / "run").string());
  const auto ranks = static_cast<std::size_t>(world.size()), rank = static_cast<std::size_t>(world.rank());
  const auto x = torch::ones({2, 3});
  using Rest = std::pair<std::vector<std::size_t>, std::vector<std::size_t>>;
  const auto run = [&](bool saves, std::uint64_t seed) {
    torch::manual_seed(seed);
    ap::AutoParallel<torch::nn::Sequential> model(world, torch::nn::Sequential(torch::nn::Linear(3, 2)),
                                                  ap::Options{.stages = 1, .replicas = {world.size()}});
    RandomSampler order(40);
    DistributedRandomSampler shares(40 * ranks, ranks, rank);
    model->keep("order", order);
    model->keep("shares", shares, ap::kPerRank);
    if (!saves) {
      model->load(folder);
    } else {
      model->prepare(x);
      static_cast<void>(order.next(7));
      shares.set_epoch(5);
      shares.reset();
      static_cast<void>(shares.next(9));
      model->save(folder);
    }
    return Rest(*order.next(33), *shares.next(31));
  };
  const auto saved = run(true, 4);
  const auto loaded = run(false, 17 + rank);
  CHECK(loaded.first == saved.first);
  CHECK(loaded.second == saved.second);
  world.barrier();  // rank 0's folder goes with it
}

}  // namespace kept_test
