#include <autopar/io/trace_file.hpp>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include <autopar/io/file.hpp>

namespace autopar {

namespace {

using Row = nlohmann::ordered_json;

/// The threads of one lane: bars of one thread nest or follow one another, as viewers demand.
class LaneThreads {
 public:
  /// The index of the first thread that the bar fits into. Bars come by their begin, longer ones first.
  std::size_t place(Seconds begin, Seconds end) {
    for (std::size_t thread = 0;; ++thread) {
      if (thread == open_.size()) open_.emplace_back();
      auto& ends = open_[thread];
      while (!ends.empty() && ends.back() <= begin) ends.pop_back();
      if (!ends.empty() && ends.back() < end) continue;
      ends.push_back(end);
      return thread;
    }
  }

 private:
  std::vector<std::vector<Seconds>> open_;  ///< by thread: ends of the bars around what comes next
};

Row metadata_row(const char* name, int process, int thread, Row arguments) {
  return {{"ph", "M"}, {"name", name}, {"ts", 0}, {"pid", process}, {"tid", thread}, {"args", std::move(arguments)}};
}

Row bar_row(const TraceEvent& event, int thread) {
  Row row{{"ph", "X"},
          {"name", event.name},
          {"cat", name_of(event.category)},
          {"pid", event.rank.value()},
          {"tid", thread},
          {"ts", event.begin.value() * 1e6},
          {"dur", (event.end - event.begin).value() * 1e6}};
  Row arguments = Row::object();
  if (event.step >= 0) arguments["step"] = event.step;
  if (event.category == TraceCategory::kOperator) {
    arguments["operator"] = event.op;
    arguments["module"] = event.module;
  }
  if (!arguments.empty()) row["args"] = std::move(arguments);
  return row;
}

}  // namespace

TraceCategory category_of(BarKind kind) {
  switch (kind) {
    case BarKind::kForward:
      return TraceCategory::kForward;
    case BarKind::kSend:
      return TraceCategory::kSend;
    case BarKind::kReceive:
      return TraceCategory::kReceive;
    case BarKind::kCollective:
      return TraceCategory::kCollective;
    case BarKind::kUpdate:
      return TraceCategory::kOptimizer;
    case BarKind::kBackward:
    case BarKind::kBackwardInput:
    case BarKind::kBackwardWeight:
      break;
  }
  return TraceCategory::kBackward;
}

const char* name_of(TraceCategory category) {
  switch (category) {
    case TraceCategory::kForward:
      return "forward";
    case TraceCategory::kBackward:
      return "backward";
    case TraceCategory::kSend:
      return "send";
    case TraceCategory::kReceive:
      return "receive";
    case TraceCategory::kCollective:
      return "collective";
    case TraceCategory::kOptimizer:
      return "optimizer";
    case TraceCategory::kCall:
      return "call";
    case TraceCategory::kBetweenCalls:
      return "between calls";
    case TraceCategory::kOperator:
      return "operator";
    case TraceCategory::kGraph:
      break;
  }
  return "CUDA graph";
}

std::string to_chrome_trace(std::vector<TraceEvent> events, std::uint64_t model,
                            const std::vector<TraceProcess>& processes) {
  Row rows = Row::array();
  for (const auto& process : processes) {
    const int rank = process.rank.value();
    rows.push_back(metadata_row("process_name", rank, 0, {{"name", process.name}}));
    rows.push_back(metadata_row("process_sort_index", rank, 0, {{"sort_index", rank}}));
    if (!process.note.empty()) rows.push_back(metadata_row("process_labels", rank, 0, {{"labels", process.note}}));
  }
  std::stable_sort(events.begin(), events.end(), [](const TraceEvent& a, const TraceEvent& b) {
    return std::tuple(a.rank, a.begin, b.end) < std::tuple(b.rank, b.begin, a.end);
  });
  std::map<std::pair<int, std::string>, LaneThreads> lanes;
  std::map<std::tuple<int, std::string, std::size_t>, int> threads;
  for (const auto& event : events) {
    const int rank = event.rank.value();
    const auto place = lanes[{rank, event.lane}].place(event.begin, event.end);
    const auto [thread, added] = threads.try_emplace({rank, event.lane, place}, static_cast<int>(threads.size()));
    if (added) {
      const auto name = event.lane + (place == 0 ? "" : " " + std::to_string(place + 1));
      rows.push_back(metadata_row("thread_name", rank, thread->second, {{"name", name}}));
    }
    rows.push_back(bar_row(event, thread->second));
  }
  return Row{{"format", file_mark("trace", model)}, {"traceEvents", std::move(rows)}, {"displayTimeUnit", "ms"}}.dump(
      -1, ' ', false, Row::error_handler_t::replace);
}

void write_chrome_trace(const std::filesystem::path& path, std::vector<TraceEvent> events, std::uint64_t model,
                        Overwrite overwrite, const std::vector<TraceProcess>& processes) {
  write_marked_file(path, to_chrome_trace(std::move(events), model, processes), file_mark("trace", model), overwrite);
}

}  // namespace autopar
