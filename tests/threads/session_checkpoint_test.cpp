#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <autopar/autopar.hpp>
#include <autopar/io/file.hpp>
#include <autopar/runtime/loopback.hpp>

#include <catch_shim.hpp>
#include <nets.hpp>
#include <temp_folder.hpp>

#include "torch/checkpoint/checkpoint.hpp"
#include "torch/parameters/hyper_parameters.hpp"
#include "torch/parameters/optimizer_state.hpp"

// Models that save and load: what a load that fails leaves behind, and what a good one brings.
namespace session_checkpoint_test {

namespace ap = autopar;
namespace fs = std::filesystem;

/// With a buffer that each call changes, and draws.
struct NetImpl : torch::nn::Module {
  NetImpl() { nets::register_all(*this, "first", first, "norm", norm, "dropout", dropout, "second", second); }
  at::Tensor forward(const at::Tensor& x) { return second(dropout(norm(torch::relu(first(x))))).pow(2).mean(); }
  torch::nn::Linear first{4, 8}, second{8, 3};
  torch::nn::BatchNorm1d norm{8};
  torch::nn::Dropout dropout{0.5};
};
TORCH_MODULE(Net);

using Model = ap::AutoParallel<Net>;
using Between = std::function<void(Model&, torch::optim::AdamW&, ap::World&)>;

/// All that a training has to show, on all ranks.
struct Course {
  std::vector<double> losses, scales;
  std::vector<std::string> state;  ///< bytes of parameters and buffers
  std::vector<std::int64_t> calls, skipped;
  std::vector<std::vector<ap::parameters::HyperParameters>> options;
  friend bool operator==(const Course&, const Course&) = default;
};

std::mutex mutex;

/// Two steps on two ranks, what comes between, two more.
Course train(const ap::Options& options, const Between& between) {
  Course course;
  torch::manual_seed(1);
  const std::vector<Net> nets{Net(), Net()};
  ap::loopback::run(2, [&](ap::World& world) {
    Model model(world, nets[static_cast<std::size_t>(world.rank())], options);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01).betas({0.8, 0.9}));
    model->attach(optimizer);
    std::vector<double> losses;
    const auto x = torch::arange(16, torch::kFloat).reshape({4, 4}).add(world.rank()).div(10);
    const auto step = [&] {
      optimizer.zero_grad();
      auto loss = model(x);
      loss.backward();
      optimizer.step();
      losses.push_back(loss.item<double>());
    };
    step();
    step();
    between(model, optimizer, world);
    step();
    step();
    const auto state = model->gather_state();
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) course.losses = losses;
    course.scales.push_back(model->stats().loss_scale);
    course.calls.push_back(model->stats().calls);
    course.skipped.push_back(model->stats().skipped_steps);
    course.options.push_back(ap::parameters::hyper_parameters(optimizer));
    for (const auto& item : state) {
      course.state.emplace_back(static_cast<const char*>(item.value().data_ptr()), item.value().nbytes());
    }
  });
  return course;
}

template <class Error>
std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

fs::path checkpoint_in(const fs::path& folder) { return folder / ap::checkpoint::kCheckpointFile; }

/// The file of `good` with its last byte changed, which is data of what is read last.
void write_damaged(const fs::path& good, const fs::path& bad) {
  auto text = ap::read_text_file(checkpoint_in(good));
  text.back() = static_cast<char>(text.back() ^ 4);
  ap::write_text_file(checkpoint_in(bad), text);
}

TEST_CASE("failing loads: leave training bitwise unaffected", "[files]") {
  const TempFolder folder;
  const std::vector<ap::Options> plans{{.stages = 2, .microbatches = 2, .replicas = {1, 1}},
                                       {.stages = 1, .zero = 3, .replicas = {2}},
                                       {.stages = 1, .zero = 0, .replicas = {2}, .precision = ap::Precision::kFp16}};
  for (const auto& options : plans) {
    CAPTURE(options.stages, options.zero, ap::option_text(options.precision));
    const auto saves = [&](Model& model, torch::optim::AdamW& optimizer, ap::World& world) {
      model->save(folder / "good", optimizer);
      model->save(folder / "weights");
      if (world.rank() == 0) write_damaged(folder / "good", folder / "damaged");
    };
    const auto undisturbed = train(options, saves);
    const auto disturbed = train(options, [&](Model& model, torch::optim::AdamW& optimizer, ap::World&) {
      for (const char* name : {"damaged", "weights", "nowhere"}) {
        const auto message = message_of<ap::CheckpointError>([&] { model->load(folder / name, optimizer); });
        const std::lock_guard lock(mutex);
        CAPTURE(name, message);
        CHECK(message.find("cannot load") != std::string::npos);
      }
    });
    CHECK(disturbed.losses == undisturbed.losses);
    CHECK(disturbed == undisturbed);
  }
}

TEST_CASE("checkpoint: sets hyper-parameters, or weights alone", "[files]") {
  const TempFolder folder;
  const ap::Options options{.stages = 2, .replicas = {1, 1}};
  static_cast<void>(train(options, [&](Model& model, torch::optim::AdamW& optimizer, ap::World&) {
    model->save(folder / "all", optimizer);
    model->save(folder / "weights");
  }));
  const ap::Options replicated{.stages = 1, .replicas = {2}};
  static_cast<void>(train(replicated, [&](Model& model, torch::optim::AdamW& optimizer, ap::World&) {
    auto& group = static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options());
    group.betas({0.1, 0.2}).weight_decay(0.5).lr(3);
    model->load(folder / "weights", optimizer, {.optimizer = ap::Missing::kAllowed});
    const bool kept = group.lr() == 3;
    model->load(folder / "weights", {&optimizer}, {.optimizer = ap::Missing::kAllowed});
    model->load(folder / "weights");
    model->load(folder / "all", optimizer);
    const std::lock_guard lock(mutex);
    CHECK(kept);
    CHECK(group == torch::optim::AdamWOptions(0.01).betas({0.8, 0.9}));
  }));
}

/// Of each rank, what it is refused with by autopar; the same ranks go on.
std::vector<std::string> refusals(int ranks, const std::function<void(ap::World&)>& work) {
  std::vector<std::string> messages(static_cast<std::size_t>(ranks));
  ap::loopback::run(ranks, [&](ap::World& world) {
    try {
      work(world);
    } catch (const ap::Error& error) {
      messages[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  return messages;
}

void check_refused(const std::vector<std::string>& messages, const std::string& part) {
  for (const auto& message : messages) {
    CAPTURE(message, part);
    CHECK(message.find(part) != std::string::npos);
  }
}

/// Bytes of what has memory, and hyper-parameters.
std::pair<std::vector<std::string>, std::vector<ap::parameters::HyperParameters>> state_here(
    const Model& model, torch::optim::AdamW& optimizer) {
  std::vector<std::string> bytes;
  const auto add = [&](const at::Tensor& tensor) {
    bytes.emplace_back(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
  };
  for (const auto& item : model->named_parameters()) add(item.value());
  for (const auto& item : model->named_buffers()) add(item.value());
  return {bytes, ap::parameters::hyper_parameters(optimizer)};
}

TEST_CASE("SaveOptions: a format named is the format of a save", "[files]") {
  const TempFolder folder;
  const ap::Options options{.stages = 2, .replicas = {1, 1}};
  static_cast<void>(train(options, [&](Model& model, torch::optim::AdamW& optimizer, ap::World&) {
    model->save(folder / "default", optimizer);
    model->save(folder / "named", optimizer, {.format = ap::single_file()});
    model->save(folder / "listed", {&optimizer}, {.format = ap::single_file()});
    model->load(folder / "named", optimizer);
  }));
  const auto bytes = ap::read_text_file(checkpoint_in(folder / "default"));
  CHECK(ap::read_text_file(checkpoint_in(folder / "named")) == bytes);
  CHECK(ap::read_text_file(checkpoint_in(folder / "listed")) == bytes);
  CHECK(ap::single_file().name() == "single_file");
}

TEST_CASE("load before first call: refusal is immediate, retry works", "[files]") {
  const TempFolder folder;
  const ap::Options options{.stages = 2, .replicas = {1, 1}};
  static_cast<void>(train(options, [&](Model& model, torch::optim::AdamW& optimizer, ap::World& world) {
    model->save(folder / "good", optimizer);
    model->save(folder / "weights");
    if (world.rank() == 0) write_damaged(folder / "good", folder / "damaged");
  }));
  fs::create_directories(checkpoint_in(folder / "a folder"));
  fs::create_directories(folder / "a pipe");
  REQUIRE(::mkfifo(checkpoint_in(folder / "a pipe").c_str(), 0600) == 0);
  fs::create_directories(folder / "a device");
  fs::create_symlink("/dev/zero", checkpoint_in(folder / "a device"));
  const std::vector<std::pair<std::string, std::string>> bad{
      {"nowhere", "No such file"},
      {"damaged", "are damaged"},
      {"weights", "it has no state of optimizer 0"},
      {"a folder", "it is a folder, and must be a regular file"},
      {"a pipe", "it is a pipe, and must be a regular file"},
      {"a device", "it is a device, and must be a regular file"}};
  const auto make = [](ap::World& world, bool recorded, const ap::Options& how) {
    if (recorded)
      return Model(
          world, [] { return Net(); }, how);
    return Model(world, Net(), how);
  };
  for (const bool recorded : {false, true}) {
    ap::loopback::run(2, [&](ap::World& world) {
      auto model = make(world, recorded, options);
      torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3));
      for (const auto& [name, part] : bad) {
        const auto before =
            recorded ? decltype(state_here(model, optimizer))({}, ap::parameters::hyper_parameters(optimizer))
                     : state_here(model, optimizer);
        const auto message = message_of<ap::CheckpointError>([&] { model->load(folder / name, optimizer); });
        const auto after = recorded
                               ? decltype(state_here(model, optimizer))({}, ap::parameters::hyper_parameters(optimizer))
                               : state_here(model, optimizer);
        const std::lock_guard lock(mutex);
        CAPTURE(name, message, recorded, world.rank());
        CHECK(message.find("cannot load " + checkpoint_in(folder / name).string()) != std::string::npos);
        CHECK(message.find(part) != std::string::npos);
        CHECK(before == after);
      }
      model->load(folder / "good", optimizer);
      const auto rate = optimizer.param_groups()[0].options().get_lr();
      model(torch::ones({4, 4})).backward();
      const std::lock_guard lock(mutex);
      CHECK(rate == 0.01);
      CHECK(model->stats().calls == 3);
    });
  }
}

TEST_CASE("load before first call: later damage fails that call only", "[files]") {
  const TempFolder folder;
  const ap::Options options{.stages = 2, .replicas = {1, 1}};
  static_cast<void>(train(options, [&](Model& model, torch::optim::AdamW& optimizer, ap::World&) {
    model->save(folder / "good", optimizer);
  }));
  const auto train_step = [](Model& model) { model(torch::ones({4, 4})).backward(); };
  for (const bool writes : {false, true}) {
    fs::create_directories(folder / "damaged");
    fs::copy_file(checkpoint_in(folder / "good"), checkpoint_in(folder / "damaged"),
                  fs::copy_options::overwrite_existing);
    std::vector<double> losses;
    ap::loopback::run(2, [&](ap::World& world) {
      const auto make = [] {
        Net net;
        const torch::NoGradGuard no_grad;
        for (auto& parameter : net->parameters()) parameter.fill_(0.1);
        return net;
      };
      Model undisturbed(world, make, options);
      Model model(world, make, options);
      torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3));
      model->load(folder / "damaged", optimizer);
      for (auto* each : {&undisturbed, &model}) {
        const torch::NoGradGuard no_grad;
        if (writes) (*each)->module().second->weight.mul_(2);
      }
      if (world.rank() == 0) {  // in place: the same file
        std::fstream file(checkpoint_in(folder / "damaged"), std::ios::in | std::ios::out | std::ios::binary);
        const auto size = static_cast<std::streamoff>(fs::file_size(checkpoint_in(folder / "damaged")));
        for (std::streamoff at = size / 2; at < size; ++at) file.seekp(at).put('x');
      }
      world.barrier();
      const auto message = message_of<ap::CheckpointError>([&] { train_step(model); });
      train_step(model);
      train_step(undisturbed);
      const auto state = model->gather_state(), expected = undisturbed->gather_state();
      model->load(folder / "good", optimizer);
      const std::lock_guard lock(mutex);
      CAPTURE(message, writes);
      CHECK(message.find("cannot load") != std::string::npos);
      CHECK(message.find("are damaged") != std::string::npos);
      CHECK(model->stats().calls == 2);
      CHECK(optimizer.param_groups()[0].options().get_lr() == 0.01);
      for (const auto& item : expected) CHECK(torch::equal(item.value(), state[item.key()]));
    });
  }
}

TEST_CASE("differing loads before first call: reported, no rank waits", "[files]") {
  const TempFolder folder;
  const ap::Options options{.stages = 2, .replicas = {1, 1}};
  static_cast<void>(train(options, [&](Model& model, torch::optim::AdamW& optimizer, ap::World&) {
    model->save(folder / "one", optimizer);
    model->save(folder / "two", optimizer);
  }));
  const auto body = [&](const std::function<void(Model&, torch::optim::AdamW&, int)>& load) {
    return refusals(2, [&](ap::World& world) {
      Model model(world, Net(), options);
      torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3));
      load(model, optimizer, world.rank());
    });
  };
  const auto folders = body([&](Model& model, torch::optim::AdamW& optimizer, int rank) {
    model->load(folder / (rank == 0 ? "one" : "two"), optimizer);
  });
  check_refused(folders, "one");
  check_refused(folders, "two");
  const auto calls = body([&](Model& model, torch::optim::AdamW& optimizer, int rank) {
    if (rank == 0) return model->load(folder / "one", optimizer);
    model(torch::ones({4, 4})).backward();
  });
  check_refused(calls, "rank 0 is in 'load', rank 1 is in 'forward'");
  const auto optimizers = body([&](Model& model, torch::optim::AdamW& optimizer, int rank) {
    if (rank == 0) return model->load(folder / "one", optimizer);
    model->load(folder / "one");
  });
  check_refused(optimizers, "rank 0 and rank 1 would keep other tensors");
}

TEST_CASE("load before first call: optimizer promise checked at attach", "[files]") {
  const TempFolder folder;
  const ap::Options options{.stages = 1, .zero = 1, .replicas = {2}};
  static_cast<void>(train(options, [&](Model& model, torch::optim::AdamW& optimizer, ap::World&) {
    model->save(folder / "good", optimizer);
  }));
  ap::loopback::run(2, [&](ap::World& world) {
    Model model(world, Net(), options);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3));
    model->load(folder / "good", optimizer);
    std::ostringstream out;
    const auto unsaved = message_of<ap::InvalidArgument>([&] { torch::save(optimizer, out); });
    const std::vector<at::Tensor> more{torch::ones({2}).set_requires_grad(true)};
    optimizer.add_param_group(torch::optim::OptimizerParamGroup(more));
    const auto refused = message_of<ap::CheckpointError>([&] { model->attach(optimizer); });
    torch::optim::AdamW other(model->parameters(), torch::optim::AdamWOptions(3));
    model->load(folder / "good", other);
    model->attach(other);
    model->prepare(torch::ones({4, 4}));
    const auto steps =
        ap::parameters::state_of(other, model->owned_parameters().front()).front().second.item<std::int64_t>();
    const std::lock_guard lock(mutex);
    CAPTURE(unsaved, refused);
    CHECK(unsaved.find("call model->prepare(arguments...) first") != std::string::npos);
    CHECK(refused.find("has 1 parameter groups, this one 2") != std::string::npos);
    CHECK(steps == 2);
  });
}

TEST_CASE("plan_only: load does nothing and needs no file", "[files]") {
  ap::loopback::run(1, [&](ap::World& world) {
    Model model(world, Net(), ap::Options{.plan_only = true});
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3));
    model->load("nowhere", optimizer);
    CHECK_THROWS_AS(model(torch::ones({4, 4})), ap::PlanOnly);
  });
}

TEST_CASE("named pipe as checkpoint: load and save refuse it by name", "[files]") {
  const TempFolder folder;
  fs::create_directories(folder / "run");
  REQUIRE(::mkfifo(checkpoint_in(folder / "run").c_str(), 0600) == 0);
  static_cast<void>(
      train({.stages = 2, .replicas = {1, 1}}, [&](Model& model, torch::optim::AdamW& optimizer, ap::World&) {
        const auto loaded = message_of<ap::CheckpointError>([&] { model->load(folder / "run", optimizer); });
        const auto saved = message_of<ap::CheckpointError>([&] { model->save(folder / "run", optimizer); });
        const std::lock_guard lock(mutex);
        CAPTURE(loaded, saved);
        CHECK(loaded.find("it is a pipe, and must be a regular file") != std::string::npos);
        CHECK(saved.find("it is a pipe, and must be a regular file") != std::string::npos);
      }));
}

TEST_CASE("optimizers of unknown state: refused on every rank", "[files]") {
  const TempFolder folder;
  ap::loopback::run(2, [&](ap::World& world) {
    Model model(world, Net(), ap::Options{.stages = 2, .replicas = {1, 1}});
    model(torch::ones({4, 4})).backward();
    torch::optim::LBFGS unknown(model->parameters());
    torch::optim::SGD known(model->parameters(), 0.1);
    auto& mine = world.rank() == 1 ? static_cast<torch::optim::Optimizer&>(unknown) : known;
    const auto saved = message_of<ap::InvalidArgument>([&] { model->save(folder / "state", mine); });
    model->save(folder / "state", known);
    const auto loaded = message_of<ap::InvalidArgument>([&] { model->load(folder / "state", mine); });
    model->load(folder / "state", known);
    const std::lock_guard lock(mutex);
    CAPTURE(saved, loaded);
    CHECK(saved.find("LBFGS") != std::string::npos);
    CHECK(loaded.find("LBFGS") != std::string::npos);
  });
}

}  // namespace session_checkpoint_test
