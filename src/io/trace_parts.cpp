#include <autopar/io/trace_parts.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>

#include <autopar/core/error.hpp>
#include <autopar/io/regular_file.hpp>

#include "json_reader.hpp"

namespace autopar {

namespace fs = std::filesystem;

namespace {

using detail::Json;
using detail::JsonReader;
using detail::OrderedJson;

constexpr const char* kPartKind = "trace part";
constexpr const char* kRunFile = "run";
constexpr const char* kLockOfParts = ".lock";
constexpr int kMostRanks = 1 << 16;
constexpr double kMostMicroseconds = 1e15;  // 30 years
constexpr std::int64_t kMostSteps = std::int64_t{1} << 62;
constexpr std::size_t kPlaces = 8;  // of an event's list

constexpr std::array kCategories{TraceCategory::kForward, TraceCategory::kBackward,     TraceCategory::kSend,
                                 TraceCategory::kReceive, TraceCategory::kCollective,   TraceCategory::kOptimizer,
                                 TraceCategory::kCall,    TraceCategory::kBetweenCalls, TraceCategory::kOperator,
                                 TraceCategory::kGraph};

std::optional<TraceCategory> category_named(const std::string& name) {
  const auto found =
      std::ranges::find(kCategories, name, [](TraceCategory each) { return std::string(name_of(each)); });
  return found == kCategories.end() ? std::nullopt : std::optional(*found);
}

/// A list as `to_text` writes it; nothing if it is not one.
std::optional<TraceEvent> event_of(const Json& row, Rank rank) {
  if (!row.is_array() || row.size() != kPlaces) return std::nullopt;
  for (const std::size_t text : {0, 1, 4, 6, 7}) {
    if (!row[text].is_string()) return std::nullopt;
  }
  for (const std::size_t time : {2, 3}) {
    if (!row[time].is_number() || !(std::abs(row[time].get<double>()) <= kMostMicroseconds)) return std::nullopt;
  }
  if (!row[5].is_number_integer()) return std::nullopt;
  const auto category = category_named(row[4].get<std::string>());
  const auto step = row[5].get<std::int64_t>();
  const Seconds begin(row[2].get<double>() * 1e-6), end(row[3].get<double>() * 1e-6);
  if (!category || step < -1 || step > kMostSteps || end < begin) return std::nullopt;
  return TraceEvent{rank, row[0], row[1], begin, end, *category, step, row[6], row[7]};
}

/// The rank of "rank-3.json" or "rank-3.end.json"; nothing for other names.
std::optional<int> rank_named(const std::string& name) {
  constexpr std::string_view kBegin = "rank-";
  if (!name.starts_with(kBegin)) return std::nullopt;
  int rank = -1;
  const auto* const last = name.data() + name.size();
  const auto [end, error] = std::from_chars(name.data() + kBegin.size(), last, rank);
  const std::string_view rest(end, last);
  if (error != std::errc() || rank < 0 || rank >= kMostRanks) return std::nullopt;
  return rest == ".json" || rest == ".end.json" ? std::optional(rank) : std::nullopt;
}

/// Held while parts are joined. Without locks (some network file systems) there is none.
class LockOfParts {
 public:
  explicit LockOfParts(const fs::path& folder)
      : file_(::open((folder / kLockOfParts).c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666)) {
    if (file_.descriptor() >= 0) static_cast<void>(::flock(file_.descriptor(), LOCK_EX));
  }

 private:
  RegularFile file_;
};

std::string skipped_line(const ConfigError& error) {
  return std::string("a part of the trace is left out: ") + error.what();
}

bool is_there(const fs::path& file) {
  std::error_code ignored;
  return fs::exists(file, ignored);
}

/// The parts in a folder; none if it cannot be read.
std::vector<std::pair<int, fs::path>> parts_in(const fs::path& folder) {
  std::vector<std::pair<int, fs::path>> parts;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const auto rank = rank_named(entry->path().filename().string());
    if (rank) parts.emplace_back(*rank, entry->path());
  }
  return parts;
}

}  // namespace

// ---------------------------------------------------------------- text

std::string to_text(const TracePart& part) {
  OrderedJson events = OrderedJson::array();
  for (const auto& event : part.events) {
    events.push_back({event.lane, event.name, event.begin.value() * 1e6, event.end.value() * 1e6,
                      name_of(event.category), event.step, event.op, event.module});
  }
  return OrderedJson{{"format", file_mark(kPartKind, part.model)},
                     {"model", detail::hash_text(part.model)},
                     {"rank", part.rank().value()},
                     {"name", part.process.name},
                     {"note", part.process.note},
                     {"events", std::move(events)}}
      .dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

TracePart parse_trace_part(std::string_view text, const std::string& file) {
  const auto json = detail::parse_json(text, file);
  JsonReader reader(json, file, "");
  TracePart part;
  part.model = reader.hash("model");
  if (reader.text("format") != file_mark(kPartKind, part.model)) reader.fail("format", "is that of another file");
  part.process.rank = Rank(static_cast<std::int32_t>(reader.whole("rank", 0, kMostRanks - 1)));
  part.process.name = reader.text("name");
  part.process.note = reader.text("note");
  for (const auto& row : reader.list("events")) {
    auto event = event_of(row, part.rank());
    if (!event) reader.fail("events", "number " + std::to_string(part.events.size()) + " is no event");
    part.events.push_back(std::move(*event));
  }
  reader.finish();
  return part;
}

// ---------------------------------------------------------------- files

fs::path TraceParts::folder() const { return fs::path(trace_.string() + ".parts"); }

fs::path TraceParts::file_of(int rank, bool is_last) const {
  return folder() / ("rank-" + std::to_string(rank) + (is_last ? ".end.json" : ".json"));
}

void TraceParts::open(const std::string& run) const {
  std::error_code ignored;
  const auto status = fs::status(trace_, ignored);
  if (!trace_.has_filename() || (fs::exists(status) && !fs::is_regular_file(status)))
    throw ConfigError("a trace of several ranks must be a regular file", trace_.string());
  write_text_file(folder() / kRunFile, run);
}

std::string TraceParts::run() const {
  constexpr Bytes kMost(1 << 10);
  try {
    return read_text_file(folder() / kRunFile, kMost);
  } catch (const ConfigError&) {
    return {};
  }
}

void TraceParts::write(const TracePart& part) const {
  write_text_file(file_of(part.rank().value(), false), to_text(part));
}

TraceParts::Joined TraceParts::join(std::uint64_t model) const {
  const LockOfParts lock(folder());
  return join_of(model, ranks_, trace_);
}

TraceParts::Joined TraceParts::join_of(std::uint64_t model, int ranks, const fs::path& to) const {
  Joined joined{0, to, {}};
  std::vector<TraceEvent> events;
  std::vector<TraceProcess> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    auto file = file_of(rank, true);
    if (!is_there(file)) file = file_of(rank, false);
    if (!is_there(file)) continue;
    try {
      auto part = parse_trace_part(read_text_file(file), file.string());
      if (part.rank().value() != rank) throw ConfigError("says another rank", file.string());
      if (part.model != model) throw ConfigError("is of another model", file.string());
      processes.push_back(std::move(part.process));
      std::ranges::move(part.events, std::back_inserter(events));
      ++joined.ranks;
    } catch (const ConfigError& error) {
      joined.skipped.push_back(skipped_line(error));
    }
  }
  write_chrome_trace(to, std::move(events), model, overwrite_, processes);
  return joined;
}

TraceParts::Joined TraceParts::finish(const TracePart& part, const std::vector<bool>& shares) const {
  const int own = part.rank().value();
  write_text_file(file_of(own, true), to_text(part));
  const LockOfParts lock(folder());
  if (!is_there(file_of(own, true))) {  // who came last has joined it meanwhile
    remove_folder();                    // which this rank's lock may have kept
    return {};
  }
  bool is_last = true;
  for (int rank = 0; rank < ranks_; ++rank)
    is_last = is_last && (!shares[static_cast<std::size_t>(rank)] || is_there(file_of(rank, true)));
  if (own != 0 && !is_last) return {};
  auto joined = join_of(part.model, ranks_, trace_);
  if (is_last) remove();
  return joined;
}

TraceParts::Joined TraceParts::recover() const {
  Joined recovered{0, trace_, {}};
  recovered.path.replace_extension(".killed" + trace_.extension().string());
  std::map<std::uint64_t, int> parts_of;  // by model
  int ranks = 0;
  for (const auto& [rank, path] : parts_in(folder())) {
    ranks = std::max(ranks, rank + 1);
    try {
      ++parts_of[parse_trace_part(read_text_file(path), path.string()).model];
    } catch (const ConfigError& damaged) {
      recovered.skipped.push_back(skipped_line(damaged));
    }
  }
  const auto most = std::ranges::max_element(parts_of, {}, [](const auto& of_model) { return of_model.second; });
  if (most != parts_of.end()) recovered = join_of(most->first, ranks, recovered.path);
  remove();
  return recovered;
}

void TraceParts::remove() const {
  std::error_code ignored;
  for (const auto& [rank, path] : parts_in(folder())) fs::remove(path, ignored);
  fs::remove(folder() / kRunFile, ignored);
  remove_folder();
}

void TraceParts::remove_folder() const {
  std::error_code ignored;
  fs::remove(folder() / kLockOfParts, ignored);
  fs::remove(folder(), ignored);  // unless others' files are in it
}

}  // namespace autopar
