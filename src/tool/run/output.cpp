#include "output.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <autopar/core/error.hpp>

namespace autopar::tool {

namespace {

/// The child's end of a new terminal that passes bytes unchanged; of the same size as `like`.
FileDescriptor terminal_of(int parent, int like) {
  std::array<char, 64> name{};
  if (::grantpt(parent) != 0 || ::unlockpt(parent) != 0 || ::ptsname_r(parent, name.data(), name.size()) != 0)
    return {};
  FileDescriptor child(::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios mode{};
  if (!child || ::tcgetattr(child.number(), &mode) != 0) return {};
  ::cfmakeraw(&mode);
  if (::tcsetattr(child.number(), TCSANOW, &mode) != 0) return {};
  winsize size{};
  if (::ioctl(like, TIOCGWINSZ, &size) == 0) ::ioctl(child.number(), TIOCSWINSZ, &size);
  return child;
}

}  // namespace

void LineCutter::add(std::string_view bytes) {
  for (const char byte : bytes) {
    if (byte == '\n') {
      end_line();
      continue;
    }
    if (is_at_begin_) line_.clear();
    is_at_begin_ = byte == '\r';
    if (!is_at_begin_ && line_.size() < kLongest) line_ += byte;
  }
}

void LineCutter::end_line() {
  take_(line_);
  line_.clear();
  is_at_begin_ = false;
}

void LineCutter::finish() {
  if (!line_.empty()) end_line();
}

void LastLines::add(std::string_view line) {
  if (lines_.size() == kMost) lines_.pop_front();
  lines_.emplace_back(line);
}

ChildStream::ChildStream(int to) {
  if (::isatty(to) != 0) {
    parent = FileDescriptor(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
    if (parent) child = terminal_of(parent.number(), to);
  }
  if (!child) {  // also where the system has no terminal left
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw InvalidArgument(std::string("no pipe can be made: ") + std::strerror(errno));
    parent = FileDescriptor(ends[0]);
    child = FileDescriptor(ends[1]);
  }
  ::fcntl(parent.number(), F_SETFL, ::fcntl(parent.number(), F_GETFL) | O_NONBLOCK);
}

int Relay::polled() const { return waiting_.empty() ? stream_.parent.number() : to_; }

short Relay::events() const { return waiting_.empty() ? POLLIN : POLLOUT; }

void Relay::work() {
  if (waiting_.empty()) read();
  if (!waiting_.empty()) write();
}

void Relay::stop_reading() {
  stream_.parent.close();
  lines_.finish();
}

void Relay::copy_size() const {
  winsize size{};
  if (stream_.parent && ::ioctl(to_, TIOCGWINSZ, &size) == 0) ::ioctl(stream_.parent.number(), TIOCSWINSZ, &size);
}

void Relay::end_line() const {
  if (is_within_line_ && ::isatty(to_) != 0) static_cast<void>(!::write(to_, "\n", 1));
}

void Relay::read() {
  if (!stream_.parent) return;
  std::array<char, 1 << 16> bytes;
  const auto got = ::read(stream_.parent.number(), bytes.data(), bytes.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return stop_reading();  // EIO: the last one has closed the child's terminal
  const std::string_view read(bytes.data(), static_cast<std::size_t>(got));
  lines_.add(read);
  if (!is_broken_) waiting_ = read;
}

// So many bytes a pipe that is ready takes without blocking, and a call of poll lies between two of them.
void Relay::write() {
  constexpr std::size_t kAtOnce = 4096;
  pollfd ready{to_, POLLOUT, 0};
  while (!waiting_.empty() && ::poll(&ready, 1, 0) == 1) {
    const auto written = ::write(to_, waiting_.data(), std::min(waiting_.size(), kAtOnce));
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (written <= 0) {  // nobody reads, or the disk is full: the training goes on
      is_broken_ = true;
      waiting_.clear();
      return;
    }
    is_within_line_ = waiting_[static_cast<std::size_t>(written) - 1] != '\n';
    waiting_.erase(0, static_cast<std::size_t>(written));
  }
}

}  // namespace autopar::tool
