#include <autopar/training/run_folder.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/regular_file.hpp>
#include <autopar/training/from_first.hpp>

#include "place_text.hpp"

namespace autopar::training {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kPlaceFile = "place.json";

json parsed(const fs::path& file) {
  const auto read = json::parse(read_text_file(file), nullptr, false);
  if (read.is_object()) return read;
  throw InvalidArgument(file.string() + " is damaged: it is no object of JSON");
}

bool is_complete(const fs::path& checkpoint) {
  const auto has = [&](const char* name) { return fs::exists(checkpoint / name); };
  return has(kPlaceFile) && (has("index.json") || has("model.safetensors"));
}

/// Folders of checkpoints, oldest first.
std::vector<fs::path> checkpoints_of(const fs::path& run) {
  std::vector<std::pair<std::size_t, fs::path>> found;  // a name of more digits is of a later step
  if (!fs::is_directory(run)) return {};
  for (const auto& entry : fs::directory_iterator(run)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("step-")) found.emplace_back(name.size(), entry);
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> paths;
  for (auto& [size, path] : found) paths.push_back(std::move(path));
  return paths;
}

std::vector<fs::path> complete_checkpoints(const fs::path& run) {
  auto paths = checkpoints_of(run);
  std::erase_if(paths, [](const auto& path) { return !is_complete(path); });
  return paths;
}

/// @return the place of the newest checkpoint as text, or nothing at the start of a run
std::string opened(const RunFolderOptions& options) {
  const auto checkpoints = complete_checkpoints(options.path);
  if (options.start == Start::kResume && checkpoints.empty() && !options.has_snapshot) {
    throw InvalidArgument("there is no complete checkpoint in " + options.path.string() + " to go on from");
  }
  if (options.start == Start::kNew && (!checkpoints.empty() || options.has_snapshot)) {
    throw InvalidArgument(options.path.string() + " has an earlier run: go on with it, or name another folder");
  }
  if (!checkpoints.empty()) {
    const auto file = checkpoints.back() / kPlaceFile;
    return place_text(read_place(read_text_file(file), file));
  }
  fs::create_directories(options.path);
  if (!options.settings.empty()) write_text_file(settings_file(options.path), options.settings);
  return {};
}

}  // namespace

RunFolder::RunFolder(World& world, const RunFolderOptions& options)
    : world_(world), path_(options.path), settings_(options.settings), keep_(options.keep), wait_(options.wait) {
  if (keep_ < 1) throw InvalidArgument("keep = " + std::to_string(keep_) + ": at least the newest checkpoint stays");
  if (!is_kept()) return;
  const auto place = from_first(world, "opening the run's folder", [&] {
    auto text = opened(options);
    const auto file = path_ / "best/best.json";
    const bool is_new = text.empty() && !options.has_snapshot;
    if (is_new || !fs::exists(file)) return text;  // a run that starts anew has no best
    const auto best = parsed(file);
    if (!best.contains("metric") || !best["metric"].is_string() || !best.contains("value") ||
        !best["value"].is_number())
      throw InvalidArgument(file.string() + " is damaged: it has no metric with a value");
    best_ = Best{best["metric"], best["value"]};
    return text;
  });
  if (place.empty()) return;
  newest_ = read_place(place, path_);
}

fs::path RunFolder::folder_of(const Place& place) const {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "step-%08lld", static_cast<long long>(place.step));
  return path_ / name.data();
}

void RunFolder::begin(const Place& place) {
  from_first(world_, "beginning a checkpoint", [&] {
    if (!settings_.empty()) write_text_file(settings_file(path_), settings_);  // of a run that goes on with other ones
    write_text_file(folder_of(place) / kPlaceFile, place_text(place));
    return std::string();
  });
}

void RunFolder::save_copy(const Place& place, const fs::path& from) {
  if (!is_kept() || (newest_ && newest_->step == place.step)) return;
  begin(place);
  from_first(world_, "copying a checkpoint", [&] {
    const auto to = folder_of(place);
    for (const auto& entry : fs::directory_iterator(from)) {
      if (entry.path().extension() != ".safetensors") continue;
      const auto file = to / entry.path().filename();
      fs::copy_file(entry.path(), file, fs::copy_options::overwrite_existing);
      const auto copied = open_regular(file);
      if (::fsync(copied.descriptor()) != 0) throw InvalidArgument(file.string() + " cannot be written");
    }
    write_text_file(to / "index.json", read_text_file(from / "index.json", Bytes(std::int64_t{1} << 30)));
    return std::string();
  });
  newest_ = place;
  remove_old();
}

void RunFolder::remove_old() {
  from_first(world_, "removing old checkpoints", [&] {
    const auto complete = complete_checkpoints(path_);
    const auto count = std::min(complete.size(), static_cast<std::size_t>(keep_));
    const std::set<fs::path> kept(complete.end() - static_cast<std::ptrdiff_t>(count), complete.end());
    for (const auto& path : checkpoints_of(path_)) {
      if (kept.contains(path) || path == folder_of(*newest_)) continue;
      fs::remove(path / kPlaceFile);  // no longer complete, whenever this is interrupted
      fs::remove_all(path);
    }
    return std::string();
  });
}

bool RunFolder::is_best(const std::string& metric, double value, Better better) {
  const auto answer = from_first(world_, "comparing with the best so far", [&] {
    if (best_ && best_->metric != metric) {
      throw InvalidArgument("the best so far is by '" + best_->metric + "', not by '" + metric + "'");
    }
    const auto so_far = best_ ? std::optional(best_->value) : std::nullopt;
    return std::string(is_better(value, so_far, better) ? "yes" : "no");
  });
  return answer == "yes";
}

void RunFolder::complete_best(const Place& place, const std::string& metric, double value) {
  from_first(world_, "completing the best weights", [&] {
    if (is_kept()) {
      const json best{{"metric", metric}, {"value", value}, {"step", place.step}};
      write_text_file(path_ / "best/best.json", best.dump() + "\n");
    }
    best_ = Best{metric, value};
    return std::string();
  });
}

}  // namespace autopar::training
