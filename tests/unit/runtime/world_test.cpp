#include <autopar/runtime/world.hpp>

#include <autopar/runtime/loopback.hpp>

#include <catch_shim.hpp>

#include <optional>
#include <type_traits>

// How long a World lives, and what is left of it for those who outlive it.
namespace world_life_test {

using namespace autopar;

static_assert(!std::is_move_constructible_v<World> && !std::is_copy_constructible_v<World>);
static_assert(!std::is_move_assignable_v<World> && !std::is_copy_assignable_v<World>);

/// What holds a view, as a model does.
struct Model {
  explicit Model(World& of) : world(of.view()) {}
  World world;
};

void check_ended(World& world, int rank, int size) {
  CHECK(world.rank() == rank);
  CHECK(world.size() == size);
  CHECK_THROWS_AS(world.barrier(), InvalidArgument);
  CHECK_THROWS_AS(world.all_gather({}, "test"), InvalidArgument);
  CHECK_THROWS_AS(world.broadcast({}, Rank(0), "test"), InvalidArgument);
  std::vector<double> sums(100);
  CHECK_THROWS_AS(world.all_reduce_sum(std::span(sums), "test"), InvalidArgument);
  CHECK_THROWS_AS(world.make_transport(), InvalidArgument);
  world.logger(LogModule::kWorld).info("still there");
  world.announce_leaving();
}

TEST_CASE("World: a view works, and throws once its World has ended") {
  std::optional<Model> model;
  {
    World world(0, nullptr);
    model.emplace(world);
    REQUIRE_NOTHROW(model->world.barrier());
  }
  check_ended(model->world, 0, 1);
}

TEST_CASE("World: views outlive the Worlds of rank threads") {
  std::vector<std::optional<Model>> models(3);
  loopback::run(3, [&](World& world) {
    models[world.rank_id().index()].emplace(world);
    models[world.rank_id().index()]->world.barrier();
  });
  for (int rank = 0; rank < 3; ++rank) check_ended(models[static_cast<std::size_t>(rank)]->world, rank, 3);
}

TEST_CASE("World: destroying a view ends nothing") {
  loopback::run(2, [](World& world) {
    { const Model model(world); }
    world.barrier();
  });
}

}  // namespace world_life_test
