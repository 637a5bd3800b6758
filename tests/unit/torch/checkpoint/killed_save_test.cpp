#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <catch_shim.hpp>
#include <temp_folder.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <autopar/core/error.hpp>
#include <autopar/io/folder_lock.hpp>
#include <autopar/runtime/loopback.hpp>

#include "torch/calls/late_failure.hpp"
#include "torch/checkpoint/saver.hpp"
#include "torch/ranks/ranks.hpp"

// kill -9 at any instant of a save loses nothing older.
namespace killed_save_test {

using namespace autopar;
namespace fs = std::filesystem;

constexpr int kRanks = 2;
constexpr std::int64_t kElements = 1 << 16;

std::vector<checkpoint::ShardedTensorMetadata> tensors_of(const World& world, double value) {
  const std::vector<parameters::ShardSlices> shards{Interval{0, kElements / 4}, Interval{kElements / 4, kElements}};
  const auto mine = shards[world.rank_id().index()].size();
  return {{"both", torch::full({kElements}, value), {Rank(0), Rank(1)}},
          {"halves", torch::full({mine}, value), {Rank(0), Rank(1)}, {kElements}, shards}};
}

/// Saves values from `first` on, for ever, and tells each that is there.
[[noreturn]] void save_for_ever(const fs::path& folder, const SaveOptions& options, int first, int told) {
  at::set_num_threads(1);
  loopback::run(kRanks, [&](World& world) {
    ranks::WorldRanks ranks(world);
    calls::LateFailure failure;
    checkpoint::Saver saver(ranks, failure);
    for (int value = first;; ++value) {
      saver.save(folder, options, tensors_of(world, value), {}, {7, value}, {});
      saver.wait();
      if (world.rank() == 0 && ::write(told, &value, sizeof value) != sizeof value) ::_exit(1);
    }
  });
  ::_exit(1);
}

/// Kills the process that saves after so long. @return the last value that it has told, or `first` - 1
int killed_after(std::chrono::microseconds time, const fs::path& folder, const SaveOptions& options, int first) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) save_for_ever(folder, options, first, ends[1]);
  ::close(ends[1]);
  std::this_thread::sleep_for(time);
  REQUIRE(::kill(child, SIGKILL) == 0);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  int last = first - 1;
  for (int value = 0; ::read(ends[0], &value, sizeof value) == sizeof value;) last = value;
  ::close(ends[0]);
  return last;
}

/// The value that all elements have.
int loaded(const fs::path& folder) {
  std::set<double> values;
  std::mutex mutex;
  std::int64_t calls = 0;
  loopback::run(kRanks, [&](World& world) {
    const auto tensors = tensors_of(world, -1);
    const auto info = checkpoint::load_checkpoint(world, folder, tensors, {}).info;
    const std::lock_guard lock(mutex);
    calls = info->calls;
    for (const auto& tensor : tensors) {
      values.insert(tensor.handle.min().item<double>());
      values.insert(tensor.handle.max().item<double>());
    }
  });
  REQUIRE(values.size() == 1);
  CHECK(*values.begin() == static_cast<double>(calls));
  return static_cast<int>(calls);
}

void check_kills(int times) {
  const TempFolder temp;
  std::uint64_t state = 11;
  const std::vector<SaveOptions> all{
      {sharded(), true}, {sharded(), false}, {single_file(), true}, {single_file(), false}};
  for (std::size_t way = 0; way < all.size(); ++way) {
    const auto folder = temp / std::to_string(way);
    const auto begin = std::chrono::steady_clock::now();
    loopback::run(kRanks, [&](World& world) {
      checkpoint::save_checkpoint(world, *all[way].format, folder, tensors_of(world, 1), {}, {7, 1});
    });
    const auto of_save =
        std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin);
    const auto longest = static_cast<std::uint64_t>(std::max<std::int64_t>(40000, 10 * of_save.count()));
    int newest = 1;
    for (int k = 0; k < times; ++k) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      const std::chrono::microseconds time(2000 + (state >> 33) % longest);
      const int told = killed_after(time, folder, all[way], newest + 1);
      const int there = loaded(folder);
      CAPTURE(way, k, time.count(), newest, told, there);
      CHECK(there >= told);
      CHECK(there <= told + 1);
      newest = std::max(newest, there);
      std::set<std::string> left;
      for (const auto& entry : fs::directory_iterator(folder)) left.insert(entry.path().filename().string());
      left.erase(kLockFile);    // of a process that is gone: nothing to the next save
      CHECK(left.size() <= 3);  // an index and data files of one generation
    }
    CHECK(newest > 1);
  }
}

TEST_CASE("kill -9 within saves loses nothing older", "[files]") { check_kills(12); }
TEST_CASE("kill -9 within saves loses nothing older: at 200 instants", "[.nightly][files]") { check_kills(50); }

}  // namespace killed_save_test
