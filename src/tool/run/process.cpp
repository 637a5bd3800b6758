#include "process.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <autopar/core/error.hpp>
#include <autopar/io/file_descriptor.hpp>

namespace autopar::tool {

namespace {

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const auto& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// What the child does between fork and exec: calls that are safe there alone.
/// @return errno of what failed
int become(char* const* arguments, char* const* environment, int out, int err, const sigset_t& mask, ::pid_t parent) {
  ::setpgid(0, 0);
  if (::prctl(PR_SET_PDEATHSIG, SIGTERM) != 0) return errno;
  if (::getppid() != parent) ::_exit(1);  // it ended before
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing < 0 || ::dup2(nothing, STDIN_FILENO) < 0) return errno;
  // Both are copied beyond the standard numbers first, as one may be the other's.
  const int kept_out = ::fcntl(out, F_DUPFD_CLOEXEC, 3), kept_err = ::fcntl(err, F_DUPFD_CLOEXEC, 3);
  if (kept_out < 0 || kept_err < 0) return errno;
  if (::dup2(kept_out, STDOUT_FILENO) < 0 || ::dup2(kept_err, STDERR_FILENO) < 0) return errno;
  if (nothing > STDERR_FILENO) ::close(nothing);
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  ::execvpe(arguments[0], arguments, environment);
  return errno;
}

}  // namespace

Process::Process(const Command& command, const std::vector<std::string>& environment, int out, int err,
                 const Signals& signals) {
  const auto arguments = pointers_to(command), variables = pointers_to(environment);
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) throw InvalidArgument(std::string("no pipe can be made: ") + std::strerror(errno));
  const FileDescriptor failure(ends[0]);
  FileDescriptor told(ends[1]);
  const ::pid_t parent = ::getpid();
  id_ = ::fork();
  if (id_ < 0) throw InvalidArgument(std::string("no process can be started: ") + std::strerror(errno));
  if (id_ == 0) {
    const int reason = become(arguments.data(), variables.data(), out, err, signals.original_mask(), parent);
    static_cast<void>(!::write(told.number(), &reason, sizeof reason));
    ::_exit(127);
  }
  ::setpgid(id_, id_);  // both do so: neither waits for the other
  told.close();
  int reason = 0;
  ssize_t got = 0;
  do got = ::read(failure.number(), &reason, sizeof reason);
  while (got < 0 && errno == EINTR);
  if (got == 0) return;
  ::waitpid(id_, nullptr, 0);
  throw InvalidArgument("'" + command.front() + "' cannot be started: " + std::strerror(reason));
}

Process::~Process() {
  if (status_) return;
  send_to_group(SIGKILL);
  ::waitpid(id_, nullptr, 0);
}

std::optional<int> Process::wait_status() {
  int status = 0;
  if (!status_ && ::waitpid(id_, &status, WNOHANG) == id_) status_ = status;
  return status_;
}

void Process::send(int signal) const {
  if (!status_) ::kill(id_, signal);
}

void Process::send_to_group(int signal) const {
  if (!status_) ::kill(-id_, signal);
}

std::vector<std::string> inherited_environment() {
  std::vector<std::string> variables;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable)
    variables.emplace_back(*variable);
  return variables;
}

int shell_status(int wait_status) {
  return WIFSIGNALED(wait_status) ? kShellSignal + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

}  // namespace autopar::tool
