#include <torch/nn.h>
#include <torch/types.h>

#include <catch_shim.hpp>
#include <temp_folder.hpp>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>

#include <autopar/autopar.hpp>
#include <autopar/io/file.hpp>

// logging.toml among processes: rank 0's holds for all, each writes its own file, and all are told of what is wrong.
namespace log_files_test {

namespace ap = autopar;

/// Rank 0's text, on every rank.
std::string same_everywhere(ap::World& world, const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  const auto told = world.broadcast({bytes.begin(), bytes.end()}, ap::Rank(0), "name of the folder");
  return {reinterpret_cast<const char*>(told.data()), told.size()};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// @return what this rank is refused with
std::string train(ap::World& world) {
  try {
    ap::AutoParallel<torch::nn::Sequential> model(world, torch::nn::Sequential(torch::nn::Linear(3, 2)));
    model(torch::ones({2, 3})).sum().backward();
  } catch (const ap::ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("logging.toml: rank 0's holds, and each process has its file") {
  torch::set_num_threads(1);
  ap::World world(0, nullptr);
  const TempFolder own;  // rank 0's has the file
  const auto folder = same_everywhere(world, (own / "").string());
  ::setenv("AUTOPAR_CONF_DIR", (own / "").c_str(), 1);
  const auto set_up = [&](const std::string& filename) {
    if (world.rank() != 0) return;
    ap::write_text_file(own / "logging.toml",
                        "global_pattern = '{rank}/{size} %n: %v'\n[[sink]]\nname = 'file'\ntype = "
                        "'basic_file_sink_mt'\nfilename = '" +
                            folder + filename + "'\n[[logger]]\nname = 'root'\nsinks = ['file']\nlevel = 'debug'\n");
  };

  if (world.size() > 1) {
    set_up("shared.log");
    const auto refused = train(world);
    CAPTURE(refused);
    CHECK(contains(refused, "ranks would write to '" + folder + "shared.log'; put {rank} into the name"));
    if (world.rank() == 0) std::filesystem::create_directories(folder + "log.0");
    set_up("log.{rank}");
    CHECK(contains(train(world), "log.0' is there and is no file"));
    world.barrier();
  }

  set_up("run.{rank}");
  CHECK(train(world).empty());
  world.barrier();
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto text = ap::read_text_file(folder + "run." + std::to_string(rank));
    const auto mark = std::to_string(rank) + "/" + std::to_string(world.size()) + " ";
    CAPTURE(rank, text);
    CHECK(contains(text, mark + "Executor: ready to run"));
    CHECK(contains(text, "the log is set up by ") == (rank == 0));
  }
  ::unsetenv("AUTOPAR_CONF_DIR");
  world.barrier();  // rank 0's folder goes with it
}

}  // namespace log_files_test
