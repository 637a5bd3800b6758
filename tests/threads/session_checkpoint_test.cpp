#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <autopar/autopar.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/folder_lock.hpp>
#include <autopar/io/safetensors.hpp>
#include <autopar/runtime/loopback.hpp>

#include <catch_shim.hpp>
#include <nets.hpp>
#include <temp_folder.hpp>

#include "noisy_net.hpp"

#include "torch/checkpoint/checkpoint.hpp"
#include "torch/parameters/hyper_parameters.hpp"
#include "torch/parameters/optimizer_state.hpp"

// Models that save and load: what a load that fails leaves behind, and what a good one brings.
namespace session_checkpoint_test {

namespace ap = autopar;
namespace fs = std::filesystem;

using nets::NoisyNet;

using Model = ap::AutoParallel<NoisyNet>;
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
  const std::vector<NoisyNet> nets{NoisyNet(), NoisyNet()};
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

/// One of its data files.
fs::path data_file_in(const fs::path& folder) {
  fs::path last;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") last = std::max(last, entry.path());
  }
  return last;
}

/// A copy of `good` with the last byte of a data file changed, which is data of what is read last.
void write_damaged(const fs::path& good, const fs::path& bad) {
  fs::remove_all(bad);
  fs::copy(good, bad, fs::copy_options::recursive);
  auto text = ap::read_text_file(data_file_in(bad));
  text.back() = static_cast<char>(text.back() ^ 4);
  ap::write_text_file(data_file_in(bad), text);
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
  CHECK(fs::exists(folder / "default" / "model-0001-g1.safetensors"));  // of both ranks
  for (const auto* name : {"named", "listed"}) {
    const auto files = fs::directory_iterator(folder / name);
    CHECK(std::distance(begin(files), end(files)) == 3);
    CHECK(ap::read_text_file(folder / name / "model.safetensors") ==
          ap::read_text_file(folder / "named" / "model.safetensors"));
  }
}

TEST_CASE("load before first call: refusal is immediate, retry works", "[files]") {
  const TempFolder folder;
  const ap::Options options{.stages = 2, .replicas = {1, 1}};
  static_cast<void>(train(options, [&](Model& model, torch::optim::AdamW& optimizer, ap::World& world) {
    model->save(folder / "good", optimizer);
    model->save(folder / "weights");
    if (world.rank() == 0) write_damaged(folder / "good", folder / "damaged");
  }));
  const char* kFile = "model.safetensors";
  fs::create_directories(folder / "a folder" / kFile);
  fs::create_directories(folder / "a pipe");
  REQUIRE(::mkfifo((folder / "a pipe" / kFile).c_str(), 0600) == 0);
  fs::create_directories(folder / "a device");
  fs::create_symlink("/dev/zero", folder / "a device" / kFile);
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
          world, [] { return NoisyNet(); }, how);
    return Model(world, NoisyNet(), how);
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
        CHECK(message.find("cannot load " + (folder / name).string()) != std::string::npos);
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
    fs::copy(folder / "good", folder / "damaged", fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    std::vector<double> losses;
    ap::loopback::run(2, [&](ap::World& world) {
      const auto make = [] {
        NoisyNet net;
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
        const auto name = data_file_in(folder / "damaged");
        std::fstream file(name, std::ios::in | std::ios::out | std::ios::binary);
        const auto size = static_cast<std::streamoff>(fs::file_size(name));
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
      Model model(world, NoisyNet(), options);
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
    if (rank == 0)
      model->load(folder / "one", optimizer);
    else
      model(torch::ones({4, 4})).backward();
  });
  check_refused(calls, "rank 0 is in 'load', rank 1 is in 'forward'");
  const auto optimizers = body([&](Model& model, torch::optim::AdamW& optimizer, int rank) {
    if (rank == 0)
      model->load(folder / "one", optimizer);
    else
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
    Model model(world, NoisyNet(), options);
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
    Model model(world, NoisyNet(), ap::Options{.plan_only = true});
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3));
    model->load("nowhere", optimizer);
    CHECK_THROWS_AS(model(torch::ones({4, 4})), ap::PlanOnly);
  });
}

TEST_CASE("named pipe as checkpoint: load and save refuse it by name", "[files]") {
  const TempFolder folder;
  fs::create_directories(folder / "run");
  REQUIRE(::mkfifo((folder / "run" / "model.safetensors").c_str(), 0600) == 0);
  static_cast<void>(train({.stages = 2, .replicas = {1, 1}}, [&](Model& model, torch::optim::AdamW& optimizer,
                                                                 ap::World&) {
    const auto loaded = message_of<ap::CheckpointError>([&] { model->load(folder / "run", optimizer); });
    const auto saved =
        message_of<ap::CheckpointError>([&] { model->save(folder / "run", optimizer, {.format = ap::single_file()}); });
    const std::lock_guard lock(mutex);
    CAPTURE(loaded, saved);
    CHECK(loaded.find("it is a pipe, and must be a regular file") != std::string::npos);
    CHECK(saved.find("it is a pipe, and must be a regular file") != std::string::npos);
  }));
}

TEST_CASE("optimizers of unknown state: refused on every rank", "[files]") {
  const TempFolder folder;
  ap::loopback::run(2, [&](ap::World& world) {
    Model model(world, NoisyNet(), ap::Options{.stages = 2, .replicas = {1, 1}});
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

TEST_CASE("save in the background: what was there when it was called", "[files]") {
  const TempFolder folder;
  const std::vector<ap::Options> plans{{.stages = 2, .microbatches = 2, .replicas = {1, 1}},
                                       {.stages = 1, .zero = 3, .replicas = {2}},
                                       {.stages = 1, .zero = 0, .replicas = {2}}};
  for (const auto& options : plans) {
    for (const auto format : {ap::single_file(), ap::sharded()}) {
      CAPTURE(options.stages, options.zero, format == ap::sharded());
      const auto undisturbed = train(options, [](Model&, torch::optim::AdamW&, ap::World&) {});
      const auto disturbed = train(options, [&](Model& model, torch::optim::AdamW& optimizer, ap::World&) {
        model->save(folder / "there", optimizer, {.format = format, .wait = false});
      });
      const auto resumed = train(options, [&](Model& model, torch::optim::AdamW& optimizer, ap::World&) {
        for (auto& parameter : model->owned_parameters()) parameter.detach().fill_(0.5);
        model->load(folder / "there", optimizer);
      });
      CHECK(disturbed == undisturbed);
      CHECK(resumed == undisturbed);
      std::error_code ignored;
      fs::remove_all(folder / "there", ignored);
    }
  }
}

/// While it lives, this process writes no file of more than some bytes, as on a full disk.
class SmallFiles {
 public:
  SmallFiles() : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{256, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;
  ~SmallFiles() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST_CASE("save in the background: an error is thrown by a later call on all", "[files]") {
  const TempFolder folder;
  static_cast<void>(
      train({.stages = 2, .replicas = {1, 1}}, [&](Model& model, torch::optim::AdamW& optimizer, ap::World& world) {
        const auto x = torch::ones({4, 4});
        const auto broken = folder / "broken";
        model->save(broken, optimizer);
        world.barrier();
        auto limit = world.rank() == 0 ? std::optional<SmallFiles>(std::in_place) : std::nullopt;
        world.barrier();
        model->save(broken, optimizer, {.wait = false});
        const auto waited = message_of<ap::CheckpointError>([&] { model->wait(); });
        model->wait();
        model->save(broken, optimizer, {.wait = false});
        std::string called;
        for (int k = 0; k < 500 && called.empty(); ++k) {
          called = message_of<ap::CheckpointError>([&] { model(x).backward(); });
          optimizer.zero_grad();
        }
        world.barrier();
        limit.reset();
        world.barrier();
        const auto later = model(x).item<float>();
        model->load(broken, optimizer);  // the first is there
        model->save(folder / "good", optimizer, {.wait = false});
        model->save(folder / "good", optimizer, {.wait = false});
        model->load(folder / "good", optimizer);
        const std::lock_guard lock(mutex);
        CAPTURE(waited, called);
        CHECK(waited.find("cannot save " + broken.string()) != std::string::npos);
        CHECK(called.find("cannot save " + broken.string()) != std::string::npos);
        CHECK(later == later);
      }));
}

TEST_CASE("save in the background: the end of the model completes it", "[files]") {
  const TempFolder folder;
  const ap::Options options{.stages = 2, .replicas = {1, 1}};
  ap::loopback::run(2, [&](ap::World& world) {
    Model model(world, NoisyNet(), options);
    model(torch::ones({4, 4})).backward();
    model->save(folder / "state", {.wait = false});
  });
  ap::loopback::run(2, [&](ap::World& world) {
    Model model(world, NoisyNet(), options);
    model->load(folder / "state");
    model(torch::ones({4, 4})).backward();
    const std::lock_guard lock(mutex);
    CHECK(model->stats().calls == 2);
  });
}

TEST_CASE("one job a folder: another is refused, with its process", "[files]") {
  const TempFolder folder;
  int ready[2], done[2];
  REQUIRE(::pipe(ready) == 0);
  REQUIRE(::pipe(done) == 0);
  const auto child = ::fork();
  if (child == 0) {  // the other job
    const ap::FolderLock lock(folder / "state");
    char byte = 0;
    static_cast<void>(::write(ready[1], &byte, 1));
    static_cast<void>(::read(done[0], &byte, 1));
    ::_exit(0);
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  static_cast<void>(
      train({.stages = 2, .replicas = {1, 1}}, [&](Model& model, torch::optim::AdamW& optimizer, ap::World& world) {
        const auto refused = message_of<ap::CheckpointError>([&] { model->save(folder / "state", optimizer); });
        world.barrier();
        if (world.rank() == 0) {
          REQUIRE(::kill(child, SIGKILL) == 0);
          int status = 0;
          REQUIRE(::waitpid(child, &status, 0) == child);
        }
        world.barrier();
        model->save(folder / "state", optimizer);
        const std::lock_guard lock(mutex);
        CAPTURE(refused);
        CHECK(refused.find("another job writes to this folder: process " + std::to_string(child)) != std::string::npos);
      }));
  for (const int end : {ready[0], ready[1], done[0], done[1]}) ::close(end);
}

TEST_CASE("one job a folder: several of its models may save there", "[files]") {
  const TempFolder folder;
  ap::loopback::run(2, [&](ap::World& world) {
    const ap::Options options{.stages = 2, .replicas = {1, 1}};
    Model first(world, NoisyNet(), options), second(world, NoisyNet(), options);
    for (auto* model : {&first, &second}) {
      (*model)(torch::ones({4, 4})).backward();
      CHECK_NOTHROW((*model)->save(folder / "state"));
    }
  });
}

/// Without dropout, in double precision: a step on any ranks is the step of one process.
struct ExactNetImpl : torch::nn::Module {
  ExactNetImpl() {
    nets::register_all(*this, "first", first, "second", second, "third", third);
    to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    double phase = 0;
    for (auto& parameter : parameters())
      parameter.copy_(torch::sin(torch::arange(parameter.numel(), torch::kDouble) + ++phase).view(parameter.sizes()));
  }
  at::Tensor forward(const at::Tensor& x) { return third(torch::tanh(second(torch::relu(first(x))))).pow(2).mean(); }
  torch::nn::Linear first{4, 8}, second{8, 8}, third{8, 3};
};
TORCH_MODULE(ExactNet);

constexpr std::int64_t kBatch = 12;
constexpr int kStepsInAWorld = 2;

at::Tensor exact_batch(int step) {
  return torch::cos(torch::arange(kBatch * 4, torch::kDouble) + step).view({kBatch, 4});
}

TEST_CASE("checkpoint: 4 ranks, 3, 1 and 4 again train as one process", "[files]") {
  const TempFolder folder;
  const std::vector<ap::Options> worlds{{.stages = 2, .microbatches = 3, .replicas = {2, 2}},
                                        {.stages = 1, .zero = 3, .replicas = {3}},
                                        {},
                                        {.stages = 1, .zero = 1, .replicas = {4}}};
  const std::vector<int> sizes{4, 3, 1, 4};
  const auto options = torch::optim::AdamOptions(0.01).weight_decay(0.1).amsgrad(true);
  std::map<std::string, at::Tensor> made;
  for (std::size_t w = 0; w < worlds.size(); ++w) {
    ap::loopback::run(sizes[w], [&](ap::World& world) {
      ap::AutoParallel<ExactNet> model(world, ExactNet(), worlds[w]);
      torch::optim::Adam optimizer(model->parameters(), options);
      model->attach(optimizer);
      if (w > 0) model->load(folder / "run", optimizer);
      for (int k = 0; k < kStepsInAWorld; ++k) {
        const auto mine = kBatch / world.size();
        optimizer.zero_grad();
        model(exact_batch(static_cast<int>(w) * kStepsInAWorld + k).narrow(0, world.rank() * mine, mine)).backward();
        optimizer.step();
      }
      model->save(folder / "run", optimizer, {.wait = w % 2 == 0});
      const auto state = model->gather_state();
      const std::lock_guard lock(mutex);
      if (world.rank() == 0) {
        for (const auto& item : state) made[item.key()] = item.value();
      }
    });
  }
  ExactNet net;
  torch::optim::Adam optimizer(net->parameters(), options);
  for (int step = 0; step < kStepsInAWorld * 4; ++step) {
    optimizer.zero_grad();
    net(exact_batch(step)).backward();
    optimizer.step();
  }
  for (const auto& item : net->named_parameters()) {
    CAPTURE(item.key());
    CHECK((made.at(item.key()) - item.value()).abs().max().item<double>() <= 1e-13);
  }
}

/// As the program in tests/data/391ef30 has it.
struct EarlierNetImpl : torch::nn::Module {
  EarlierNetImpl() { nets::register_all(*this, "first", first, "norm", norm, "second", second); }
  at::Tensor forward(const at::Tensor& x) { return second(torch::relu(norm(first(x)))).pow(2).mean(); }
  torch::nn::Linear first{6, 8}, second{8, 3};
  torch::nn::BatchNorm1d norm{8};
};
TORCH_MODULE(EarlierNet);

TEST_CASE("a checkpoint of 391ef30 loads under any plan", "[files]") {
  for (const auto* name : {"one-rank", "two-ranks"}) {
    const auto folder = fs::path(AUTOPAR_TEST_DATA) / "391ef30" / name;
    const ap::SafetensorsReader file(folder / "model.safetensors");
    for (const int ranks : {1, 2}) {
      for (const bool early : {false, true}) {
        CAPTURE(name, ranks, early);
        ap::loopback::run(ranks, [&](ap::World& world) {
          ap::AutoParallel<EarlierNet> model(world, EarlierNet(), ap::Options{.stages = ranks});
          torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(3));
          model->attach(optimizer);
          if (early) model->load(folder, optimizer);
          model->prepare(torch::ones({4, 6}));
          if (!early) model->load(folder, optimizer);
          const auto state = model->gather_state();
          const auto whole = model->gather_optimizer(optimizer);
          const std::lock_guard lock(mutex);
          CHECK(model->stats().calls == 3);
          CHECK(optimizer.param_groups()[0].options().get_lr() == 0.01);
          if (world.rank() != 0) return;
          for (const auto& item : state) {
            auto saved = at::empty_like(item.value());
            file.read("model." + item.key(), {static_cast<std::byte*>(saved.data_ptr()), saved.nbytes()});
            CHECK(torch::equal(item.value(), saved));
          }
          const auto steps = ap::parameters::state_of(*whole, whole->param_groups()[0].params()[0]).front().second;
          CHECK(steps.item<std::int64_t>() == 3);
        });
      }
    }
  }
}

}  // namespace session_checkpoint_test
