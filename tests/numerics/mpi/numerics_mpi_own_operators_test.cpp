#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>
#include <says.hpp>

#include <memory>
#include <string>

#include <autopar/autopar.hpp>

#include "../own_operators.hpp"

// Alone in its process: what it registers is other than what other tests do.
namespace own_operators_mpi_test {

namespace ap = autopar;
using torch::Tensor;

struct Mixing : nets::Linears {
  Mixing() : Linears(3, {{"layer", 3}}) {}
  Tensor forward(const Tensor& x) { return own_operators::mixed(Linears::forward(x)); }
};

TEST_CASE("register_op: ranks with different versions are named") {
  ap::World world(0, nullptr);
  const int version = world.rank() == 1 ? 7 : 5;
  ap::register_op({.name = "own_operators::mixed", .version = version, .over_samples = [](const ap::OpCall&) {
                     return ap::BatchTyping::mixes("it centres the batch");
                   }});
  ap::AutoParallel<Mixing> model(world, std::make_shared<Mixing>());
  if (world.size() == 1) {  // there is nobody to differ from
    CHECK_NOTHROW(model(torch::randn({4, 3})));
    return;
  }
  check_says({"the ranks disagree", "rank 0 has registered own_operators::mixed 5", "rank 1 own_operators::mixed 7"},
             [&] {
               model(torch::randn({4, 3}));
             });
}

}  // namespace own_operators_mpi_test
