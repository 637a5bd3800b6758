#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iomanip>
#include <limits>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>
#include <nlohmann/json.hpp>

#include <autopar/core/error.hpp>
#include <autopar/core/printable.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/wall_clock.hpp>

#include "commands.hpp"
#include "run_figures.hpp"
#include "tool.hpp"

namespace autopar::tool {

namespace {

namespace fs = std::filesystem;

constexpr double kStale = 60;  // s

std::string in_time(double seconds) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(0);
  if (seconds < 120)
    text << std::max(seconds, 0.0) << " s";
  else if (seconds < 7200)
    text << seconds / 60 << " min";
  else
    text << std::setprecision(1) << seconds / 3600 << " h";
  return text.str();
}

std::string in_digits(double number) {
  std::ostringstream text;
  text << std::setprecision(5) << number;
  return text.str();
}

std::string in_percent(double share) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << 100 * share << " %";
  return text.str();
}

/// Eight heights between the least and the greatest of finite numbers.
std::string drawn(const std::vector<double>& numbers) {
  constexpr std::array kBars{"\u2581", "\u2582", "\u2583", "\u2584", "\u2585", "\u2586", "\u2587", "\u2588"};
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (const double number : numbers) {
    if (!std::isfinite(number)) continue;
    least = std::min(least, number);
    most = std::max(most, number);
  }
  std::string bars;
  for (const double number : numbers) {
    const double part = most > least ? (number - least) / (most - least) : 0;
    bars += std::isfinite(number) ? kBars[static_cast<std::size_t>(std::lround(7 * part))] : "!";
  }
  return bars;
}

/// The newest complete checkpoint, and when it was completed.
std::optional<std::pair<std::string, double>> newest_checkpoint(const fs::path& run, double now) {
  std::optional<std::pair<std::string, double>> newest;
  std::error_code error;
  for (fs::directory_iterator at(run, error), end; !error && at != end; at.increment(error)) {
    const auto name = at->path().filename().string();
    std::error_code missing;
    const auto completed = fs::last_write_time(at->path() / "index.json", missing);
    if (!name.starts_with("step-") || missing) continue;
    if (newest && std::pair(newest->first.size(), newest->first) >= std::pair(name.size(), name)) continue;
    const std::chrono::duration<double> age = fs::file_time_type::clock::now() - completed;
    newest = {name, now - age.count()};
  }
  return newest;
}

std::string best_so_far(const fs::path& run) {
  std::error_code error;
  const auto file = run / "best/best.json";
  if (!fs::exists(file, error)) return {};
  const auto best = nlohmann::json::parse(read_text_file(file), nullptr, false);
  if (!best.is_object() || !best.contains("metric") || !best["metric"].is_string() || !best.contains("value") ||
      !best["value"].is_number() || !best.contains("step") || !best["step"].is_number_integer())
    return {};
  return best["metric"].get<std::string>() + " " + in_digits(best["value"]) + " at step " +
         std::to_string(best["step"].get<std::int64_t>());
}

class Rows {
 public:
  void row(const std::string& name, const std::string& text) {
    if (!text.empty()) text_ << std::left << std::setw(12) << printable_line(name) << ' ' << text << '\n';
  }
  void line(const std::string& text) { text_ << text << '\n'; }
  [[nodiscard]] std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
};

std::string page_of(const fs::path& run, const RunFigures& figures, double now) {
  Rows rows;
  const double age = now - figures.time();
  rows.line(printable_line(run.string()) + ": " +
            (figures.time() == 0 ? std::string("no figures yet")
                                 : "figures of " + in_time(age) + " ago" +
                                       (age > kStale ? "; it has ended, waits, or has figures seldom" : "")));
  auto rest = figures.newest();
  const auto taken = [&](const std::string& name, auto text_of) {
    const auto found = rest.find(name);
    if (found == rest.end()) return std::string();
    auto text = std::isfinite(found->second.value) ? text_of(found->second.value) : std::string("not finite");
    rest.erase(found);
    return text;
  };
  if (figures.time() != 0) rows.row("step", std::to_string(figures.step()));
  const auto loss = taken("loss", in_digits);
  rows.row("loss", loss.empty() ? loss : loss + "  " + drawn(figures.losses()));
  for (const auto& [name, figure] : figures.newest()) {
    constexpr std::string_view kSpeed = "_per_second";
    if (name.ends_with(kSpeed)) rows.row(name.substr(0, name.size() - kSpeed.size()) + "/s", taken(name, in_digits));
  }
  rows.row("MFU", taken("mfu", in_percent));
  rows.row("memory", taken("memory_gib", [](double gib) { return in_digits(gib) + " GiB of the fullest rank"; }));
  auto goodput = taken("goodput", in_percent);
  const char* before = "; ";
  for (const auto* kind : {"planning", "saving", "restarting", "data", "waiting"}) {
    const auto share = taken(std::string("time_") + kind, in_percent);
    if (!share.empty()) goodput += std::exchange(before, ", ") + std::string(kind) + " " + share;
  }
  rows.row("goodput", goodput);
  rows.row("slowest", taken("slowest_rank", [](double rank) { return "rank " + in_digits(rank); }));
  const auto checkpoint = newest_checkpoint(run, now);
  rows.row("checkpoint", checkpoint
                             ? printable_line(checkpoint->first) + ", " + in_time(now - checkpoint->second) + " ago"
                             : "none yet");
  rows.row("best", printable_line(best_so_far(run)));
  for (const auto& [name, figure] : rest)
    rows.row(name,
             in_digits(figure.value) + (figure.step < figures.step() ? " at step " + std::to_string(figure.step) : ""));
  return rows.text();
}

/// Shows the page again and again, in place, until the process is interrupted.
[[noreturn]] void watch(const fs::path& run, RunFigures& figures, double interval) {
  while (true) {
    std::string shown = "\x1b[H\x1b[2J";
    try {
      figures.look();
      shown += page_of(run, figures, seconds_since_1970());
    } catch (const Error& error) {  // a later start replaces the file
      shown += printable_line(error.what()) + "\n";
    }
    static_cast<void>(!::write(STDOUT_FILENO, shown.data(), shown.size()));
    std::this_thread::sleep_for(std::chrono::duration<double>(interval));
  }
}

}  // namespace

int top_command(const TopArguments& arguments, std::ostream& out) {
  const fs::path run = arguments.run;
  if (!fs::is_directory(run)) throw InvalidArgument("'" + run.string() + "' is no folder of a run");
  RunFigures figures(run / "metrics.jsonl");
  figures.look();
  if (!arguments.once && ::isatty(STDOUT_FILENO) != 0) watch(run, figures, arguments.interval);
  out << page_of(run, figures, seconds_since_1970());
  return kDone;
}

}  // namespace autopar::tool
