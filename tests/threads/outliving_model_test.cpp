#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <optional>

#include <autopar/autopar.hpp>

// A model that outlives its World, as members of a class in the wrong order do, throws where it is used.
namespace outliving_model_test {

namespace ap = autopar;

struct Net : nets::Linears {
  Net() : Linears(4, {{"linear", 2}}) {}
};

TEST_CASE("model outliving its World: throws where it is used") {
  std::optional<ap::AutoParallel<Net>> model;
  torch::Tensor result, mean;
  const auto x = torch::ones({3, 4});
  {
    ap::World world(0, nullptr);
    model.emplace(world, Net());
    result = (*model)(x);
    mean = ap::global_mean(world, (*model)(x).sum(), 3);
  }
  CHECK_THROWS_AS((*model)(x), ap::InvalidArgument);
  CHECK_THROWS_AS((*model)->prepare(x), ap::InvalidArgument);
  CHECK_THROWS_AS(result.sum().backward(), ap::InvalidArgument);
  CHECK_THROWS_AS(mean.backward(), ap::InvalidArgument);
  CHECK_THROWS_AS((*model)->gather_state(), ap::InvalidArgument);
  CHECK((*model)->parameters().size() == 2);
}

TEST_CASE("model outliving its World: first call throws") {
  std::optional<ap::AutoParallel<Net>> model;
  {
    ap::World world(0, nullptr);
    model.emplace(world, Net());
  }
  CHECK_THROWS_AS((*model)(torch::ones({3, 4})), ap::InvalidArgument);
}

}  // namespace outliving_model_test
