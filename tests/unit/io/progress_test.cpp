#include <autopar/io/progress.hpp>

#include <catch_shim.hpp>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>

#include <fcntl.h>
#include <pty.h>
#include <unistd.h>

using namespace autopar;

namespace progress_test {

/// What was shown, and who waits for it.
struct Screen {
  std::mutex mutex;
  std::condition_variable changed;
  std::string text;

  void show(std::string_view more) {
    const std::lock_guard lock(mutex);
    text += more;
    changed.notify_all();
  }
  /// Until it is there: a test that hangs here is stopped by its limit.
  void await(const std::string& part) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return text.find(part) != std::string::npos; });
  }
};

TEST_CASE("Progress: slow work shows its phase, and erases the line") {
  Screen screen;
  {
    Progress progress("planning", {[&](std::string_view text) { screen.show(text); }}, Seconds(0));
    progress.now("searching cuts of 4 blocks");
    screen.await("\r\x1b[Kplanning: searching cuts of 4 blocks, ");
    progress.now("phase \x1b[2J two");
    screen.await("phase \\u001b[2J two, ");
    CHECK(screen.text.find("\x1b[2J") == std::string::npos);
  }
  CHECK(screen.text.ends_with(" s\r\x1b[K"));
}

TEST_CASE("Progress: without a terminal one line is written once") {
  Screen screen;
  {
    Progress progress("planning", {[&](std::string_view text) { screen.show(text); }, /*is_terminal=*/false},
                      Seconds(0));
    screen.await(" s so far\n");
    progress.now("another phase");
  }
  CHECK(screen.text.starts_with("planning: "));
  CHECK(std::count(screen.text.begin(), screen.text.end(), '\n') == 1);
  CHECK(screen.text.find("another phase") == std::string::npos);
}

TEST_CASE("Progress: silent for fast work or without a screen") {
  std::string shown;
  {
    Progress progress("planning", {[&](std::string_view text) { shown += text; }}, Seconds(3600));
    progress.now("searching");
  }
  CHECK(shown.empty());
  Progress silent("planning", {}, Seconds(0));
  CHECK_NOTHROW(silent.now("searching"));
}

TEST_CASE("standard_error: tells whether it is a terminal") {
  const int before = ::dup(STDERR_FILENO);
  const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  int keyboard = -1, terminal_end = -1;
  REQUIRE(::openpty(&keyboard, &terminal_end, nullptr, nullptr, nullptr) == 0);
  ::dup2(null, STDERR_FILENO);
  const auto on_null = standard_error();
  ::dup2(terminal_end, STDERR_FILENO);
  const auto screen = standard_error();
  screen.show("shown");
  ::dup2(before, STDERR_FILENO);
  char got[16] = {};
  const auto size = ::read(keyboard, got, sizeof got - 1);
  for (const int descriptor : {before, null, keyboard, terminal_end}) ::close(descriptor);
  CHECK_FALSE(on_null.is_terminal);
  CHECK(screen.is_terminal);
  CHECK(size == 5);
  CHECK(std::string(got) == "shown");
}

}  // namespace progress_test
