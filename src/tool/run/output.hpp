#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

#include <autopar/io/file_descriptor.hpp>

namespace autopar::tool {

/// Cuts bytes into lines. Of a line that is written over with `\r`, as progress bars do, the last text remains.
class LineCutter {
 public:
  using Take = std::function<void(std::string_view)>;
  explicit LineCutter(Take take) : take_(std::move(take)) {}

  void add(std::string_view bytes);
  /// What is left without an end of line.
  void finish();

 private:
  void end_line();

  static constexpr std::size_t kLongest = 4096;  ///< the rest of a longer line is left out
  Take take_;
  std::string line_;
  bool is_at_begin_ = false;  ///< behind a '\r': what comes next writes the line over
};

/// The last lines of some output.
class LastLines {
 public:
  void add(std::string_view line);
  [[nodiscard]] const std::deque<std::string>& lines() const { return lines_; }

 private:
  static constexpr std::size_t kMost = 200;
  std::deque<std::string> lines_;
};

/// Where a child writes: a pipe, or a terminal of its own where `to` is one, so that it sees what the user sees.
struct ChildStream {
  explicit ChildStream(int to);
  FileDescriptor child, parent;
};

/// Hands a child's output on as it comes and lets its lines be seen. It never blocks: what cannot be written yet waits,
/// and the child with it.
class Relay {
 public:
  /// @param to  where the output goes, not owned
  Relay(int to, LineCutter::Take take) : stream_(to), to_(to), lines_(std::move(take)) {}

  /// For the child's start; closed by `started`.
  [[nodiscard]] int child_end() const { return stream_.child.number(); }
  void started() { stream_.child.close(); }

  /// What poll waits for: to read, or, where something is left to write, to write. -1: nothing.
  [[nodiscard]] int polled() const;
  [[nodiscard]] short events() const;
  void work();
  /// Reads no more, though somebody may have the other end open still.
  void stop_reading();

  [[nodiscard]] bool is_reading() const { return static_cast<bool>(stream_.parent); }
  [[nodiscard]] bool is_done() const { return !stream_.parent && waiting_.empty(); }
  /// The terminal's size goes to the child's.
  void copy_size() const;
  /// What a terminal shows next begins a line, also behind a progress bar.
  void end_line() const;

 private:
  void read();
  void write();

  ChildStream stream_;
  int to_;
  LineCutter lines_;
  std::string waiting_;  ///< read, not written yet
  bool is_broken_ = false, is_within_line_ = false;
};

}  // namespace autopar::tool
