#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include <sys/resource.h>

#include <torch/torch.h>
#include <autopar/core/error.hpp>
#include <autopar/io/folder_lock.hpp>
#include <autopar/runtime/loopback.hpp>

#include <catch_shim.hpp>
#include <temp_folder.hpp>

#include "placed_forms.hpp"
#include "torch/calls/late_failure.hpp"
#include "torch/checkpoint/saver.hpp"
#include "torch/ranks/ranks.hpp"

// What a Saver writes while the program goes on.
namespace background_save_test {

using namespace placed_forms;
namespace fs = std::filesystem;
using Tensors = std::vector<checkpoint::ShardedTensorMetadata>;

std::mutex mutex;

/// The saves of one model on one rank.
struct RankSaver {
  explicit RankSaver(World& world) : ranks(world) {}
  void begin(const fs::path& folder, const Tensors& tensors, CheckpointFormat format = sharded()) {
    saver.save(folder, {.format = format, .wait = false}, tensors, {}, {7, 42}, {});
  }
  ranks::WorldRanks ranks;
  calls::LateFailure failure;
  checkpoint::Saver saver{ranks, failure};
};

/// Saves in the background, writes other values at once, and loads.
void check_snapshot(World& world, const fs::path& folder, const Tensors& tensors, CheckpointFormat format) {
  std::vector<at::Tensor> expected;
  for (const auto& tensor : tensors) expected.push_back(tensor.handle.clone());
  const auto spoil = [&] {
    for (const auto& tensor : tensors) tensor.handle.zero_();
  };
  RankSaver rank(world);
  rank.begin(folder, tensors, format);
  spoil();
  rank.saver.wait();
  static_cast<void>(checkpoint::load_checkpoint(world, folder, tensors, {}));
  const std::lock_guard lock(mutex);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    CAPTURE(tensors[i].name);
    if (std::ranges::find(tensors[i].holders, world.rank_id()) == tensors[i].holders.end()) continue;
    CHECK(torch::equal(tensors[i].handle, expected[i]));
  }
}

TEST_CASE("Saver: a background save has every placement as it was", "[files]") {
  const TempFolder folder;
  for (const auto format : {single_file(), sharded()}) {
    for (const auto& form : forms()) {
      CAPTURE(form.sizes, form.shards, form.replicas, form.zero, format == sharded());
      const nets::CountedWeight module(form.sizes);
      loopback::run(form.shards * form.replicas, [&](World& world) {
        auto mine = placed(form, module, world.rank_id());
        mine.handle = mine.handle.clone();
        check_snapshot(world, folder / "state", {mine}, format);
      });
    }
  }
}

TEST_CASE("Saver: a background save has every type and memory format as it was", "[files]") {
  const TempFolder folder;
  const std::vector<Rank> both{Rank(0), Rank(1)};
  const auto channels = torch::arange(96, torch::kFloat).reshape({4, 6, 2, 2});
  for (const auto format : {single_file(), sharded()}) {
    CAPTURE(format == sharded());
    loopback::run(2, [&](World& world) {
      const auto rank = world.rank();
      const auto last = [](const at::Tensor& tensor) { return tensor.clone(at::MemoryFormat::ChannelsLast); };
      const std::vector<parameters::ShardSlices> halves{Interval{0, 48}, Interval{48, 96}};
      Tensors tensors{{"last", last(channels), both},
                      {"last in slices", last(channels.narrow(0, 2 * rank, 2)), both, {4, 6, 2, 2}, halves},
                      {"transposed", torch::arange(6, torch::kFloat).reshape({2, 3}).t(), both},
                      {"on rank 1", torch::full({3}, 0.5), {Rank(1)}},
                      {"number", torch::tensor(3.5), both},
                      {"count", torch::tensor(std::int64_t{1} << 60), both},
                      {"empty", torch::empty({0, 3}), both}};
      for (const auto type : {at::kBFloat16, at::kHalf, at::kDouble, at::kByte, at::kShort, at::kLong})
        tensors.push_back({at::toString(type), torch::arange(5).to(type), both});
      tensors.push_back({"bool", torch::tensor({true, false, true}), both});
      check_snapshot(world, folder / "state", tensors, format);
    });
  }
}

TEST_CASE("Saver: two models of a job do not write to one folder at once", "[files]") {
  const TempFolder folder;
  loopback::run(2, [&](World& world) {
    const auto whole = [](double value) { return Tensors{{"w", torch::full({1 << 20}, value), {Rank(0), Rank(1)}}}; };
    const auto first = whole(1), second = whole(2), read = whole(3);
    RankSaver one(world), other(world);
    one.begin(folder / "state", first);
    std::string message;
    try {
      other.begin(folder / "." / "state", second);
    } catch (const CheckpointError& refused) {
      message = refused.what();
    }
    one.saver.wait();
    static_cast<void>(checkpoint::load_checkpoint(world, folder / "state", read, {}));
    const auto loaded = read[0].handle[0].item<double>();
    other.begin(folder / "state", second);  // as the message says
    other.saver.wait();
    static_cast<void>(checkpoint::load_checkpoint(world, folder / "state", read, {}));
    const std::lock_guard lock(mutex);
    CAPTURE(message);
    CHECK(message.find("another model of this job is saving to this folder") != std::string::npos);
    CHECK(loaded == 1);
    CHECK(torch::equal(read[0].handle, second[0].handle));
  });
}

TEST_CASE("Saver: a folder that was removed is locked anew", "[files]") {
  const TempFolder folder;
  loopback::run(1, [&](World& world) {
    RankSaver rank(world);
    const Tensors tensors{{"w", torch::ones({4}), {Rank(0)}}};
    for (int k = 0; k < 2; ++k) {
      rank.begin(folder / "state", tensors);
      rank.saver.wait();
      const bool is_locked = FolderLock::is_held_here(folder / "state");
      fs::remove_all(folder / "state");
      const std::lock_guard lock(mutex);
      CHECK(is_locked);
    }
  });
}

TEST_CASE("LateFailure: what fails on several ranks is thrown once", "[files]") {
  loopback::run(2, [&](World& world) {
    ranks::WorldRanks ranks(world);
    calls::LateFailure failure;
    const auto thrown = [&](int failing) {
      if (world.rank() == failing) failure.put("fails");
      try {
        calls::require_no_late_failure(ranks, failure);
        return std::string();
      } catch (const CheckpointError& error) {
        return std::string(error.what());
      }
    };
    const auto first = thrown(0), second = thrown(1);
    failure.begin();
    const auto next = thrown(1);
    const std::lock_guard lock(mutex);
    CHECK(first == "rank 0 fails");
    CHECK(second.empty());
    CHECK(next == "rank 1 fails");
  });
}

TEST_CASE("Saver: a failure that all have thrown does not hold up the end", "[files]") {
  const TempFolder folder;
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{1 << 14, before.rlim_max};  // rank 1's file is larger
  ::setrlimit(RLIMIT_FSIZE, &small);
  const auto begin = std::chrono::steady_clock::now();
  loopback::run(2, [&](World& world) {
    RankSaver rank(world);
    rank.begin(folder / "state",
               {{"small", torch::ones({4}), {Rank(0)}}, {"large", torch::ones({1 << 14}), {Rank(1)}}});
    std::string message;
    while (message.empty()) {
      try {
        calls::require_no_late_failure(rank.ranks, rank.failure);
      } catch (const CheckpointError& thrown) {
        message = thrown.what();
      }
    }
    const std::lock_guard lock(mutex);
    CHECK(message.find("rank 1 cannot save " + (folder / "state").string()) != std::string::npos);
  });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

}  // namespace background_save_test
