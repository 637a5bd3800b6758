#include "fault_report.hpp"

#include <charconv>
#include <cstddef>

#include "process.hpp"

namespace autopar::tool {

namespace {

constexpr auto kNowhere = std::string_view::npos;

/// Takes a line apart from the left.
class Words {
 public:
  explicit Words(std::string_view text) : text_(text) {}

  [[nodiscard]] std::string_view rest() const { return text_; }

  /// Goes behind the next `mark`.
  bool skip_to(std::string_view mark) {
    const auto at = text_.find(mark);
    if (at == kNowhere) return false;
    text_.remove_prefix(at + mark.size());
    return true;
  }
  bool skip(std::string_view mark) {
    if (!text_.starts_with(mark)) return false;
    text_.remove_prefix(mark.size());
    return true;
  }
  std::optional<int> number() {
    int value = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0) return std::nullopt;
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return value;
  }
  /// What stands before `end`, which is left behind.
  std::optional<std::string> until(std::string_view end) {
    const auto at = text_.find(end);
    if (at == kNowhere) return std::nullopt;
    std::string before(text_.substr(0, at));
    text_.remove_prefix(at + end.size());
    return before;
  }

 private:
  std::string_view text_;
};

/// "rank 2 has waited 2.0 s for rank 1 in 'step 3' and gives up (stall_timeout)": rank 1.
std::optional<Fault> stall_in(std::string_view line) {
  Words words(line);
  if (!words.skip_to(" has waited ") || !words.skip_to(" for rank ")) return std::nullopt;
  const auto rank = words.number();
  if (!rank || !words.skip(" in '")) return std::nullopt;
  const auto action = words.until("' and gives up (");
  if (!action) return std::nullopt;
  return Fault{FaultKind::kStalled, rank, *action, "the others have waited for it in vain"};
}

/// "rank 0 gave up waiting for rank 1 (stall_timeout)", said of `action`: rank 1.
std::optional<Fault> device_stall_in(std::string_view message, const std::string& action) {
  Words words(message);
  if (!words.skip_to(" gave up waiting for ") || words.rest().find("(stall_timeout)") == kNowhere) return std::nullopt;
  const bool names = words.skip("rank ");
  return Fault{FaultKind::kStalled, names ? words.number() : std::nullopt, action,
               "the others have waited for it in vain"};
}

/// "rank 2 has waited 2 s for MPI to start and gives up (AUTOPAR_START_TIMEOUT): rank 1 has not begun to make a World"
std::optional<Fault> start_stall_in(std::string_view line) {
  Words words(line);
  if (!words.skip_to(" for MPI to start and gives up (AUTOPAR_START_TIMEOUT): ")) return std::nullopt;
  Words who(words.rest());
  const auto rank = who.skip("rank ") ? who.number() : std::nullopt;
  const auto message = words.until(";");
  const bool is_one = rank && who.rest().starts_with(" has not begun");
  return Fault{FaultKind::kStalled, is_one ? rank : std::nullopt, "start of MPI",
               is_one ? "has not begun to make a World" : message.value_or(std::string(words.rest()))};
}

/// "rank 1 failed in 'step 3': out of memory"; the words are behind "rank ".
std::optional<Fault> failure_in(Words words) {
  const auto rank = words.number();
  if (!rank || !words.skip(" failed")) return std::nullopt;
  std::string action;
  if (words.skip(" in '")) {
    const auto read = words.until("': ");
    if (!read) return std::nullopt;
    action = *read;
  } else if (!words.skip(": ")) {
    return std::nullopt;
  }
  Fault fault{FaultKind::kTold, rank, action, std::string(words.rest())};
  if (auto stall = device_stall_in(words.rest(), action)) return stall;
  if (words.rest().starts_with("its process has ended")) {
    fault.kind = FaultKind::kEnded;
    fault.message = "its process has ended without leaving the World";
    if (Words where(words.rest()); where.skip_to(" is in or after '")) fault.action = where.until("'").value_or("");
    if (Words where(words.rest()); where.skip_to("(noticed by rank ") && where.skip_to(" in '"))
      fault.action = where.until("');").value_or("");
    return fault;
  }
  if (const auto end = fault.message.find(" (noticed by rank "); end != kNowhere) fault.message.erase(end);
  return fault;
}

/// A line of autopar's log is "[12:31:02.123 error rank 0/4 World] …".
std::optional<Fault> logged_failure_in(std::string_view line) {
  Words words(line);
  if (!words.skip_to(" error rank ") || !words.number() || !words.skip("/") || !words.skip_to("] rank "))
    return std::nullopt;
  return failure_in(words);
}

/// What World throws on the ranks that did not fail, however the program prints it.
std::optional<Fault> thrown_failure_in(std::string_view line) {
  if (line.find("; the ranks cannot go on together: ") == kNowhere) return std::nullopt;
  for (Words words(line); words.skip_to("rank ");) {
    if (auto fault = failure_in(words)) return fault;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Fault> fault_in(std::string_view line) {
  if (auto fault = stall_in(line)) return fault;
  if (auto fault = start_stall_in(line)) return fault;
  if (auto fault = logged_failure_in(line)) return fault;
  return thrown_failure_in(line);
}

void FaultReport::read(std::string_view line) {
  if (!fault_) fault_ = fault_in(line);
  read_hydra(line);
  read_open_mpi(line);
  Words abort(line);  // "Abort(3) on node 2 (rank 2 in comm 496): application called MPI_Abort(…"
  if (abort_ || !abort.skip("Abort(")) return;
  const auto status = abort.number();
  if (status && abort.skip(") on node ") && abort.rest().find("application called MPI_Abort(") != kNowhere)
    abort_ = status;
}

// =   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
// =   PID 9022 RUNNING AT vm, which may be one that was killed because of another
// =   KILLED BY SIGNAL: 9 (Killed), or EXIT CODE: 9
// YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
void FaultReport::read_hydra(std::string_view line) {
  Words words(line);
  if (words.skip("YOUR APPLICATION TERMINATED WITH THE EXIT STRING: ")) {
    is_lost_ = true;
    if (!signal_ && words.skip_to("(signal ")) signal_ = words.number();
  } else if (words.skip("=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES")) {
    is_lost_ = true;
  } else if (words.skip("=   KILLED BY SIGNAL: ")) {
    if (!signal_) signal_ = words.number();
  }
}

// mpirun noticed that process rank 2 with PID 0 on node vm exited on signal 9 (Killed).
void FaultReport::read_open_mpi(std::string_view line) {
  Words words(line);
  if (!words.skip_to(" noticed that process rank ")) return;
  const auto rank = words.number();
  if (!rank || !words.skip_to(" exited on signal ")) return;
  is_lost_ = true;
  if (!signal_) signal_ = words.number();
  blame(*rank);
}

void FaultReport::blame(int rank) {
  if (launchers_) return;
  const auto how = signal_ ? "was killed by signal " + std::to_string(*signal_) : std::string("has ended");
  launchers_ = Fault{FaultKind::kEnded, rank, "", "its process " + how + ""};
}

// Hydra's own status is that of any process, also of one that it killed because another had failed.
int FaultReport::status(std::optional<int> launcher_status) const {
  constexpr int kMostStatus = 255, kUnclear = 1, kOfLauncher = 255;
  if (launcher_status == 0) return 0;
  const bool is_killed = !fault() || fault()->kind == FaultKind::kEnded;
  if (is_killed && signal_ && *signal_ > 0 && *signal_ < kShellSignal) return kShellSignal + *signal_;
  if (abort_ && *abort_ > 0 && *abort_ <= kMostStatus) return *abort_;
  const bool is_unclear = !launcher_status || signal_ || (fault() && launcher_status == kOfLauncher);
  return is_unclear ? kUnclear : *launcher_status;
}

std::string described(const Fault& fault) {
  const std::string who = fault.rank ? "rank " + std::to_string(*fault.rank) : "a rank";
  return who + (fault.kind == FaultKind::kStalled ? " stopped" : " failed") +
         (fault.action.empty() ? "" : " in '" + fault.action + "'") + ": " + fault.message;
}

}  // namespace autopar::tool
