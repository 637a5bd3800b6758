#include <autopar/io/host_name.hpp>
#include <autopar/training/snapshots.hpp>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iomanip>
#include <map>
#include <random>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include <autopar/core/error.hpp>
#include <autopar/io/checkpoint_index.hpp>
#include <autopar/io/checksum.hpp>
#include <autopar/io/config.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/folder_lock.hpp>
#include <autopar/io/free_space.hpp>
#include <autopar/io/snapshot_folder.hpp>
#include <autopar/io/supervision.hpp>
#include <autopar/training/from_first.hpp>

#include "file_transfer.hpp"
#include "host_groups.hpp"
#include "place_text.hpp"
#include "snapshot_files.hpp"

namespace autopar::training {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSnapshotAction = "a snapshot in memory";
constexpr const char* kIdFile = "snapshots.id";

std::string sixteen_digits(std::uint64_t value) {
  std::ostringstream text;
  text << std::hex << std::setw(16) << std::setfill('0') << value;
  return text.str();
}

/// Of the run's folder: what it has, or a new one.
std::string id_of(const fs::path& file) {
  constexpr Bytes kMost(64);
  std::error_code error;
  try {
    if (fs::exists(file, error)) return read_text_file(file, kMost);
  } catch (const ConfigError&) {  // NOLINT(bugprone-empty-catch): nobody knows what it was
  }
  std::random_device random;
  return sixteen_digits(std::uint64_t{random()} << 32 | random());
}

/// Equal where the same folder is seen.
std::string host_of_folder(const fs::path& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) throw InvalidArgument(folder.string() + " cannot be looked at");
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string host;
  if (!std::getline(boot, host)) host = host_name();
  return host + ' ' + std::to_string(status.st_dev) + ' ' + std::to_string(status.st_ino);
}

/// What `work`, which does not communicate, throws on the first rank where it does; empty: nothing. Collective.
template <class Work>
std::string first_failure(World& world, const Work& work) {
  std::string mine;
  try {
    work();
  } catch (const std::exception& error) {
    mine = *error.what() == '\0' ? "an exception without a message" : error.what();
  }
  for (auto& told : told_by_all(world, mine, kSnapshotAction)) {
    if (!told.empty()) return std::move(told);
  }
  return {};
}

}  // namespace

std::optional<SnapshotPlace> snapshot_place(World& world, std::int64_t every, const fs::path& run) {
  const auto told = told_by_all(world, std::to_string(every), "snapshot_every");
  for (std::size_t r = 1; r < told.size(); ++r) {
    if (told[r] == told[0]) continue;
    throw InvalidArgument("snapshot_every is " + told[0] + " on rank 0, " + told[r] + " on rank " + std::to_string(r) +
                          "; give every rank the same");
  }
  if (every <= 0) return std::nullopt;
  const auto supervised = supervision(process_environment());
  if (!supervised && run.empty()) return std::nullopt;
  SnapshotPlace place;
  place.is_supervised = supervised.has_value();
  if (!run.empty()) {
    place.id_file = run / kIdFile;
    place.id = from_first(world, "naming snapshots", [&] { return id_of(place.id_file); });
  }
  const auto told_path = from_first(world, "naming snapshots", [&] {
    if (run.empty()) return std::string();
    std::error_code error;
    const auto path = fs::absolute(run);  // before it exists a relative path would stay one
    const auto folder = fs::weakly_canonical(path, error);
    return (error ? path : folder).string();
  });
  const auto named = told_path + '\n' + place.id;
  place.run = sixteen_digits(checksum(std::as_bytes(std::span(named))));
  place.job = snapshot_folder(supervised ? supervised->job : "run-" + place.run);
  return place;
}

struct Snapshots::State {
  /// A snapshot that an earlier start has left.
  struct Found {
    SnapshotMark mark;
    Rank first;  ///< of those that have its index
  };

  World& world;
  std::int64_t every;
  SnapshotPlace place;
  fs::path run{};
  HostGroups hosts{};
  std::optional<FolderLock> lock{};  ///< of leaders
  std::vector<Found> found{};        ///< newest last
  std::optional<Place> newest{};
  std::int64_t kept = -1;  ///< step of the newest that is complete
  bool is_on = false, has_asked_for_room = false;

  [[nodiscard]] bool is_leader() const { return hosts.leader(host()) == world.rank_id(); }
  [[nodiscard]] std::size_t host() const { return hosts.host_of(world.rank_id()); }
  void warn(const std::string& text) const {
    if (world.rank() == 0) world.logger(LogModule::kCheckpoint).warn(text);
  }

  [[nodiscard]] std::string open();
  void look();
  void take_newest();
  [[nodiscard]] std::string bring(const Found& snapshot, std::string& index_text);
  [[nodiscard]] std::vector<std::vector<char>> whole_files(const fs::path& snapshot, const CheckpointIndex& index);

  [[nodiscard]] std::string begin(const fs::path& snapshot);
  [[nodiscard]] std::string missing_room(Bytes mine);
  [[nodiscard]] std::string complete(const fs::path& snapshot, const SavedParts& parts, const std::string& mark);
  [[nodiscard]] std::string copy(const fs::path& snapshot, const SavedParts& parts);
  void stop(const std::string& why, const fs::path& snapshot);
};

// ---------------------------------------------------------------- what earlier starts have left

std::string Snapshots::State::open() {
  run = place.job / place.run;
  std::string seen;
  auto failure = first_failure(world, [&] {
    for (const auto& folder : {place.job, run}) {
      if (make_private_folder(folder)) continue;
      throw InvalidArgument(folder.string() + " is not, and cannot be made, a folder in which this user alone writes");
    }
    seen = host_of_folder(run);
  });
  if (!failure.empty()) return failure;
  hosts = HostGroups(told_by_all(world, seen, kSnapshotAction));
  return first_failure(world, [&] {
    if (!is_leader()) return;
    lock.emplace(run);
    // The supervisor's host has its name there; on others the first rank looks after the folder.
    if (!place.is_supervised || owner_of_snapshots(place.job) != SnapshotOwner::kThere) own_snapshot_folder(place.job);
    remove_stale_snapshots(place.job);
  });
}

void Snapshots::State::look() {
  std::string mine;
  if (is_leader()) {
    std::vector<std::string> damaged;
    for (const auto& mark : marked_snapshots(run, damaged)) mine += std::to_string(mark.text.size()) + ' ' + mark.text;
    for (const auto& why : damaged) world.logger(LogModule::kCheckpoint).warn("a snapshot is left out: " + why);
  }
  const auto texts = told_by_all(world, mine, kSnapshotAction);
  std::map<std::pair<std::int64_t, std::string>, Found> all;
  for (std::size_t r = 0; r < texts.size(); ++r) {
    std::istringstream in(texts[r]);
    for (std::size_t size = 0; in >> size;) {
      std::string text(size, '\0');
      in.get();
      in.read(text.data(), static_cast<std::streamsize>(size));
      auto mark = read_mark(text, run);
      all.emplace(std::pair(mark.place.step, text), Found{std::move(mark), Rank::of(r)});
    }
  }
  for (auto& [key, snapshot] : all) found.push_back(std::move(snapshot));
}

void Snapshots::State::take_newest() {
  newest.reset();
  kept = -1;
  while (!newest && !found.empty()) {
    const auto snapshot = std::move(found.back());
    found.pop_back();
    std::string index;
    const auto why = bring(snapshot, index);
    if (why.empty()) {
      newest = snapshot.mark.place;
      kept = newest->step;
    } else {
      warn("the snapshot of step " + std::to_string(snapshot.mark.place.step) + " is left out: " + why);
    }
  }
}

/// By host, which data files it has.
std::vector<std::vector<char>> Snapshots::State::whole_files(const fs::path& snapshot, const CheckpointIndex& index) {
  const auto& members = hosts.ranks(host());
  std::string mine(index.files.size(), '0');
  for (std::size_t i = 0; i < index.files.size(); ++i) {
    const bool is_mine = members[i % members.size()] == world.rank_id();
    if (is_mine && is_whole(snapshot, index.files[i])) mine[i] = '1';
  }
  const auto told = told_by_all(world, mine, kSnapshotAction);
  std::vector<std::vector<char>> has(hosts.count(), std::vector<char>(index.files.size(), 0));
  for (std::size_t r = 0; r < told.size(); ++r) {
    auto& there = has[hosts.host_of(Rank::of(r))];
    for (std::size_t i = 0; i < there.size(); ++i) there[i] = there[i] != 0 || told[r][i] == '1' ? 1 : 0;
  }
  return has;
}

/// Makes a snapshot whole on rank 0's host. @return why that cannot be; empty: it is
std::string Snapshots::State::bring(const Found& snapshot, std::string& index_text) {
  const auto folder = snapshot_of_step(run, snapshot.mark.place.step);
  auto failure = first_failure(world, [&] {
    if (world.rank_id() == snapshot.first) index_text = read_index_of(folder, snapshot.mark);
  });
  if (!failure.empty()) return failure;
  const auto bytes = std::as_bytes(std::span(index_text));
  const auto told = world.broadcast({bytes.begin(), bytes.end()}, snapshot.first, kSnapshotAction);
  index_text.assign(reinterpret_cast<const char*>(told.data()), told.size());
  CheckpointIndex index;
  failure = first_failure(world, [&] { index = parse_checkpoint_index(index_text, folder.string()); });
  if (!failure.empty()) return failure;
  const auto has = whole_files(folder, index);
  std::vector<std::pair<std::size_t, Rank>> missing;  // on rank 0's host: the file, who sends it
  Bytes needed(0);
  for (std::size_t i = 0; i < index.files.size(); ++i) {
    if (has[0][i] != 0) continue;
    const auto host = std::ranges::find_if(has, [&](const auto& there) { return there[i] != 0; }) - has.begin();
    if (host == std::ssize(has)) return "no host has " + index.files[i].name + " undamaged";
    missing.emplace_back(i, hosts.leader(static_cast<std::size_t>(host)));
    needed += index.files[i].bytes;
  }
  failure = first_failure(world, [&] {
    if (world.rank() != 0) return;
    if (!make_private_folder(folder)) throw InvalidArgument(folder.string() + " is no folder of this user alone");
    require_space(folder, needed);
  });
  if (!failure.empty()) return failure;
  std::string mine;
  for (const auto& [i, from] : missing) {
    const auto& file = index.files[i];
    std::string own;
    if (world.rank_id() == from) own = send_file(world, folder / file.name, file.bytes, Rank(0));
    if (world.rank() == 0) own = receive_file(world, folder / file.name, file.bytes, from);
    if (mine.empty()) mine = own;
  }
  return first_failure(world, [&] {
    if (!mine.empty()) throw InvalidArgument(mine);
    if (world.rank() == 0) mark_complete(folder, index_text, snapshot.mark.text);
  });
}

// ---------------------------------------------------------------- a new one

std::string Snapshots::State::begin(const fs::path& snapshot) {
  return first_failure(world, [&] {
    std::error_code error;
    const bool has_id = place.id_file.empty() || fs::exists(place.id_file, error);
    if (world.rank() == 0 && !has_id) write_text_file(place.id_file, place.id);
    if (!is_leader()) return;
    remove_snapshots_but(run, kept);
    if (!make_private_folder(snapshot)) throw InvalidArgument(snapshot.string() + " cannot be made");
  });
}

/// That each host has memory for two snapshots of its ranks, with copies; empty: it has.
std::string Snapshots::State::missing_room(Bytes mine) {
  if (std::exchange(has_asked_for_room, true)) return {};
  const auto told = told_by_all(world, std::to_string(mine.value()), kSnapshotAction);
  Bytes needed(0);
  const auto count = [&](Rank writer, Rank keeper) {
    if (hosts.host_of(keeper) == host()) needed += Bytes(std::stoll(told[writer.index()]));
  };
  for (std::size_t r = 0; r < told.size(); ++r) count(Rank::of(r), Rank::of(r));
  for (const auto& path : hosts.copies()) count(path.from, path.to);
  needed *= kept < 0 ? 2 : 1;
  return first_failure(world, [&] {
    if (!is_leader()) return;
    for (const auto& available : {free_space(run), available_memory()}) {
      if (!available || needed <= *available) continue;
      throw InvalidArgument("two snapshots need " + std::to_string(needed.value()) + " bytes of host " + host_name() +
                            " in " + run.parent_path().parent_path().string() + ", which has " +
                            std::to_string(available->value()));
    }
  });
}

std::string Snapshots::State::copy(const fs::path& snapshot, const SavedParts& parts) {
  const auto index = parse_checkpoint_index(parts.index, snapshot.string());
  std::map<std::string, Bytes> sizes;
  for (const auto& file : index.files) sizes.emplace(file.name, file.bytes);
  std::string failure;
  for (const auto& path : hosts.copies()) {
    for (const auto& name : parts.files[path.from.index()]) {
      std::string own;
      if (world.rank_id() == path.from) own = send_file(world, snapshot / name, sizes.at(name), path.to);
      if (world.rank_id() == path.to) own = receive_file(world, snapshot / name, sizes.at(name), path.from);
      if (failure.empty()) failure = own;
    }
  }
  return failure;
}

std::string Snapshots::State::complete(const fs::path& snapshot, const SavedParts& parts, const std::string& mark) {
  const auto mine = copy(snapshot, parts);
  auto failure = first_failure(world, [&] {
    if (!mine.empty()) throw InvalidArgument(mine);
    for (const auto& name : parts.files[world.rank_id().index()]) make_private(snapshot / name);
  });
  if (!failure.empty()) return failure;
  return first_failure(world, [&] {
    if (is_leader()) mark_complete(snapshot, parts.index, mark);
  });
}

void Snapshots::State::stop(const std::string& why, const fs::path& snapshot) {
  is_on = false;
  warn("there are no more snapshots (snapshot_every); the training goes on, with its checkpoints on disk: " + why);
  std::error_code ignored;
  if (hosts.count() > 0 && is_leader() && !snapshot.empty()) fs::remove_all(snapshot, ignored);
}

// ---------------------------------------------------------------- Snapshots

Snapshots::Snapshots(World& world, std::int64_t every, const std::optional<SnapshotPlace>& place)
    : state_(std::make_unique<State>(State{world, every, place.value_or(SnapshotPlace())})) {
  if (every <= 0) return;
  const auto failure = place ? state_->open() : "a run without a folder has them under autopar run only";
  if (!failure.empty()) {
    state_->stop(failure, {});
    return;
  }
  state_->is_on = true;
  state_->look();
  state_->take_newest();
}

Snapshots::~Snapshots() = default;

bool Snapshots::is_due(std::int64_t step) const { return state_->is_on && step > 0 && step % state_->every == 0; }

const std::optional<Place>& Snapshots::newest() const { return state_->newest; }

fs::path Snapshots::newest_folder() const { return snapshot_of_step(state_->run, state_->newest->step); }

void Snapshots::skip_newest(const std::string& why) {
  state_->warn("the snapshot of step " + std::to_string(state_->newest->step) + " is left out: " + why);
  state_->take_newest();
}

void Snapshots::save(const Place& place, const Write& write) {
  auto& state = *state_;
  if (!state.is_on) return;
  const auto folder = snapshot_of_step(state.run, place.step);
  const auto told = from_first(state.world, kSnapshotAction, [&] { return place_text(place); });
  auto failure = state.begin(folder);
  SavedParts parts;
  bool is_begun = false;  // what is thrown before is no matter of snapshots, such as a save to disk that has failed
  try {
    const auto accept = [&](Bytes mine) {
      is_begun = true;
      failure = state.missing_room(mine);
      return failure.empty();
    };
    if (failure.empty()) parts = write(folder.string(), accept);
  } catch (const CheckpointError& error) {
    if (!is_begun) throw;
    failure = error.what();
  }
  if (failure.empty()) failure = state.complete(folder, parts, mark_text(told, parts.index));
  if (!failure.empty()) return state.stop(failure, folder);
  state.kept = place.step;
}

void Snapshots::remove() {
  auto& state = *state_;
  state.is_on = false;
  if (!state.lock) return;  // another rank looks after the folder, or another run
  state.lock.reset();
  std::error_code ignored;
  fs::remove_all(state.place.is_supervised ? state.run : state.place.job, ignored);
}

}  // namespace autopar::training
