#include <autopar/training/run_folder.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <vector>

#include <nlohmann/json.hpp>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>
#include <autopar/training/from_first.hpp>

namespace autopar::training {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kPlaceFile = "place.json";

std::string text_of(const Place& place) {
  return json{{"step", place.step}, {"epoch", place.epoch}, {"taken", place.taken}}.dump();
}

json parsed(const fs::path& file) {
  const auto read = json::parse(read_text_file(file), nullptr, false);
  if (read.is_object()) return read;
  throw InvalidArgument(file.string() + " is damaged: it is no object of JSON");
}

std::int64_t count_in(const json& object, const char* name, const fs::path& file) {
  const auto found = object.find(name);
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (found != object.end() && found->is_number_unsigned() && found->get<std::uint64_t>() <= kMost) return *found;
  throw InvalidArgument(file.string() + " is damaged: '" + name + "' is no count");
}

Place read_place(const fs::path& file) {
  const auto read = parsed(file);
  return {count_in(read, "step", file), count_in(read, "epoch", file), count_in(read, "taken", file)};
}

/// Folders of complete checkpoints, oldest first.
std::vector<fs::path> complete_checkpoints(const fs::path& run) {
  std::vector<std::pair<std::size_t, fs::path>> found;  // a name of more digits is of a later step
  if (!fs::is_directory(run)) return {};
  for (const auto& entry : fs::directory_iterator(run)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("step-") && fs::exists(entry.path() / kPlaceFile)) found.emplace_back(name.size(), entry);
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> paths;
  for (auto& [size, path] : found) paths.push_back(std::move(path));
  return paths;
}

/// @return the place of the newest checkpoint as text, or nothing at the start of a run
std::string opened(const RunFolderOptions& options) {
  const auto checkpoints = complete_checkpoints(options.path);
  if (options.start == Start::kResume && checkpoints.empty()) {
    throw InvalidArgument("there is no complete checkpoint in " + options.path.string() + " to go on from");
  }
  if (options.start == Start::kNew && !checkpoints.empty()) {
    throw InvalidArgument(options.path.string() + " has an earlier run: go on with it, or name another folder");
  }
  if (!checkpoints.empty()) return text_of(read_place(checkpoints.back() / kPlaceFile));
  fs::create_directories(options.path);
  if (!options.settings.empty()) write_text_file(settings_file(options.path), options.settings);
  return {};
}

}  // namespace

RunFolder::RunFolder(World& world, const RunFolderOptions& options)
    : world_(world), path_(options.path), settings_(options.settings), keep_(options.keep) {
  if (keep_ < 1) throw InvalidArgument("keep = " + std::to_string(keep_) + ": at least the newest checkpoint stays");
  if (!is_kept()) return;
  const auto place = from_first(world, "opening the run's folder", [&] {
    auto text = opened(options);
    const auto file = path_ / "best/best.json";
    if (text.empty() || !fs::exists(file)) return text;  // a run that starts anew has no best
    const auto best = parsed(file);
    if (!best.contains("metric") || !best["metric"].is_string() || !best.contains("value") ||
        !best["value"].is_number())
      throw InvalidArgument(file.string() + " is damaged: it has no metric with a value");
    best_ = Best{best["metric"], best["value"]};
    return text;
  });
  if (place.empty()) return;
  const auto read = json::parse(place);
  newest_ = Place{read["step"], read["epoch"], read["taken"]};
}

fs::path RunFolder::folder_of(const Place& place) const {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "step-%08lld", static_cast<long long>(place.step));
  return path_ / name.data();
}

void RunFolder::complete(const Place& place) {
  from_first(world_, "completing a checkpoint", [&] {
    if (!settings_.empty()) write_text_file(settings_file(path_), settings_);  // of a run that goes on with other ones
    write_text_file(folder_of(place) / kPlaceFile, text_of(place));
    const auto all = complete_checkpoints(path_);
    for (std::size_t i = 0; i + static_cast<std::size_t>(keep_) < all.size(); ++i) {
      fs::remove(all[i] / kPlaceFile);  // no longer complete, whenever this is interrupted
      fs::remove_all(all[i]);
    }
    return std::string();
  });
  newest_ = place;
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
