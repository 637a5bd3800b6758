#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include <unistd.h>

/// A bar with samples/s: redrawn in place on a terminal, one line per tenth of the work elsewhere.
class Progress {
 public:
  Progress(std::string title, int64_t total, bool visible)
      : title_(std::move(title)), total_(total), visible_(visible), terminal_(isatty(STDOUT_FILENO) != 0) {}

  void advance(int64_t samples, const std::string& text) {
    done_ += samples;
    if (!visible_) return;
    const int64_t tenth = done_ * 10 / total_;
    if (!terminal_ && tenth == shown_) return;
    shown_ = tenth;
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    constexpr int kWidth = 30;
    const auto filled = static_cast<size_t>(kWidth * done_ / total_);
    const auto bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
    std::printf("%s%s [%s] %5.1f %%  %7.0f samples/s  %s%s", terminal_ ? "\r" : "", title_.c_str(), bar.c_str(),
                100.0 * static_cast<double>(done_) / static_cast<double>(total_), static_cast<double>(done_) / seconds,
                text.c_str(), terminal_ && done_ < total_ ? "" : "\n");
    std::fflush(stdout);
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::string title_;
  int64_t total_;
  bool visible_;
  bool terminal_;
  int64_t done_ = 0;
  int64_t shown_ = -1;
  Clock::time_point start_ = Clock::now();
};
