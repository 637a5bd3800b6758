#include <autopar/training/snapshots.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include <autopar/core/error.hpp>
#include <autopar/io/checkpoint_index.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/folder_lock.hpp>
#include <autopar/io/safetensors.hpp>
#include <autopar/io/snapshot_folder.hpp>
#include <autopar/runtime/loopback.hpp>

#include "catch_shim.hpp"
#include "temp_folder.hpp"
#include "told.hpp"
#include "training/host_groups.hpp"

// Ranks are threads, and hosts are folders.
namespace snapshots_test {

namespace ap = autopar;
namespace fs = std::filesystem;
namespace training = ap::training;
using training::HostGroups;
using training::Place;
using training::SnapshotPlace;
using training::Snapshots;

std::mutex mutex;

/// Which host each rank is on.
using Hosts = std::vector<int>;

SnapshotPlace place_on(const TempFolder& memory, int host) {
  const auto shared = memory / ("host" + std::to_string(host));
  fs::create_directories(shared);
  return {shared / "autopar-7-run-1", "run"};
}

fs::path folder_of(const TempFolder& memory, int host, const std::string& step) {
  return memory / ("host" + std::to_string(host)) / "autopar-7-run-1/run" / step;
}

std::string file_of(int rank) { return "model-000" + std::to_string(rank) + "-g1.safetensors"; }

/// What a rank's file of a step has.
std::vector<double> data_of(int rank, std::int64_t step) {
  return {static_cast<double>(rank), static_cast<double>(step), 0.5, 1.5};
}

/// As a model writes its parts.
ap::SavedParts write_parts(ap::World& world, const std::string& folder, std::int64_t step) {
  const auto data = data_of(world.rank(), step);
  const ap::TensorEntry entry{"w" + std::to_string(world.rank()), ap::DType::kF64, {4}};
  ap::SafetensorsWriter writer(fs::path(folder) / file_of(world.rank()), {entry});
  writer.write(std::as_bytes(std::span(data)));
  writer.commit();
  const auto mine = std::to_string(writer.size().value()) + ' ' + std::to_string(writer.header_checksum());
  ap::CheckpointIndex index;
  index.generation = 1;
  ap::SavedParts parts;
  for (const auto& told : training::told_by_all(world, mine, "test")) {
    std::istringstream in(told);
    std::int64_t bytes = 0;
    std::uint64_t checksum = 0;
    in >> bytes >> checksum;
    const auto rank = static_cast<int>(index.files.size());
    index.files.push_back({file_of(rank), ap::Bytes(bytes), checksum});
    ap::CheckpointTensor tensor{{"w" + std::to_string(rank), ap::DType::kF64, {4}}};
    tensor.parts.push_back({rank, ap::ElementSlices::whole(4)});
    index.model.push_back(std::move(tensor));
    parts.files.push_back({file_of(rank)});
  }
  parts.index = to_json(index);
  return parts;
}

/// The log of rank 0.
struct Heard {
  std::vector<std::string> lines;
  void listen(ap::World& world) {
    if (world.rank() != 0) return;
    world.log().set_writer([this](const std::string& line) { lines.push_back(line); });
  }
  [[nodiscard]] bool has(const std::string& text) const {
    return std::ranges::any_of(lines, [&](const auto& line) { return line.find(text) != std::string::npos; });
  }
};

/// A start that makes snapshots of these steps, and is killed.
void start(const TempFolder& memory, const Hosts& hosts, const std::vector<std::int64_t>& steps,
           Heard* told = nullptr) {
  ap::loopback::run(static_cast<int>(hosts.size()), [&](ap::World& world) {
    if (told != nullptr) told->listen(world);
    Snapshots snapshots(world, 10, place_on(memory, hosts[world.rank_id().index()]));
    for (const auto step : steps) {
      snapshots.save({.step = step, .epoch = 3}, [&](const std::string& folder, const ap::AcceptParts& accept) {
        return accept(ap::Bytes(32)) ? write_parts(world, folder, step) : ap::SavedParts();
      });
    }
  });
}

/// What the next start finds, and whether rank 0's host has it all.
struct Next {
  std::optional<std::int64_t> step;
  bool is_whole = true;
};
Next next_start(const TempFolder& memory, const Hosts& hosts, int writers, Heard* told = nullptr) {
  Next next;
  ap::loopback::run(static_cast<int>(hosts.size()), [&](ap::World& world) {
    if (told != nullptr) told->listen(world);
    const Snapshots snapshots(world, 10, place_on(memory, hosts[world.rank_id().index()]));
    const auto& newest = snapshots.newest();
    if (world.rank() != 0 || !newest) return;
    next.step = newest->step;
    if (newest->epoch != 3) throw std::logic_error("another place");
    for (int rank = 0; rank < writers; ++rank) {
      const auto expected = data_of(rank, newest->step);
      std::vector<double> read(4);
      const ap::SafetensorsReader file(snapshots.newest_folder() / file_of(rank));
      file.read("w" + std::to_string(rank), std::as_writable_bytes(std::span(read)));
      next.is_whole = next.is_whole && read == expected;
    }
  });
  return next;
}

void overwrite(const fs::path& file, std::size_t at, char by) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(static_cast<std::streamoff>(at));
  stream.put(by);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

TEST_CASE("Snapshots: the two newest are there, for their owner alone") {
  const TempFolder memory;
  start(memory, {0, 0}, {10, 20, 30});
  const auto run = folder_of(memory, 0, "");
  CHECK_FALSE(fs::exists(run / "step-00000010"));
  CHECK(names_in(run / "step-00000020") == names_in(run / "step-00000030"));
  CHECK(names_in(run / "step-00000030") == std::vector<std::string>{"index.json", file_of(0), file_of(1), "snapshot"});
  for (const auto& entry : fs::recursive_directory_iterator(run)) {
    struct stat status {};
    REQUIRE(::lstat(entry.path().c_str(), &status) == 0);
    CAPTURE(entry.path().string());
    if (entry.path().filename() == ap::kLockFile) continue;
    CHECK((status.st_mode & 0777) == (entry.is_directory() ? 0700 : 0600));
  }
  CHECK(ap::owner_of_snapshots(run.parent_path().parent_path()) == ap::SnapshotOwner::kThere);
}

TEST_CASE("Snapshots: the next start finds the newest, whatever its number of ranks") {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const TempFolder memory;
    CHECK_FALSE(next_start(memory, {0, 0}, 2).step);
    start(memory, {0, 0}, {10, 20});
    const auto next = next_start(memory, Hosts(static_cast<std::size_t>(ranks), 0), 2);
    CHECK(next.step == 20);
    CHECK(next.is_whole);
  }
}

TEST_CASE("Snapshots: what one host has lost, another one has") {
  for (const Hosts& hosts : {Hosts{0, 1}, Hosts{0, 0, 1, 1}, Hosts{0, 1, 2}, Hosts{0, 0, 1, 2, 2}, Hosts{0, 1, 0, 1}}) {
    const int count = *std::ranges::max_element(hosts) + 1, ranks = static_cast<int>(hosts.size());
    for (int lost = 0; lost < count; ++lost) {
      CAPTURE(hosts, lost);
      const TempFolder memory;
      start(memory, hosts, {10, 20});
      fs::remove_all(folder_of(memory, lost, "").parent_path().parent_path());
      const auto next = next_start(memory, hosts, ranks);
      CHECK(next.step == 20);
      CHECK(next.is_whole);
    }
  }
}

TEST_CASE("Snapshots: what a host of two has lost, and its copies, is on no host of three") {
  const TempFolder memory;
  const Hosts hosts{0, 1, 2};
  start(memory, hosts, {10, 20});
  fs::remove_all(folder_of(memory, 1, "step-00000020"));
  fs::remove_all(folder_of(memory, 2, "step-00000020"));
  Heard told;
  CHECK(next_start(memory, hosts, 3, &told).step == 10);
  CHECK(told.has("the snapshot of step 20 is left out: no host has " + file_of(1) + " undamaged"));
}

TEST_CASE("Snapshots: a damaged file is taken from the other host") {
  const TempFolder memory;
  const Hosts hosts{0, 1};
  start(memory, hosts, {10, 20});
  const auto size = fs::file_size(folder_of(memory, 0, "step-00000020") / file_of(1));
  overwrite(folder_of(memory, 0, "step-00000020") / file_of(1), size - 1, 'x');
  overwrite(folder_of(memory, 1, "step-00000020") / file_of(0), size - 2, 'x');
  const auto next = next_start(memory, hosts, 2);
  CHECK(next.step == 20);
  CHECK(next.is_whole);
  CHECK_FALSE(fs::exists(folder_of(memory, 1, "step-00000020") / file_of(0)));  // so that nobody reads it there
}

/// Spoils the newest of two snapshots.
using Spoil = std::function<void(const fs::path& snapshot)>;

TEST_CASE("Snapshots: a damaged, half or foreign one is left out, and the one before is taken") {
  const auto cut = [](const fs::path& file) { fs::resize_file(file, fs::file_size(file) - 1); };
  const std::vector<std::pair<std::string, Spoil>> ways{
      {"data changed", [](const fs::path& at) { overwrite(at / file_of(1), fs::file_size(at / file_of(1)) - 1, 'x'); }},
      {"data cut", [&](const fs::path& at) { cut(at / file_of(1)); }},
      {"data missing", [](const fs::path& at) { fs::remove(at / file_of(0)); }},
      {"header changed", [](const fs::path& at) { overwrite(at / file_of(0), 12, 'x'); }},
      {"data of an older step",
       [](const fs::path& at) {
         fs::copy_file(at.parent_path() / "step-00000010" / file_of(0), at / file_of(0),
                       fs::copy_options::overwrite_existing);
         overwrite(at / file_of(1), 12, 'x');
       }},
      {"data behind a link",
       [](const fs::path& at) {
         fs::rename(at / file_of(0), at / "other");
         fs::create_symlink(at / "other", at / file_of(0));
       }},
      {"data that others may write", [](const fs::path& at) { ::chmod((at / file_of(0)).c_str(), 0666); }},
      {"index changed", [](const fs::path& at) { overwrite(at / "index.json", 20, 'x'); }},
      {"index cut", [&](const fs::path& at) { cut(at / "index.json"); }},
      {"index missing", [](const fs::path& at) { fs::remove(at / "index.json"); }},
      {"index behind a link",
       [](const fs::path& at) {
         fs::rename(at / "index.json", at / "other");
         fs::create_symlink(at / "other", at / "index.json");
       }},
      {"mark changed", [](const fs::path& at) { overwrite(at / "snapshot", 3, 'x'); }},
      {"mark cut", [&](const fs::path& at) { cut(at / "snapshot"); }},
      {"mark missing", [](const fs::path& at) { fs::remove(at / "snapshot"); }},
      {"mark of another step",
       [](const fs::path& at) {
         fs::copy_file(at.parent_path() / "step-00000010/snapshot", at / "snapshot",
                       fs::copy_options::overwrite_existing);
       }},
      {"mark that is a folder",
       [](const fs::path& at) {
         fs::remove(at / "snapshot");
         fs::create_directory(at / "snapshot");
       }},
      {"mark that is large", [](const fs::path& at) { fs::resize_file(at / "snapshot", 1 << 20); }},
      {"folder behind a link",
       [](const fs::path& at) {
         fs::rename(at, at.parent_path() / "moved");
         fs::create_symlink(at.parent_path() / "moved", at);
       }},
      {"folder that others may write", [](const fs::path& at) { ::chmod(at.c_str(), 0777); }},
  };
  for (const auto& [name, spoil] : ways) {
    CAPTURE(name);
    const TempFolder memory;
    start(memory, {0, 0}, {10, 20});
    spoil(folder_of(memory, 0, "step-00000020"));
    const auto next = next_start(memory, {0, 0}, 2);
    CHECK(next.step == 10);
    CHECK(next.is_whole);
    start(memory, {0, 0}, {20, 30});  // and the spoilt one is replaced
    const auto after = next_start(memory, {0, 0}, 2);
    CHECK(after.step == 30);
    CHECK(after.is_whole);
    CHECK_FALSE(fs::exists(folder_of(memory, 0, "step-00000010")));
  }
}

TEST_CASE("Snapshots: files of others beside them are no matter") {
  const TempFolder memory;
  start(memory, {0}, {10});
  ap::write_text_file(folder_of(memory, 0, "step-00000010") / "note", "x");
  ap::write_text_file(folder_of(memory, 0, "step-x") / "snapshot", "x");
  ap::write_text_file(folder_of(memory, 0, "step--5") / "snapshot", "x");
  ap::write_text_file(folder_of(memory, 0, "step-99999999999999999999") / "snapshot", "x");
  fs::create_directories(folder_of(memory, 0, "step-00000099"));
  CHECK(next_start(memory, {0}, 1).step == 10);
}

TEST_CASE("Snapshots: in a folder that others may have made there are none, and the training goes on") {
  const auto refused = [](const std::function<void(const fs::path& job)>& make) {
    const TempFolder memory;
    const auto job = place_on(memory, 0).job;
    make(job);
    const auto before = names_in(memory / "");
    Heard told;
    start(memory, {0, 0}, {10, 20}, &told);
    CHECK_FALSE(next_start(memory, {0, 0}, 2).step);
    CHECK(names_in(memory / "") == before);
    CHECK(told.lines.size() == 1);
    return told.has("there are no more snapshots (snapshot_every); the training goes on");
  };
  CHECK(refused([](const fs::path& job) {
    fs::create_directories(job.parent_path() / "other/run");
    fs::create_directory_symlink(job.parent_path() / "other", job);
  }));
  CHECK(refused([](const fs::path& job) {
    fs::create_directories(job);
    ::chmod(job.c_str(), 0770);
  }));
  CHECK(refused([](const fs::path& job) { ap::write_text_file(job, "a file"); }));
  CHECK(refused([](const fs::path& job) {
    fs::create_directories(job);
    fs::create_directories(job.parent_path() / "other");
    fs::create_directory_symlink(job.parent_path() / "other", job / "run");
  }));
  if (::geteuid() != 0) return;  // only root gives folders away
  CHECK(refused([](const fs::path& job) {
    fs::create_directories(job);
    ::chmod(job.c_str(), 0700);
    REQUIRE(::chown(job.c_str(), 65534, 65534) == 0);
  }));
}

TEST_CASE("Snapshots: too little memory is said once, and the training goes on without") {
  const TempFolder memory;
  Heard told;
  std::atomic<int> writes = 0;
  ap::loopback::run(2, [&](ap::World& world) {
    told.listen(world);
    Snapshots snapshots(world, 10, place_on(memory, 0));
    for (const std::int64_t step : {10, 20}) {
      snapshots.save({.step = step}, [&](const std::string& folder, const ap::AcceptParts& accept) {
        if (!accept(ap::Bytes(world.rank() == 1 ? std::int64_t{1} << 60 : 8))) return ap::SavedParts();
        ++writes;
        return write_parts(world, folder, step);
      });
    }
    if (world.rank() == 0) CHECK_FALSE(snapshots.is_due(30));
  });
  CHECK(writes == 0);
  REQUIRE(told.lines.size() == 1);
  CHECK(told.has("two snapshots need " + std::to_string(2 * ((std::int64_t{1} << 60) + 8)) + " bytes of host"));
  CHECK_FALSE(fs::exists(folder_of(memory, 0, "step-00000010")));
}

TEST_CASE("Snapshots: one that cannot be written is the end of them, and the last one stays") {
  const TempFolder memory;
  start(memory, {0, 1}, {10});
  Heard told;
  ap::loopback::run(2, [&](ap::World& world) {
    told.listen(world);
    Snapshots snapshots(world, 10, place_on(memory, world.rank()));
    snapshots.save({.step = 20}, [&](const std::string& folder, const ap::AcceptParts& accept) -> ap::SavedParts {
      if (!accept(ap::Bytes(32))) throw std::logic_error("there is room");
      static_cast<void>(write_parts(world, folder, 20));
      throw ap::CheckpointError("the disk is full");
    });
    if (world.rank() == 0) CHECK_FALSE(snapshots.is_due(30));
  });
  CHECK(told.has("the disk is full"));
  for (const int host : {0, 1}) CHECK_FALSE(fs::exists(folder_of(memory, host, "step-00000020")));
  CHECK(next_start(memory, {0, 1}, 2).step == 10);
}

TEST_CASE("Snapshots: a save to disk that has failed is told") {
  const TempFolder memory;
  ap::loopback::run(1, [&](ap::World& world) {
    Snapshots snapshots(world, 10, place_on(memory, 0));
    const auto fails = [&] {
      snapshots.save({.step = 20}, [&](const std::string&, const ap::AcceptParts&) -> ap::SavedParts {
        throw ap::CheckpointError("the disk was full");
      });
    };
    CHECK_THROWS_AS(fails(), ap::CheckpointError);
    CHECK(snapshots.is_due(30));
  });
  CHECK_FALSE(next_start(memory, {0}, 1).step);
}

TEST_CASE("Snapshots: at the end they go, on each host, and under a supervisor only they") {
  for (const bool is_supervised : {false, true}) {
    CAPTURE(is_supervised);
    const TempFolder memory;
    ap::loopback::run(2, [&](ap::World& world) {
      auto place = place_on(memory, world.rank());
      place.is_supervised = is_supervised;
      Snapshots snapshots(world, 10, place);
      snapshots.save({.step = 10},
                     [&](const std::string& folder, const ap::AcceptParts&) { return write_parts(world, folder, 10); });
      snapshots.remove();
      snapshots.save({.step = 20}, [](const std::string&, const ap::AcceptParts&) -> ap::SavedParts {
        throw std::logic_error("after the end");
      });
    });
    for (const int host : {0, 1}) {
      const auto job = place_on(memory, host).job;
      CHECK(fs::exists(job) == is_supervised);
      CHECK_FALSE(fs::exists(job / "run"));
    }
  }
}

TEST_CASE("Snapshots: those of a run that goes on are left alone, those of a gone one are removed") {
  const TempFolder memory;
  start(memory, {0}, {10});
  const auto job = place_on(memory, 0).job, gone = job.parent_path() / "autopar-7-run-2";
  fs::create_directories(gone / "run/step-00000010");
  std::string owner = ap::read_text_file(job / "supervisor");
  ap::write_text_file(gone / "supervisor", "4194999 5" + owner.substr(owner.find(' ', owner.find(' ') + 1)));
  Heard told;
  {
    const ap::FolderLock other(job / "run");
    start(memory, {0}, {20}, &told);
    CHECK(told.has("another job"));
    CHECK(fs::exists(job / "run/step-00000010/snapshot"));
    CHECK_FALSE(fs::exists(job / "run/step-00000020"));
  }
  CHECK(fs::exists(gone));
  CHECK(next_start(memory, {0}, 1).step == 10);
  CHECK_FALSE(fs::exists(gone));
}

TEST_CASE("Snapshots: what cannot be loaded is skipped") {
  const TempFolder memory;
  start(memory, {0, 1}, {10, 20});
  ap::loopback::run(2, [&](ap::World& world) {
    Snapshots snapshots(world, 10, place_on(memory, world.rank()));
    std::vector<std::int64_t> steps;
    for (; snapshots.newest(); snapshots.skip_newest("of another model")) steps.push_back(snapshots.newest()->step);
    if (world.rank() != 0) return;
    CHECK(steps == std::vector<std::int64_t>{20, 10});
    CHECK(snapshots.is_due(20));
    CHECK_FALSE(snapshots.is_due(0));
    CHECK_FALSE(snapshots.is_due(25));
  });
}

TEST_CASE("Snapshots: where they lie names the run, and one whose folder was removed is another run") {
  const TempFolder temp;
  const auto place_of = [&](const std::string& name) {
    std::optional<SnapshotPlace> place;
    ap::loopback::run(2, [&](ap::World& world) {
      const auto mine = training::snapshot_place(world, 10, temp / name);
      const std::lock_guard lock(mutex);
      if (place && (place->job != mine->job || place->run != mine->run)) throw std::logic_error("ranks differ");
      place = mine;
    });
    return *place;
  };
  const auto first = place_of("a");
  CHECK(first.job.string().starts_with("/dev/shm/autopar-" + std::to_string(::geteuid()) + "-run-"));
  CHECK(place_of("a").run != first.run);  // nothing is kept yet
  ap::write_text_file(first.id_file, first.id);
  CHECK(place_of("a").job == first.job);
  ap::write_text_file(temp / "b/snapshots.id", first.id);  // a copied folder
  CHECK(place_of("b").job != first.job);
  fs::remove_all(temp / "a");
  CHECK(place_of("a").job != first.job);
  ap::write_text_file(temp / "a/snapshots.id", std::string(100, 'x'));
  CHECK(place_of("a").id.size() == 16);
  ap::loopback::run(1, [&](ap::World& world) {
    CHECK_FALSE(training::snapshot_place(world, 0, temp / "a"));
    CHECK_FALSE(training::snapshot_place(world, 10, {}));
  });
  const auto refusals = told(
      2, [&](ap::World& world) { static_cast<void>(training::snapshot_place(world, 10 + world.rank(), temp / "a")); });
  for (const auto& refusal : refusals) CHECK(refusal.starts_with("snapshot_every is 10 on rank 0, 11 on rank 1"));
}

TEST_CASE("HostGroups: each rank's files go to another host, and nobody sends while it receives") {
  for (const Hosts& hosts : {Hosts{0}, Hosts{0, 0}, Hosts{0, 1}, Hosts{0, 1, 2}, Hosts{5, 5, 2, 7, 2, 9, 9, 9}}) {
    std::vector<std::string> names;
    for (const int host : hosts) names.push_back("host" + std::to_string(host));
    const HostGroups groups(names);
    const auto copies = groups.copies();
    CAPTURE(hosts);
    CHECK(copies.size() == (groups.count() == 1 ? 0 : hosts.size()));
    std::map<int, std::set<ap::Rank>> senders, receivers;
    for (const auto& [from, to, phase] : copies) {
      CHECK(groups.host_of(from) != groups.host_of(to));
      CHECK(senders[phase].insert(from).second);
      receivers[phase].insert(to);
    }
    for (const auto& [phase, ranks] : senders) {
      for (const auto rank : ranks) CHECK_FALSE(receivers[phase].contains(rank));
    }
    CHECK(std::ranges::is_sorted(copies, {}, &training::CopyPath::phase));
    for (std::size_t h = 0; h < groups.count(); ++h) CHECK(groups.host_of(groups.leader(h)) == h);
  }
}

}  // namespace snapshots_test
