#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/types.h>

#include <catch_shim.hpp>
#include <temp_folder.hpp>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/io/file.hpp>
#include <autopar/runtime/loopback.hpp>

// logging.toml, from its file to the lines of each rank.
namespace session_log_test {

namespace ap = autopar;

/// A folder that AUTOPAR_CONF_DIR names.
class ConfFolder {
 public:
  explicit ConfFolder(const std::string& log) {
    ap::write_text_file(folder_ / "logging.toml", log);
    ::setenv("AUTOPAR_CONF_DIR", (folder_ / "").c_str(), 1);
  }
  ConfFolder(const ConfFolder&) = delete;
  ConfFolder& operator=(const ConfFolder&) = delete;
  ~ConfFolder() { ::unsetenv("AUTOPAR_CONF_DIR"); }

 private:
  TempFolder folder_;
};

/// One step of two models in one World. @return what each rank is refused with
std::vector<std::string> train(int ranks, const ap::Options& options) {
  std::vector<std::string> refused(static_cast<std::size_t>(ranks));
  ap::loopback::run(ranks, [&](ap::World& world) {
    try {
      for (int i = 0; i < 2; ++i) {
        ap::AutoParallel<torch::nn::Sequential> model(world, torch::nn::Sequential(torch::nn::Linear(4, 3)), options);
        torch::optim::SGD optimizer(model->parameters(), 0.1);
        model->attach(optimizer);
        model(torch::ones({4, 4})).sum().backward();
      }
    } catch (const ap::ConfigError& error) {
      refused[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  return refused;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// All modules to one file a rank.
std::string to_files(const std::filesystem::path& name, const std::string& level) {
  return "global_pattern = '%l %n: %v'\n[[sink]]\nname = 'file'\ntype = 'basic_file_sink_mt'\nfilename = '" +
         name.string() + "'\n[[logger]]\nname = 'root'\nsinks = ['file']\nlevel = '" + level + "'\n";
}

TEST_CASE("logging.toml: each rank's file has its modules' lines") {
  const TempFolder folder;
  const ConfFolder conf(to_files(folder / "{rank}.log", "trace"));
  CHECK(train(2, {.replicas = {2}}) == std::vector<std::string>(2));
  const auto first = ap::read_text_file(folder / "0.log"), second = ap::read_text_file(folder / "1.log");
  CAPTURE(first, second);
  CHECK(count(first, "info Session: the log is set up by ") == 1);
  CHECK(count(first, "debug Capture: captured forward: ") == 2);
  CHECK(count(first, "debug Optimizer: an attached optimizer steps 2 parameters in 1 groups") == 2);
  for (const auto& own : {first, second}) {
    CHECK(count(own, "debug Schedule: schedule ") >= 2);
    CHECK(count(own, "debug Executor: ready to run on cpu") >= 2);
    CHECK(count(own, "trace Executor: ran ") >= 4);
  }
  CHECK(contains(second, "of 1 stages this rank runs 0 (replica 1 of 2)"));
  CHECK_FALSE(contains(second, "the log is set up by"));
}

TEST_CASE("logging.toml: log_level overrides what it names") {
  const TempFolder folder;
  const auto train_with = [&](const std::string& name, const std::string& level, const std::string& log_level) {
    const ConfFolder conf(to_files(folder / name, level));
    CHECK(train(1, {.log_level = log_level}) == std::vector<std::string>(1));
    return ap::read_text_file(folder / name);
  };
  CHECK(train_with("a.log", "debug", "off").empty());
  const auto executor = train_with("b.log", "off", "Executor=trace");
  CHECK(contains(executor, "trace Executor: ran "));
  CHECK_FALSE(contains(executor, "Capture"));
  CHECK(contains(train_with("c.log", "debug", "Executor=off"), "debug Capture"));
  CHECK_FALSE(contains(train_with("d.log", "debug", "Executor=off"), "debug Executor"));
}

TEST_CASE("logging.toml: a wrong one is refused on every rank") {
  const TempFolder folder;
  const auto refused_with = [&](const std::string& log) {
    const ConfFolder conf(log);
    return train(2, {});
  };
  for (const auto& message : refused_with("[[sink]]\nname = 'a'\ntype = 'stdout_sinc'\n")) {
    CAPTURE(message);
    CHECK(contains(message, "logging.toml:3: sink.type: 'stdout_sinc' is not known here"));
  }
  for (const auto& message : refused_with(to_files(folder / "both.log", "info"))) {
    CAPTURE(message);
    CHECK(contains(message, "2 ranks would write to"));
  }
  std::filesystem::create_directories(folder / "1.log");
  for (const auto& message : refused_with(to_files(folder / "{rank}.log", "info"))) {
    CAPTURE(message);
    CHECK(contains(message, "1.log' is there and is no file"));
  }
}

}  // namespace session_log_test
