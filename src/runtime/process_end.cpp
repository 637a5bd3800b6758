#include "process_end.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <vector>

namespace autopar::detail {
namespace {

/// Who listens. Never destroyed: the process may end while it is in use.
struct Listeners {
  std::mutex mutex;
  std::vector<ProcessEndListener*> list;
  std::terminate_handler next = nullptr;
  pid_t process = 0;

  [[nodiscard]] std::vector<ProcessEndListener*> of_this_process() {
    const std::lock_guard lock(mutex);
    return getpid() == process ? list : std::vector<ProcessEndListener*>{};
  }
};

Listeners& listeners() {
  static Listeners& only = *new Listeners;
  return only;
}

void at_exit(int status, void*) {
  const auto list = listeners().of_this_process();
  if (list.empty()) return;
  for (ProcessEndListener* each : list) each->process_exits(status);
  // Success would be a lie, and a handler of exit can change the status in no other way.
  std::fflush(nullptr);
  ::_exit(status != 0 ? status : EXIT_FAILURE);
}

std::string text_of_current_exception() {
  const auto current = std::current_exception();
  if (!current) return "std::terminate was called";
  try {
    std::rethrow_exception(current);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

[[noreturn]] void at_terminate() {
  const auto list = listeners().of_this_process();
  if (!list.empty()) {
    const std::string message = text_of_current_exception();
    bool is_said = false;
    for (ProcessEndListener* each : list) is_said = each->process_terminates(message) || is_said;
    if (is_said) std::abort();
  }
  listeners().next();
  std::abort();
}

}  // namespace

void ProcessEndListener::listen_for_process_end() {
  auto& all = listeners();
  const std::lock_guard lock(all.mutex);
  if (all.next == nullptr) {
    all.next = std::set_terminate(at_terminate);
    ::on_exit(at_exit, nullptr);
  }
  if (all.process != getpid()) all.list.clear();  // a forked child's list is its parent's
  all.process = getpid();
  all.list.push_back(this);
}

void ProcessEndListener::stop_listening() noexcept {
  auto& all = listeners();
  const std::lock_guard lock(all.mutex);
  std::erase(all.list, this);
}

}  // namespace autopar::detail
