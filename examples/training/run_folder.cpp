#include "training/run_folder.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include <nlohmann/json.hpp>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>

#include "training/from_first.hpp"

namespace training {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kPlaceFile = "place.json";

std::string text_of(const Place& place) {
  return json{{"step", place.step}, {"epoch", place.epoch}, {"taken", place.taken}}.dump();
}

Place place_of(const std::string& text) {
  const auto read = json::parse(text);
  return {read.at("step"), read.at("epoch"), read.at("taken")};
}

/// Folders of complete checkpoints, oldest first.
std::vector<fs::path> complete_checkpoints(const fs::path& run) {
  std::vector<fs::path> found;
  if (!fs::is_directory(run)) return found;
  for (const auto& entry : fs::directory_iterator(run)) {
    if (entry.path().filename().string().starts_with("step-") && fs::exists(entry.path() / kPlaceFile))
      found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// @return the place of the newest checkpoint, or nothing at the start of a run
std::string opened(const Settings& settings) {
  const fs::path run = settings.out;
  const auto checkpoints = complete_checkpoints(run);
  if (settings.resume && checkpoints.empty())
    throw autopar::InvalidArgument("--resume: there is no complete checkpoint in " + settings.out +
                                   "; without --resume the run starts anew");
  if (!settings.resume && !checkpoints.empty()) {
    throw autopar::InvalidArgument("--out " + settings.out +
                                   " has an earlier run: go on with it by --resume, or name another folder");
  }
  if (settings.resume) return autopar::read_text_file(checkpoints.back() / kPlaceFile);
  autopar::write_text_file(settings_file(run), settings.given);
  return {};
}

}  // namespace

fs::path settings_file(const fs::path& folder) { return folder / "settings.json"; }

RunFolder::RunFolder(autopar::World& world, const Settings& settings)
    : world_(world), path_(settings.out), given_(settings.given), keep_(settings.keep) {
  if (!is_kept()) return;
  const auto place = from_first(world, "the run's folder", [&] { return opened(settings); });
  if (!place.empty()) newest_ = place_of(place);
}

fs::path RunFolder::folder_of(const Place& place) const {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "step-%08lld", static_cast<long long>(place.step));
  return path_ / name.data();
}

void RunFolder::complete(const Place& place) {
  from_first(world_, "completing a checkpoint", [&] {
    autopar::write_text_file(settings_file(path_), given_);  // of a run that goes on with other ones
    autopar::write_text_file(folder_of(place) / kPlaceFile, text_of(place));
    auto all = complete_checkpoints(path_);
    for (std::size_t i = 0; i + static_cast<std::size_t>(keep_) < all.size(); ++i) {
      fs::remove(all[i] / kPlaceFile);  // no longer complete, whenever this is interrupted
      fs::remove_all(all[i]);
    }
    return std::string();
  });
  newest_ = place;
}

}  // namespace training
