#include <catch_shim.hpp>
#include <says.hpp>
#include <temp_folder.hpp>

#include <algorithm>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/safetensors.hpp>
#include <autopar/runtime/loopback.hpp>

#include "name_oracle.hpp"
#include "torch/checkpoint/checkpoint.hpp"
#include "torch/checkpoint/export_weights.hpp"
#include "torch/parameters/hyper_parameters.hpp"

// Loads of the weights of another model, from files: values, state of optimizers, reports. And files of weights alone.
namespace fine_tuning_test {

using namespace autopar;
namespace fs = std::filesystem;
using checkpoint::ShardedTensorMetadata;
using Names = std::vector<std::string>;

std::mutex mutex;  // of Catch's macros

const std::vector<parameters::ShardSlices> kShares{Interval{0, 1}, Interval{1, 3}};

/// Of two ranks: tensors of three elements, in turn on both ranks, on the last, and in shards.
struct Model {
  std::vector<ShardedTensorMetadata> tensors;
  std::unique_ptr<torch::optim::Adam> adam;

  Model(const World& world, const Names& names, double value) {
    std::vector<at::Tensor> handles;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const bool is_sharded = i % 3 == 2;
      const auto whole = torch::arange(3, torch::kFloat).add(value + 10.0 * static_cast<double>(i));
      const auto share = kShares[static_cast<std::size_t>(world.rank())].ranges.front();
      auto handle = is_sharded ? whole.narrow(0, share.begin, share.size()).clone() : whole.clone();
      handle.set_requires_grad(true);
      handles.push_back(handle);
      const std::vector<Rank> both{Rank(0), Rank(1)}, last{Rank(1)};
      tensors.push_back({names[i], handle, i % 3 == 1 ? last : both});
      if (is_sharded) tensors.back().sizes = {3};
      if (is_sharded) tensors.back().shards = kShares;
    }
    adam = std::make_unique<torch::optim::Adam>(handles, torch::optim::AdamOptions(0.1));
  }
  /// Moments say by which gradients they were made.
  void step(float gradient) {
    for (auto& tensor : tensors) tensor.handle.mutable_grad() = torch::full_like(tensor.handle, gradient);
    adam->step();
  }
  std::map<std::string, at::Tensor> values(World& world) const {
    std::map<std::string, at::Tensor> all;
    for (const auto& tensor : tensors) all[tensor.name] = checkpoint::gather_tensor(world, tensor);
    return all;
  }
  at::Tensor moment(std::size_t i) {
    const auto state = parameters::state_of(*adam, tensors[i].handle);
    return state.empty() ? at::Tensor() : state[1].second.flatten()[0];
  }
};

bool equal(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  return std::ranges::equal(
      a, b, [](const auto& x, const auto& y) { return x.first == y.first && torch::equal(x.second, y.second); });
}

void write_file(const fs::path& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : tensors) entries.push_back({name, DType::kF32, tensor.sizes().vec()});
  SafetensorsWriter writer(path, entries);
  for (const auto& [name, tensor] : tensors)
    writer.write(std::as_bytes(std::span(tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel()))));
  writer.commit();
}

TEST_CASE("load_checkpoint: random names and rules bring what they say") {
  const TempFolder folder;
  std::mt19937 random(7);
  int loaded_rounds = 0;
  for (int round = 0; round < 150; ++round) {
    const auto load = name_oracle::random_case(random);
    const auto want = name_oracle::answer(load);
    if (!want.faults.empty() && round % 5 != 0) continue;
    std::map<std::string, at::Tensor> in_file;
    for (const auto& name : load.file) in_file[name] = torch::full({3}, 100.0F + static_cast<float>(in_file.size()));
    const auto path = folder / "weights.bin";
    write_file(path, {in_file.begin(), in_file.end()});
    loopback::run(2, [&](World& world) {
      Model model(world, load.model, 1);
      auto expected = model.values(world);
      LoadReport report;
      const auto said =
          said_by([&] { report = checkpoint::load_checkpoint(world, path, model.tensors, {}, load.options).report; });
      for (const auto& [name, source] : want.source) {
        if (want.faults.empty()) expected[name] = in_file.at(source);
      }
      const bool same = equal(model.values(world), expected);
      const std::lock_guard lock(mutex);
      CAPTURE(round, said, world.rank());
      CHECK(said.empty() == want.faults.empty());
      CHECK(same);
      if (!want.faults.empty()) return;
      loaded_rounds += world.rank();
      CHECK(report.loaded.size() == want.source.size());
      CHECK(report.missing == want.missing);
      CHECK(report.unexpected == want.unexpected);
      CHECK(report.skipped == want.skipped);
    });
  }
  CHECK(loaded_rounds > 20);
}

TEST_CASE("load_checkpoint: state follows its parameter, or is fresh") {
  const TempFolder folder;
  loopback::run(2, [&](World& world) {
    Model saved(world, {"old.a", "old.b", "old.c", "head.w", "gone.w"}, 5);
    saved.step(1);
    checkpoint::save_checkpoint(world, single_file(), folder / "state", saved.tensors, {saved.adam.get()}, {7, 42});
    Model model(world, {"new.c", "new.a", "new.b", "head.w", "fresh", "more"}, 50);
    model.step(3);
    const auto before = model.values(world);
    const auto moment_before = model.moment(0);
    const auto options = [](Missing missing, Missing unexpected) {
      return LoadOptions{.missing = missing, .unexpected = unexpected, .rename = {{"old.", "new."}}, .skip = {"head."}};
    };
    const auto load = [&](const LoadOptions& how) {
      return checkpoint::load_checkpoint(world, folder / "state", model.tensors, {model.adam.get()}, how);
    };
    using enum Missing;
    const auto lacks = said_by([&] { static_cast<void>(load(options(kRefused, kAllowed))); });
    const auto unknown = said_by([&] { static_cast<void>(load(options(kAllowed, kRefused))); });
    const bool unchanged = equal(model.values(world), before) && torch::equal(model.moment(0), moment_before);
    const auto [info, report] = load(options(kAllowed, kAllowed));
    const auto after = model.values(world), source = saved.values(world);
    const std::lock_guard lock(mutex);
    CHECK_THAT(lacks, Catch::Matchers::ContainsSubstring("it lacks 'model.fresh'"));
    CHECK_THAT(unknown, Catch::Matchers::ContainsSubstring("the model has no 'model.gone.w'"));
    CHECK(unchanged);
    CHECK(info->calls == 42);
    CHECK(report.loaded == Names{"new.c", "new.a", "new.b"});
    CHECK(report.missing == Names{"fresh", "more"});
    CHECK(report.unexpected == Names{"gone.w"});
    CHECK(report.skipped == Names{"head.w"});
    for (const auto* part : {"a", "b", "c"})
      CHECK(torch::equal(after.at(std::string("new.") + part), source.at(std::string("old.") + part)));
    for (const auto* name : {"head.w", "fresh", "more"}) CHECK(torch::equal(after.at(name), before.at(name)));
    for (const std::size_t i : {0U, 1U, 2U}) {
      if (i == 1 && world.rank() == 0) continue;  // is on the other rank
      REQUIRE(model.moment(i).defined());
      CHECK(model.moment(i).item<float>() == Approx(0.1));
    }
    for (const std::size_t i : {3U, 4U, 5U}) CHECK_FALSE(model.moment(i).defined());
  });
}

TEST_CASE("load_checkpoint: a file whose own names begin with 'model.'") {
  const TempFolder folder;
  const auto path = folder / "llama.safetensors";
  write_file(path, {{"model.a", torch::full({3}, 4.0F)}, {"model.b", torch::full({3}, 5.0F)}});
  const std::vector<std::pair<Names, LoadOptions>> ways{{{"a", "b"}, {}},
                                                        {{"model.a", "model.b"}, {}},
                                                        {{"a", "b"}, {.rename = {{"model.", ""}}}},
                                                        {{"net.a", "net.b"}, {.rename = {{"model.", "net."}}}},
                                                        {{"c", "b"}, {.rename = {{"a", "c"}}}},
                                                        {{"c", "model.b"}, {.rename = {{"model.a", "c"}}}}};
  for (const auto& [names, options] : ways) {
    loopback::run(2, [&, &names = names, &options = options](World& world) {
      Model model(world, names, 1);
      static_cast<void>(checkpoint::load_checkpoint(world, path, model.tensors, {}, options));
      const auto values = model.values(world);
      const std::lock_guard lock(mutex);
      CAPTURE(names);
      CHECK(torch::equal(values.at(names[0]), torch::full({3}, 4.0F)));
      CHECK(torch::equal(values.at(names[1]), torch::full({3}, 5.0F)));
    });
  }
}

TEST_CASE("write_weights: names of the module, cast, aliases in the metadata") {
  const TempFolder folder;
  const auto path = folder / "deep" / "er" / "net.safetensors";
  loopback::run(2, [&](World& world) {
    Model model(world, {"a", "b", "c", "table"}, 1.1);
    model.tensors[3].aliases = {"decoder", "head"};
    model.tensors.push_back({"count", torch::full({2}, 7, torch::kLong), {Rank(1)}});
    model.tensors.push_back({"exact", torch::full({1}, 0.1, torch::kDouble), {Rank(0), Rank(1)}});
    checkpoint::write_weights(world, path, model.tensors, std::nullopt);
    const auto values = model.values(world);
    if (world.rank() != 0) return;
    const std::lock_guard lock(mutex);
    const SafetensorsReader file(path);
    CHECK(file.entries().size() == 6);
    CHECK(file.metadata() ==
          std::map<std::string, std::string>{{"format", "pt"}, {"decoder", "table"}, {"head", "table"}});
    for (const auto& [name, value] : values) {
      CAPTURE(name);
      REQUIRE(file.find(name) != nullptr);
      const auto read = torch::empty_like(value);
      file.read(name, std::span(static_cast<std::byte*>(read.data_ptr()), read.nbytes()));
      CHECK(torch::equal(read, value));
    }
  });
  loopback::run(2, [&](World& world) {
    Model model(world, {"a", "b", "c"}, 1.1);
    model.tensors.push_back({"count", torch::full({2}, 7, torch::kLong), {Rank(1)}});
    checkpoint::write_weights(world, path, model.tensors, at::kHalf);
    const auto values = model.values(world);
    if (world.rank() != 0) return;
    const std::lock_guard lock(mutex);
    const SafetensorsReader file(path);
    CHECK(file.find("count")->dtype == DType::kI64);
    for (const auto* name : {"a", "b", "c"}) {
      CHECK(file.find(name)->dtype == DType::kF16);
      const auto read = torch::empty({3}, torch::kHalf);
      file.read(name, std::span(static_cast<std::byte*>(read.data_ptr()), read.nbytes()));
      CHECK(torch::equal(read, values.at(name).to(torch::kHalf)));
    }
  });
}

TEST_CASE("write_weights: what cannot be written is an error of all ranks") {
  const TempFolder folder;
  write_text_file(folder / "file", "kept");
  fs::create_directories(folder / "a folder");
  loopback::run(2, [&](World& world) {
    const Model model(world, {"a", "b", "c"}, 1);
    for (const auto& path : {folder / "file" / "net", folder / "a folder"}) {
      const auto said = said_by([&] { checkpoint::write_weights(world, path, model.tensors, std::nullopt); });
      const std::lock_guard lock(mutex);
      CHECK_THAT(said, Catch::Matchers::ContainsSubstring("cannot export weights to " + path.string()));
    }
    checkpoint::write_weights(world, folder / "net", model.tensors, at::kBFloat16);
  });
  CHECK(read_text_file(folder / "file") == "kept");
  CHECK(fs::exists(folder / "net"));
  for (const auto type : {at::kInt, at::kBool, at::kFloat8_e4m3fn, at::kComplexFloat})
    CHECK(checkpoint::no_type_of_weights(type) != nullptr);
  CHECK(checkpoint::no_type_of_weights(at::kBFloat16) == nullptr);
  CHECK(checkpoint::no_type_of_weights(std::nullopt) == nullptr);
}

}  // namespace fine_tuning_test
