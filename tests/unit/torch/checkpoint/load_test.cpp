#include <catch_shim.hpp>
#include <temp_folder.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>

#include <sys/syscall.h>
#include <unistd.h>

#include <torch/torch.h>
#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/safetensors.hpp>
#include <autopar/runtime/loopback.hpp>

#include "torch/checkpoint/checkpoint.hpp"
#include "torch/checkpoint/checkpoint_folder.hpp"
#include "torch/parameters/hyper_parameters.hpp"

// What a load that fails leaves behind: nothing. And what makes it fail.
namespace load_test {

using namespace autopar;
namespace fs = std::filesystem;

std::atomic<int> reads_until_error{-1};  ///< of files by this process, then all fail; negative: no error

}  // namespace load_test

/// In place of the C library's, so that a read can fail as on a bad disk.
extern "C" ssize_t pread(int descriptor, void* data, size_t bytes, off_t position) {
  auto& left = load_test::reads_until_error;
  if (left.load() == 0 || (left.load() > 0 && left.fetch_sub(1) == 0)) {
    errno = EIO;
    return -1;
  }
  return syscall(SYS_pread64, descriptor, data, bytes, position);
}

namespace load_test {

std::mutex mutex;  // of Catch's macros, and of the file that ranks share

/// On two ranks: `all` on both, `own` on the last, `shared` in shards, `count` a buffer. Two groups.
struct Model {
  std::vector<at::Tensor> tensors;
  std::vector<checkpoint::ShardedTensorMetadata> placed;
  std::unique_ptr<torch::optim::Optimizer> optimizer;

  explicit Model(const World& world, double value = 5) {
    const int rank = world.rank();
    const std::vector<parameters::ShardSlices> shares{Interval{0, 3}, Interval{3, 5}};
    const auto mine = shares[static_cast<std::size_t>(rank)];
    tensors = {torch::full({3}, value), torch::full({2, 2}, value + 1, torch::kDouble),
               torch::full({mine.size()}, value + 2), torch::full({}, static_cast<int64_t>(value), torch::kLong)};
    for (std::size_t i = 0; i < 3; ++i) tensors[i].set_requires_grad(true);
    placed = {{"all", tensors[0], {Rank(0), Rank(1)}},
              {"own", tensors[1], {Rank(1)}},
              {"shared", tensors[2], {Rank(0), Rank(1)}, {5}, shares},
              {"count", tensors[3], {Rank(0), Rank(1)}}};
    using torch::optim::AdamOptions;
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector{tensors[0], tensors[1]},
                        std::make_unique<AdamOptions>(AdamOptions(0.1).amsgrad(true)));
    groups.emplace_back(std::vector{tensors[2]}, std::make_unique<AdamOptions>(AdamOptions(0.2).betas({0.5, 0.6})));
    optimizer = std::make_unique<torch::optim::Adam>(groups, AdamOptions(0.1));
  }
  void step(const World& world) {
    optimizer->zero_grad();
    for (const auto i : {0, 1, 2}) {
      if (i != 1 || world.rank() == 1) tensors[static_cast<std::size_t>(i)].pow(2).sum().backward();
    }
    optimizer->step();
  }
};

/// All bytes of a model's tensors, of their state, and the hyper-parameters.
using Snapshot = std::pair<std::vector<std::string>, std::vector<parameters::HyperParameters>>;

Snapshot snapshot_of(Model& model) {
  std::vector<std::string> bytes;
  const auto add = [&](const at::Tensor& tensor) {
    bytes.emplace_back(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
  };
  for (const auto& tensor : model.tensors) {
    add(tensor);
    for (const auto& [name, value] : parameters::state_of(*model.optimizer, tensor)) {
      bytes.push_back(name);
      add(value);
    }
  }
  return {bytes, parameters::hyper_parameters(*model.optimizer)};
}

fs::path file_in(const fs::path& folder) { return folder / checkpoint::kModelFile; }

/// A checkpoint of two ranks after a step.
void make_checkpoint(const fs::path& folder) {
  loopback::run(2, [&](World& world) {
    Model model(world);
    model.step(world);
    checkpoint::save_checkpoint(world, single_file(), folder, model.placed, {model.optimizer.get()},
                                {7, 42, gradients::LossScaler::State{1024, 3, 1}});
  });
}

struct File {
  std::vector<TensorEntry> entries;
  std::map<std::string, std::string> metadata;
  std::map<std::string, std::vector<std::byte>> data;
};

File read_whole(const fs::path& path) {
  const SafetensorsReader reader(path);
  File file{reader.entries(), reader.metadata(), {}};
  for (const auto& entry : file.entries) {
    file.data[entry.name].resize(static_cast<std::size_t>(entry.bytes().value()));
    reader.read(entry.name, file.data[entry.name]);
  }
  return file;
}

/// A checkpoint as earlier versions wrote it: all in one file, with metadata, and names that say what they are.
File as_one_file(const fs::path& folder) {
  File file;
  file.metadata = checkpoint::read_index(folder)->metadata;
  for (const auto& [path, prefix] :
       {std::pair(file_in(folder), "model."), std::pair(folder / "optimizer.safetensors", "optimizer.")}) {
    for (const auto& entry : read_whole(path).entries) {
      const auto name = prefix + entry.name;
      file.entries.push_back({name, entry.dtype, entry.shape});
      file.data[name] = read_whole(path).data.at(entry.name);
    }
  }
  std::ranges::stable_sort(file.entries, std::greater<>{}, [](const auto& entry) { return size_of(entry.dtype); });
  return file;
}

/// With checksums that are right, whatever is in it.
void write_whole(const fs::path& path, const File& file) {
  SafetensorsWriter writer(path, file.entries, file.metadata);
  for (const auto& entry : file.entries) writer.write(file.data.at(entry.name));
  writer.commit();
}

/// Every rank loads `folder` into a model that has made two steps: all throw CheckpointError with `part`, nothing has
/// changed, and the same ranks load what is good afterwards.
void check_refused(const fs::path& folder, const fs::path& good, const std::string& part,
                   const std::function<void(Model&, int)>& change = {}) {
  CAPTURE(part);
  loopback::run(2, [&](World& world) {
    Model model(world, 9);
    for (int k = 0; k < 2; ++k) model.step(world);
    if (change) change(model, world.rank());
    const auto before = snapshot_of(model);
    const auto generator = at::detail::getDefaultCPUGenerator().get_state();
    std::string message;
    try {
      (void)checkpoint::load_checkpoint(world, folder, model.placed, {model.optimizer.get()});
    } catch (const CheckpointError& error) {
      message = error.what();
    }
    const bool same = snapshot_of(model) == before;
    const bool same_draws = torch::equal(generator, at::detail::getDefaultCPUGenerator().get_state());
    Model next(world, 1);
    (void)checkpoint::load_checkpoint(world, good, next.placed, {next.optimizer.get()});
    Model expected(world);
    expected.step(world);
    if (world.rank() == 0) expected.tensors[1] = next.tensors[1];
    const std::lock_guard lock(mutex);
    CAPTURE(message, world.rank());
    CHECK(message.find(part) != std::string::npos);
    CHECK(same);
    CHECK(same_draws);
    CHECK(snapshot_of(next) == snapshot_of(expected));
  });
}

TEST_CASE("load_checkpoint: a refused load changes nothing on any rank") {
  const TempFolder folder;
  const auto good = folder / "good", bad = folder / "bad";
  make_checkpoint(good);
  const auto whole = as_one_file(good);
  const auto refused = [&](const std::string& part, const std::function<void(File&)>& damage) {
    auto file = whole;
    damage(file);
    write_whole(file_in(bad), file);
    check_refused(bad, good, part);
  };
  const auto rename = [](File& file, const std::string& from, const std::string& to) {
    for (auto& entry : file.entries) {
      if (entry.name == from) entry.name = to;
    }
    file.data[to] = file.data.at(from);
  };
  const auto resize = [](File& file, const std::string& name, DType dtype, std::vector<std::int64_t> shape) {
    for (auto& entry : file.entries) {
      if (entry.name != name) continue;
      entry = {name, dtype, std::move(shape)};
      file.data[name].resize(static_cast<std::size_t>(entry.bytes().value()));
    }
  };
  const auto metadata = [&](const std::string& part, const std::string& key, const std::string& value) {
    refused(part, [&](File& file) { file.metadata[key] = value; });
  };
  const auto group = [&](const std::string& from, const std::string& to, const std::string& part) {
    refused(part, [&](File& file) {
      auto& text = file.metadata.at("autopar.optimizer.0.group.1");
      REQUIRE(text.find(from) != std::string::npos);
      text.replace(text.find(from), from.size(), to);
    });
  };
  SECTION("of another model") {
    refused("lacks 'model.own'", [&](File& file) { rename(file, "model.own", "model.other"); });
    refused("the model has no 'model.more'", [&](File& file) {
      file.entries.push_back({"model.more", DType::kU8, {1}});
      file.data["model.more"].resize(1);
    });
    refused("with sizes [2, 3]", [&](File& file) { resize(file, "model.own", DType::kF64, {2, 3}); });
    refused("'model.count' is", [&](File& file) { resize(file, "model.count", DType::kI32, {}); });
    refused("lacks 'optimizer.own.exp_avg'",
            [&](File& file) { rename(file, "optimizer.own.exp_avg", "optimizer.own.other"); });
  }
  SECTION("of other optimizers") {
    metadata("its optimizer is SGD, this one is Adam", "autopar.optimizer.0", "SGD");
    metadata("it has 2 optimizers, load was given 1", "autopar.optimizer.1", "Adam");
    refused("has 1 parameter groups", [](File& file) { file.metadata.erase("autopar.optimizer.0.group.1"); });
    group("parameters=1", "parameters=2", "group 1 of its optimizer has 2 parameters, of this one 1");
    check_refused(good, good, "rank 0 and rank 1 would keep other tensors", [](Model& model, int rank) {
      if (rank == 1) model.placed.erase(model.placed.begin() + 2);
    });
    check_refused(good, good, "rank 1: ", [](Model& model, int rank) {
      if (rank != 1) return;
      model.optimizer = std::make_unique<torch::optim::SGD>(model.tensors, torch::optim::SGDOptions(0.1));
    });
  }
  SECTION("with numbers that cannot be") {
    for (const char* rate : {"nan", "inf", "-1e308", "-0.5"}) group("lr=0.2", std::string("lr=") + rate, "lr = ");
    group("lr=0.2", "lr=0.2x", "no number");
    group("lr=0.2", "lr=0.2 lr=0.2", "twice");
    group("beta1=0.5", "beta1=1", "beta1 = 1");
    group("lr=0.2 ", "", "'lr' is missing");
    group("lr=0.2", "lr=0.2 speed=1", "'speed' is none of its options");
    metadata("counts -1 calls", "autopar.calls", "-1");
    metadata("no number", "autopar.seed", "-7");
    metadata("loss scale is damaged", "autopar.loss_scaler", "scale=0 good_steps=0 skipped=0");
    metadata("no count 'skipped'", "autopar.loss_scaler", "scale=1 good_steps=0 skipped=-1");
    refused("counts -1 steps", [](File& file) {
      const std::int64_t steps = -1;
      std::memcpy(file.data.at("optimizer.own.step").data(), &steps, sizeof(steps));
    });
  }
  SECTION("of another format") {
    metadata("format version '1'", "autopar.format", "1");
    metadata("'autopar.news' is not known", "autopar.news", "");
    refused("lacks 'autopar.calls'", [](File& file) { file.metadata.erase("autopar.calls"); });
    fs::remove_all(bad);
    check_refused(bad, good, "cannot open");
  }
  SECTION("damaged") {
    write_whole(file_in(bad), whole);
    auto text = read_text_file(file_in(bad));
    const auto with = [&](std::string content, const std::string& part) {
      write_text_file(file_in(bad), content);
      check_refused(bad, good, part);
    };
    with(text.substr(0, text.size() - 1), "do not fit");
    auto flipped = text;
    flipped.back() = static_cast<char>(flipped.back() ^ 1);  // in the last tensor that is read
    with(flipped, "are damaged");
    flipped = text;
    flipped[text.find("autopar.optimizer.0\"") + 18] = '1';
    with(flipped, "its header is damaged");
    flipped = text;
    const std::string mark = "autopar.xxh3";
    for (auto at = flipped.find(mark); at != std::string::npos; at = flipped.find(mark)) flipped[at] = 'b';
    with(flipped, "checksums, and they are gone");
  }
}

TEST_CASE("load_checkpoint: read errors reach all ranks, retry works") {
  const TempFolder folder;
  make_checkpoint(folder / "state");
  int errors = 0;
  for (bool failed = true; failed; ++errors) {
    REQUIRE(errors < 100);
    loopback::run(2, [&](World& world) {
      Model model(world, 9);
      model.step(world);
      const auto before = snapshot_of(model);
      if (world.rank() == 0) reads_until_error = errors;
      bool threw = false;
      try {
        (void)checkpoint::load_checkpoint(world, folder / "state", model.placed, {model.optimizer.get()});
      } catch (const CheckpointError&) {
        threw = true;
      }
      world.barrier();
      if (world.rank() == 0) reads_until_error = -1;
      world.barrier();
      const bool same = snapshot_of(model) == before;
      const auto info =
          checkpoint::load_checkpoint(world, folder / "state", model.placed, {model.optimizer.get()}).info;
      const std::lock_guard lock(mutex);
      CHECK(threw == same);
      CHECK(info->calls == 42);
      if (world.rank() == 1) failed = threw;
    });
  }
  CHECK(errors > 4 + 3 * 4 + 1);  // header, four tensors, and four of the state of three
}

TEST_CASE("load_checkpoint: weights alone if allowed, optimizer kept") {
  const TempFolder folder;
  make_checkpoint(folder / "good");
  const auto whole = as_one_file(folder / "good");
  const LoadOptions weights{.optimizer = Missing::kAllowed};
  for (const std::string prefix : {"", "model."}) {
    File file;
    for (const auto& entry : whole.entries) {
      if (!entry.name.starts_with("model.")) continue;
      const auto name = prefix + entry.name.substr(6);
      file.entries.push_back({name, entry.dtype, entry.shape});
      file.data[name] = whole.data.at(entry.name);
    }
    file.metadata["format"] = "pt";
    write_whole(file_in(folder / "foreign"), file);
    check_refused(folder / "foreign", folder / "good", "no state of optimizer 0; to load the rest");
    loopback::run(2, [&](World& world) {
      Model model(world, 9), expected(world);
      model.step(world);
      expected.step(world);
      const auto state = parameters::state_of(*model.optimizer, model.tensors[2]);
      const auto moments = state[1].second.clone();
      const auto info =
          checkpoint::load_checkpoint(world, folder / "foreign", model.placed, {model.optimizer.get()}, weights).info;
      const std::lock_guard lock(mutex);
      CHECK_FALSE(info.has_value());
      CHECK(torch::equal(model.tensors[0], expected.tensors[0]));
      CHECK(torch::equal(model.tensors[2], expected.tensors[2]));
      CHECK(torch::equal(model.tensors[3], expected.tensors[3]));
      CHECK(torch::equal(parameters::state_of(*model.optimizer, model.tensors[2])[1].second, moments));
      CHECK(parameters::hyper_parameters(*model.optimizer) == parameters::hyper_parameters(*expected.optimizer));
      if (world.rank() == 1) CHECK(torch::equal(model.tensors[1], expected.tensors[1]));
    });
  }
  // Of our own, with weights alone: the same.
  loopback::run(2, [&](World& world) {
    Model model(world);
    checkpoint::save_checkpoint(world, single_file(), folder / "weights", model.placed, {}, {1, 2});
  });
  check_refused(folder / "weights", folder / "good", "no state of optimizer 0");
  loopback::run(2, [&](World& world) {
    Model model(world, 9);
    const auto info =
        checkpoint::load_checkpoint(world, folder / "weights", model.placed, {model.optimizer.get()}, weights).info;
    const auto alone =
        checkpoint::load_checkpoint(world, folder / "good", model.placed, {})  // state that nobody asks for
            .info;
    const std::lock_guard lock(mutex);
    CHECK(info->calls == 2);
    CHECK(alone->calls == 42);
  });
}

TEST_CASE("load_checkpoint: partial files of killed saves are removed") {
  const TempFolder folder;
  const auto state = folder / "state";
  const auto left = state / "model.safetensors.partial-a1B2c3";
  write_text_file(left, "half");
  make_checkpoint(state);
  CHECK_FALSE(fs::exists(left));
  write_text_file(left, "half");
  const auto living = state / "notes.txt";
  write_text_file(living, "kept");
  loopback::run(2, [&](World& world) {
    Model model(world);
    (void)checkpoint::load_checkpoint(world, state, model.placed, {model.optimizer.get()});
  });
  CHECK_FALSE(fs::exists(left));
  CHECK(fs::exists(living));
  CHECK(std::distance(fs::directory_iterator(state), {}) == 4);  // index, model, optimizer, notes
}

TEST_CASE("save_checkpoint: tensors are aligned as safetensors wants") {
  const TempFolder folder;
  make_checkpoint(folder / "state");
  for (const auto* name : {"model.safetensors", "optimizer.safetensors"}) {
    const SafetensorsReader reader(folder / "state" / name);
    std::int64_t offset = 0;
    for (const auto& entry : reader.entries()) {
      CAPTURE(name, entry.name);
      CHECK(offset % size_of(entry.dtype).value() == 0);
      offset += entry.bytes().value();
    }
  }
}

}  // namespace load_test
