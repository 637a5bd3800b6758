#include <autopar/training/progress.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "terminal.hpp"

namespace autopar::training {

namespace {

constexpr std::chrono::milliseconds kBetweenDraws{50};
constexpr std::chrono::seconds kBetweenLines{10};
constexpr double kOfLatest = 0.3;  // what the latest interval counts in the speed

template <class... Numbers>
std::string printed(const char* format, Numbers... numbers) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, numbers...);
  return text.data();
}

}  // namespace

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  if (seconds < 60) return printed("%.1f s", seconds);
  const auto minutes = std::llround(seconds / 60), hours = minutes / 60, days = hours / 24;
  if (hours == 0) return printed("%lld min", minutes);
  if (days == 0) return printed("%lld h %lld min", hours, minutes % 60);
  return printed("%lld d %lld h", days, hours % 24);
}

std::string short_number(double number) {
  const char* suffixes = " kMGT";
  while (number >= 999.5 && suffixes[1] != '\0') {
    number /= 1000;
    ++suffixes;
  }
  const int digits = number < 9.995 ? 2 : number < 99.95 ? 1 : 0;
  auto text = printed("%.*f", digits, number);
  if (*suffixes != ' ') text += *suffixes;
  return text;
}

Progress::Progress(std::string title, std::string unit, std::int64_t total, bool visible, std::int64_t done)
    : title_(title.empty() ? std::string() : title + " "),
      unit_(std::move(unit)),
      total_(total),
      done_(done),
      visible_(visible),
      terminal_(visible && is_seen_on_terminal()) {}

Progress::~Progress() {
  if (drawn_) std::puts("");
}

void Progress::count(std::int64_t units) {
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - latest_).count();
  const double speed = seconds > 0 ? static_cast<double>(units) / seconds : speed_;
  speed_ = speed_ == 0 ? speed : kOfLatest * speed + (1 - kOfLatest) * speed_;
  latest_ = now;
  done_ += units;
}

bool Progress::is_line_due() const {
  return terminal_ || done_ >= total_ || shown_ == Clock::time_point() || Clock::now() - shown_ >= kBetweenLines;
}

void Progress::show(const std::string& text) {
  if (!visible_) return;
  const auto now = Clock::now();
  if (terminal_ && done_ < total_ && now - shown_ < kBetweenDraws) return;
  shown_ = now;
  draw(text);
}

void Progress::say(const std::string& text) {
  if (!visible_) return;
  std::printf("%s%s\n", drawn_ ? "\r\x1b[K" : "", text.c_str());
  std::fflush(stdout);
  drawn_ = false;
}

double Progress::seconds_left() const { return static_cast<double>(total_ - done_) / speed_; }

void Progress::draw(const std::string& text) {
  constexpr int kWidth = 20;
  const double part = total_ > 0 ? std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_)) : 1;
  const auto filled = static_cast<std::size_t>(kWidth * part);
  const auto bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  const auto left = done_ < total_ ? "  " + duration_text(seconds_left()) + " left" : std::string();
  drawn_ = terminal_ && done_ < total_;
  std::printf("%s%s[%s] %5.1f %%  %s %s/s  %s%s%s", terminal_ ? "\r\x1b[K" : "", title_.c_str(), bar.c_str(),
              100 * part, short_number(speed_).c_str(), unit_.c_str(), text.c_str(), left.c_str(), drawn_ ? "" : "\n");
  std::fflush(stdout);
}

}  // namespace autopar::training
