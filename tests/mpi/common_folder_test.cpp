#include <torch/nn.h>
#include <torch/types.h>

#include <catch_shim.hpp>
#include <temp_folder.hpp>

#include <chrono>
#include <filesystem>
#include <string>

#include <autopar/autopar.hpp>

// Hosts without a common file system: each process is in a folder of its own, and saves to a relative path.
namespace common_folder_test {

namespace ap = autopar;
namespace fs = std::filesystem;

TEST_CASE("save: a folder that others do not see is refused before writing") {
  torch::set_num_threads(1);
  ap::World world(0, nullptr);
  if (world.size() == 1) return;  // nobody else has to see the folder
  const TempFolder own;
  const auto before = fs::current_path();
  fs::create_directories(own / "place");
  fs::current_path(own / "place");
  torch::manual_seed(2);
  ap::AutoParallel<torch::nn::Sequential> model(world, torch::nn::Sequential(torch::nn::Linear(3, 2)),
                                                ap::Options{.stages = 1, .replicas = {world.size()}});
  model(torch::ones({2, 3})).sum().backward();
  std::string message;
  try {
    model->save("state");
  } catch (const ap::CheckpointError& error) {
    message = error.what();
  }
  CAPTURE(message, world.rank());
  CHECK(message.find("rank 1: it does not see this folder of rank 0") != std::string::npos);
  for (const auto& entry : fs::directory_iterator(world.rank() == 0 ? fs::path("state") : fs::path(".")))
    CHECK((entry.path().extension() != ".safetensors" && entry.path().filename() != ".autopar-seen"));
  model->save("state", {.format = ap::single_file()});  // as the message says
  CHECK(fs::exists("state/model.safetensors") == (world.rank() == 0));
  model->load("state");
  model(torch::ones({2, 3})).sum().backward();
  fs::current_path(before);
}

}  // namespace common_folder_test
