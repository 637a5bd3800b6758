#include "place_text.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include <autopar/core/error.hpp>

namespace autopar::training {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// The members of a place's times in its file.
constexpr std::array<std::pair<const char*, double TimeSpent::*>, 7> kTimes{{{"total", &TimeSpent::total},
                                                                             {"planning", &TimeSpent::planning},
                                                                             {"saving", &TimeSpent::saving},
                                                                             {"restarting", &TimeSpent::restarting},
                                                                             {"data", &TimeSpent::data},
                                                                             {"waiting", &TimeSpent::waiting},
                                                                             {"until", &TimeSpent::until}}};

std::int64_t count_in(const json& object, const char* name, const fs::path& file) {
  const auto found = object.find(name);
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (found != object.end() && found->is_number_unsigned() && found->get<std::uint64_t>() <= kMost) return *found;
  throw InvalidArgument(file.string() + " is damaged: '" + name + "' is no count");
}

TimeSpent read_times(const json& place, const fs::path& file) {
  TimeSpent spent;
  if (!place.contains("spent")) return spent;
  const auto& times = place["spent"];
  const auto damaged = [&](const char* name) {
    return InvalidArgument(file.string() + " is damaged: 'spent' has no '" + name + "'");
  };
  for (const auto& [name, time] : kTimes) {
    if (!times.is_object() || !times.contains(name) || !times[name].is_number()) throw damaged(name);
    spent.*time = times[name];
  }
  if (!times.contains("has_ended") || !times["has_ended"].is_boolean()) throw damaged("has_ended");
  spent.has_ended = times["has_ended"];
  return spent;
}

}  // namespace

std::string place_text(const Place& place) {
  json spent{{"has_ended", place.spent.has_ended}};
  for (const auto& [name, time] : kTimes) spent[name] = place.spent.*time;
  return json{{"step", place.step},        {"epoch", place.epoch},
              {"taken", place.taken},      {"samples", place.size.samples},
              {"ranks", place.size.ranks}, {"spent", spent}}
      .dump();
}

Place read_place(const std::string& text, const fs::path& file) {
  const auto read = json::parse(text, nullptr, false);
  if (!read.is_object()) throw InvalidArgument(file.string() + " is damaged: it is no object of JSON");
  Place place{count_in(read, "step", file), count_in(read, "epoch", file), count_in(read, "taken", file)};
  if (read.contains("samples"))  // not in places of version 0.1
    place.size = {count_in(read, "samples", file), count_in(read, "ranks", file)};
  place.spent = read_times(read, file);
  return place;
}

}  // namespace autopar::training
