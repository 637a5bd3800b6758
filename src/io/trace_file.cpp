#include <autopar/io/trace_file.hpp>

#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include <autopar/io/file.hpp>

namespace autopar {

std::string to_chrome_trace(const std::vector<TraceEvent>& events, std::uint64_t model) {
  using Json = nlohmann::ordered_json;
  Json rows = Json::array();
  std::map<std::pair<int, std::string>, int> lanes;
  for (const auto& event : events) {
    const int rank = event.rank.value();
    const auto [lane, added] = lanes.try_emplace({rank, event.lane}, static_cast<int>(lanes.size()));
    if (added) {
      rows.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"pid", rank},
                      {"tid", lane->second},
                      {"args", {{"name", event.lane}}}});
    }
    rows.push_back({{"ph", "X"},
                    {"name", event.name},
                    {"pid", rank},
                    {"tid", lane->second},
                    {"ts", event.begin.value() * 1e6},
                    {"dur", (event.end - event.begin).value() * 1e6}});
  }
  return Json{{"format", file_mark("trace", model)}, {"traceEvents", std::move(rows)}, {"displayTimeUnit", "ms"}}.dump(
      -1, ' ', false, Json::error_handler_t::replace);
}

void write_chrome_trace(const std::filesystem::path& path, const std::vector<TraceEvent>& events, std::uint64_t model,
                        Overwrite overwrite) {
  write_marked_file(path, to_chrome_trace(events, model), file_mark("trace", model), overwrite);
}

}  // namespace autopar
