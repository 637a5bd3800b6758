#include <torch/torch.h>

#include <catch_shim.hpp>
#include <temp_folder.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/safetensors.hpp>
#include <autopar/runtime/loopback.hpp>

#include "placed_forms.hpp"
#include "torch/calls/late_failure.hpp"
#include "torch/checkpoint/checkpoint_folder.hpp"
#include "torch/checkpoint/pieces.hpp"
#include "torch/checkpoint/saver.hpp"
#include "torch/checkpoint/stored_checkpoint.hpp"
#include "torch/checkpoint/streamed_copy.hpp"
#include "torch/ranks/ranks.hpp"

// Checkpoints of several files: who writes what, what is read back under other plans, and what ended saves leave.
namespace sharded_test {

using namespace placed_forms;
namespace fs = std::filesystem;

std::mutex mutex;

/// Each element of a tensor of so many is in the pieces once.
void check_covers(const std::vector<checkpoint::Piece>& pieces, std::int64_t elements) {
  auto count = torch::zeros({elements}, torch::kLong);
  for (const auto& piece : pieces) {
    const auto own = piece.slices.of(count);
    piece.slices.put(own + 1, count);
  }
  CHECK((count == 1).all().item<bool>());
}

TEST_CASE("pieces_of: each element once, by a holder", "[files]") {
  for (const auto& form : forms()) {
    CAPTURE(form.sizes, form.shards, form.replicas, form.zero);
    const nets::CountedWeight module(form.sizes);
    const std::vector tensors{placed(form, module, Rank(0))};
    const auto items = checkpoint::model_items(tensors);
    for (const auto format : {single_file(), sharded()}) {
      const auto pieces = checkpoint::pieces_of(items, format);
      check_covers(pieces, module.weight.numel());
      for (const auto& piece : pieces) {
        if (format == single_file()) CHECK(piece.writer == Rank(0));
        CHECK(std::ranges::count(tensors[0].holders, piece.writer) == 1);
      }
    }
  }
}

TEST_CASE("pieces_of: replicas share the work", "[files]") {
  std::vector<checkpoint::ShardedTensorMetadata> tensors;
  std::vector<Rank> holders{Rank(0), Rank(1), Rank(2), Rank(3)};
  for (int i = 0; i < 40; ++i) tensors.push_back({"t" + std::to_string(i), torch::zeros({100 + 7 * i}), holders});
  std::map<Rank, std::int64_t> bytes;
  for (const auto& piece : checkpoint::pieces_of(checkpoint::model_items(tensors), sharded()))
    bytes[piece.writer] += piece.slices.size();
  REQUIRE(bytes.size() == 4);
  const auto [least, most] = std::ranges::minmax_element(bytes, {}, [](const auto& each) { return each.second; });
  CHECK(most->second - least->second <= 100 + 7 * 39);
}

/// A model of one weight under each of two plans; the others' values are wrong before.
void check_round_trip(const fs::path& folder, const Form& from, const Form& to, CheckpointFormat format) {
  CAPTURE(from.sizes, from.shards, from.replicas, from.zero, to.shards, to.replicas, to.zero);
  const nets::CountedWeight module(from.sizes);
  loopback::run(from.shards * from.replicas, [&](World& world) {
    checkpoint::save_checkpoint(world, format, folder, {placed(from, module, world.rank_id())}, {}, {7, 42});
  });
  loopback::run(to.shards * to.replicas, [&](World& world) {
    auto mine = placed(to, module, world.rank_id());
    const auto expected = mine.handle.clone();
    mine.handle = mine.handle.clone().fill_(-1);
    const auto info = checkpoint::load_checkpoint(world, folder, {mine}, {}).info;
    const std::lock_guard lock(mutex);
    CHECK(info->calls == 42);
    CHECK(torch::equal(mine.handle, expected));
  });
}

TEST_CASE("sharded checkpoints: any placement to any other", "[files]") {
  const TempFolder folder;
  const auto all = forms();
  std::uint64_t state = 5;
  int checked = 0;
  for (const auto& from : all) {
    for (const auto& to : all) {
      if (from.sizes != to.sizes) continue;
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      if ((state >> 33) % 4 != 0) continue;  // a quarter of them
      check_round_trip(folder / "state", from, to, sharded());
      ++checked;
    }
  }
  CHECK(checked > 50);
  for (const auto& form : all) check_round_trip(folder / "single", form, {form.sizes}, single_file());
}

/// Two tensors of this value, one replicated and one in shards, on two ranks.
std::vector<checkpoint::ShardedTensorMetadata> tensors_of(const World& world, double value) {
  const std::vector<parameters::ShardSlices> shards{Interval{0, 3}, Interval{3, 8}};
  const auto mine = shards[world.rank_id().index()].size();
  return {{"both", torch::full({4}, value), {Rank(0), Rank(1)}},
          {"halves", torch::full({mine}, value), {Rank(0), Rank(1)}, {2, 4}, shards, {"tied.name"}}};
}

void save(const fs::path& folder, double value, CheckpointFormat format = sharded()) {
  loopback::run(2, [&](World& world) {
    checkpoint::save_checkpoint(world, format, folder, tensors_of(world, value), {}, {7, static_cast<int>(value)});
  });
}

/// The value of all elements, on both ranks. @throws CheckpointError
double loaded(const fs::path& folder) {
  std::set<double> values;
  std::string error;
  loopback::run(2, [&](World& world) {
    const auto tensors = tensors_of(world, -1);
    try {
      static_cast<void>(checkpoint::load_checkpoint(world, folder, tensors, {}));
    } catch (const CheckpointError& refused) {
      const std::lock_guard lock(mutex);
      error = refused.what();
      return;
    }
    const std::lock_guard lock(mutex);
    for (const auto& tensor : tensors) {
      values.insert(tensor.handle.min().item<double>());
      values.insert(tensor.handle.max().item<double>());
    }
  });
  if (!error.empty()) throw CheckpointError(error);
  REQUIRE(values.size() == 1);
  return *values.begin();
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

TEST_CASE("checkpoint folder: a new generation replaces the old", "[files]") {
  const TempFolder temp;
  const auto folder = temp / "state";
  save(folder, 1);
  CHECK(names_in(folder) ==
        std::set<std::string>{"index.json", "model-0000-g1.safetensors", "model-0001-g1.safetensors"});
  save(folder, 2);
  CHECK(names_in(folder) ==
        std::set<std::string>{"index.json", "model-0000-g2.safetensors", "model-0001-g2.safetensors"});
  CHECK(loaded(folder) == 2);
  write_text_file(folder / "notes.txt", "mine");
  write_text_file(folder / "model-best.safetensors", "mine");
  save(folder, 3, single_file());
  CHECK(names_in(folder) ==
        std::set<std::string>{"index.json", "model.safetensors", "model-best.safetensors", "notes.txt"});
  CHECK(loaded(folder) == 3);
  save(folder, 4);
  CHECK(names_in(folder).count("model.safetensors") == 0);
  CHECK(loaded(folder) == 4);
}

/// `to` as it is after the files of `from` have been written there, in this order and up to one of them.
std::vector<std::pair<std::string, fs::path>> files_of(const fs::path& from) {
  std::vector<std::pair<std::string, fs::path>> files;
  for (const auto& name : names_in(from)) files.emplace_back(name, from / name);
  return files;
}

TEST_CASE("checkpoint folder: a save that ends anywhere leaves the one before", "[files]") {
  const TempFolder temp;
  for (const auto format : {single_file(), sharded()}) {
    const auto before = temp / "before", after = temp / "after";
    fs::remove_all(before);
    save(before, 1, format);
    fs::remove_all(after);
    fs::copy(before, after);
    save(after, 2, format);
    const auto settled = [&](const std::string& name) {
      return checkpoint::path_aside("", name, 2).string();  // as it is before the index names it
    };
    const auto at = [&](const std::string& step) {
      const auto folder = temp / ("at " + step);
      fs::remove_all(folder);
      fs::copy(before, folder);
      return folder;
    };
    const auto data_only = at("data");
    for (const auto& [name, path] : files_of(after)) {
      if (name != "index.json") fs::copy(path, data_only / settled(name));
    }
    write_text_file(data_only / (settled("model.safetensors") + ".partial-a1b2c3"), "half");
    CHECK(loaded(data_only) == 1);
    CHECK(names_in(data_only) == names_in(before));  // a load removes orphans
    const auto indexed = at("index");
    for (const auto& [name, path] : files_of(after)) {
      const auto to = name == "index.json" ? indexed / name : indexed / settled(name);
      fs::copy(path, to, fs::copy_options::overwrite_existing);
    }
    CHECK(loaded(indexed) == 2);
    CHECK(names_in(indexed) == names_in(after));
    const auto torn = at("torn index");
    for (const auto& [name, path] : files_of(after)) {
      if (name != "index.json") fs::copy(path, torn / settled(name));
    }
    auto text = read_text_file(after / "index.json");
    write_text_file(torn / "index.json", text.substr(0, text.size() / 2));
    CHECK_THROWS_AS(loaded(torn), CheckpointError);
    CHECK(names_in(torn).size() > names_in(before).size());  // nothing is removed by an index that nobody can read
  }
}

std::string refusal_of_save(const fs::path& folder, CheckpointFormat format) {
  std::string message;
  loopback::run(2, [&](World& world) {
    try {
      checkpoint::save_checkpoint(world, format, folder, tensors_of(world, 2), {}, {7, 2});
    } catch (const CheckpointError& refused) {
      const std::lock_guard lock(mutex);
      message = refused.what();
    }
  });
  return message;
}

TEST_CASE("checkpoint folder: files of others are not replaced", "[files]") {
  const TempFolder folder;
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    const auto at = folder / ("with " + std::string(name));
    fs::create_directories(at);
    write_text_file(at / name, "of others");
    const bool is_replaced = std::string(name) == "model.safetensors";
    const auto message = refusal_of_save(at, single_file());
    CAPTURE(message);
    CHECK(message.empty() != is_replaced);  // these tensors have no optimizer
    if (is_replaced) CHECK(message.find((at / name).string() + " was not written by autopar") != std::string::npos);
    save(at, 1);  // sharded, as the message says
    CHECK(read_text_file(at / name) == "of others");
    CHECK(loaded(at) == 1);
  }
  {  // autopar's own, which no index names
    const auto at = folder / "state";
    save(at, 1, single_file());
    fs::remove(at / "index.json");
    CHECK(refusal_of_save(at, single_file()).empty());
    CHECK(loaded(at) == 2);
  }
  const auto at = folder / "with index";
  fs::create_directories(at);
  write_text_file(at / "index.json", R"({"of": "others"})");
  for (const auto format : {single_file(), sharded()}) {
    const auto message = refusal_of_save(at, format);
    CAPTURE(message);
    CHECK(message.find("a save does not replace what it cannot read: remove this file") != std::string::npos);
  }
  CHECK(read_text_file(at / "index.json") == R"({"of": "others"})");
  fs::remove(at / "index.json");
  save(at, 1);
  CHECK(loaded(at) == 1);
}

TEST_CASE("sharded checkpoints: damage anywhere is refused", "[files]") {
  const TempFolder temp;
  save(temp / "good", 1);
  std::uint64_t state = 3;
  for (const auto& [name, path] : files_of(temp / "good")) {
    const auto good = read_text_file(path);
    for (int round = 0; round < 25; ++round) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      auto text = good;
      const auto place = (state >> 20) % text.size();
      if (round % 5 == 0)
        text.resize(place);
      else
        text[place] = static_cast<char>(text[place] ^ (1 << (state >> 60) % 8));
      const auto bad = temp / "bad";
      fs::remove_all(bad);
      fs::copy(temp / "good", bad);
      write_text_file(bad / name, text);
      CAPTURE(name, place, round);
      CHECK_THROWS_AS(loaded(bad), CheckpointError);
    }
  }
  fs::remove(temp / "good" / "model-0001-g1.safetensors");
  CHECK_THROWS_AS(loaded(temp / "good"), CheckpointError);
}

TEST_CASE("single file: names of the module, aliases in the metadata", "[files]") {
  const TempFolder temp;
  save(temp / "state", 1, single_file());
  const SafetensorsReader reader(temp / "state" / "model.safetensors");
  REQUIRE(reader.find("both") != nullptr);
  REQUIRE(reader.find("halves") != nullptr);
  CHECK(reader.find("halves")->shape == std::vector<std::int64_t>{2, 4});
  CHECK(reader.entries().size() == 2);
  CHECK(reader.metadata().at("tied.name") == "halves");
}

TEST_CASE("streamed_copy: all bytes, at any place", "[files]") {
  torch::manual_seed(6);
  for (const std::int64_t size : {0, 1, 15, 63, 64, 65, 4097, (3 << 20) + 7, 9 << 20}) {
    for (const std::int64_t shift : {0, 1, 8, 16}) {
      const auto from = torch::randint(256, {size + shift}, torch::kByte);
      auto to = torch::full({size + 1}, 77, torch::kByte);
      const auto bytes = static_cast<std::size_t>(size);
      checkpoint::streamed_copy(checkpoint::memory_of(from).subspan(static_cast<std::size_t>(shift)),
                                checkpoint::memory_of(to).first(bytes));
      CAPTURE(size, shift);
      CHECK(torch::equal(to.narrow(0, 0, size), from.narrow(0, shift, size)));
      CHECK(to[size].item<int>() == 77);
    }
  }
}

TEST_CASE("Saver: a save in the background has what was there at the call", "[files]") {
  const TempFolder temp;
  for (const auto format : {single_file(), sharded()}) {
    const auto folder = temp / (format == sharded() ? "sharded" : "single");
    std::set<double> values;
    loopback::run(2, [&](World& world) {
      constexpr std::int64_t kMany = 4 << 20;
      const std::vector<parameters::ShardSlices> shards{Interval{0, kMany / 2}, Interval{kMany / 2, kMany}};
      // Of every form, and so large that writing takes longer than what the program does meanwhile.
      const std::vector<checkpoint::ShardedTensorMetadata> tensors{
          {"both", torch::full({kMany}, 1.0), {Rank(0), Rank(1)}},
          {"halves", torch::full({kMany / 2}, 1.0), {Rank(0), Rank(1)}, {kMany}, shards},
          {"by columns", torch::full({64, kMany / 64}, 1.0).t(), {Rank(0), Rank(1)}},
          {"number", torch::full({}, 1.0), {Rank(1)}},
          {"nothing", torch::empty({0, 3}), {Rank(0)}},
          {"half", torch::full({kMany}, 1.0, torch::kBFloat16), {Rank(1)}}};
      ranks::WorldRanks ranks(world);
      calls::LateFailure failure;
      checkpoint::Saver saver(ranks, failure);
      for (int round = 0; round < 2; ++round) {  // the second reuses the memory of the first
        for (const auto& tensor : tensors) tensor.handle.detach().fill_(round);
        saver.save(folder, {format, false}, tensors, {}, {7, round}, {});
        for (const auto& tensor : tensors) tensor.handle.detach().fill_(-1);
      }
      saver.wait();
      const auto info = checkpoint::load_checkpoint(world, folder, tensors, {}).info;
      const std::lock_guard lock(mutex);
      CHECK(info->calls == 1);
      for (const auto& tensor : tensors) {
        if (std::ranges::count(tensor.holders, world.rank_id()) == 0 || tensor.handle.numel() == 0) continue;
        values.insert(tensor.handle.min().item<double>());
        values.insert(tensor.handle.max().item<double>());
      }
    });
    CHECK(values == std::set<double>{1.0});
  }
}

TEST_CASE("a load beside saves of another job finds a whole checkpoint", "[files]") {
  const TempFolder temp;
  for (const auto format : {single_file(), sharded()}) {
    const auto folder = temp / (format == sharded() ? "sharded" : "single");
    save(folder, 1, format);
    std::jthread saves([&](const std::stop_token& end) {
      loopback::run(2, [&](World& world) {
        ranks::WorldRanks ranks(world);
        calls::LateFailure failure;
        checkpoint::Saver saver(ranks, failure);
        for (int value = 2;; ++value) {
          std::vector<std::int64_t> goes_on{end.stop_requested() ? 0 : 1};
          world.all_reduce_sum(std::span(goes_on), "end of the test");
          if (goes_on.front() < 2) return;
          saver.save(folder, {format, true}, tensors_of(world, value), {}, {7, value}, {});
        }
      });
    });
    double last = 1;
    for (int k = 0; k < 20; ++k) {
      for (int opened = 0; opened < 100; ++opened) CHECK_NOTHROW(checkpoint::StoredCheckpoint(folder));
      const double now = loaded(folder);
      CHECK(now >= last);
      last = now;
    }
    CHECK(last > 1);
  }
}

}  // namespace sharded_test
