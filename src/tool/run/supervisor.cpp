#include "supervisor.hpp"

#include <array>
#include <cstdint>
#include <utility>

#include <csignal>

#include <sys/random.h>

#include <autopar/core/error.hpp>
#include <autopar/core/printable.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/supervision.hpp>
#include <autopar/io/wall_clock.hpp>

#include "leftovers.hpp"
#include "tool/tool.hpp"

namespace autopar::tool {

namespace {

constexpr double kKillLimit = 30;  ///< seconds until a killed process is gone

/// 16 hexadecimal digits.
std::string random_name() {
  std::array<unsigned char, 8> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw InvalidArgument("the system gives no random numbers");
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string name;
  for (const auto byte : bytes) {
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name;
}

std::string count_of(int count, const std::string& what) {
  return std::to_string(count) + ' ' + what + (count == 1 ? "" : "s");
}

std::string step_of(const StartOutcome& outcome) {
  return outcome.last ? "at step " + std::to_string(outcome.last->step) : "before its first step";
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const auto& text : texts) all += (all.empty() ? "" : ", ") + text;
  return all;
}

/// Programs that were asked to end save and leave with these (training::Interrupt). A rank that such a signal killed
/// has not saved.
bool is_answer_to_signal(const StartOutcome& outcome) {
  const int status = outcome.launcher_status;
  const bool is_such =
      status == kShellSignal + SIGINT || status == kShellSignal + SIGTERM || status == kShellSignal + SIGUSR1;
  return is_such && !outcome.is_cut_off && !outcome.report.is_lost();
}

}  // namespace

Supervisor::Supervisor(RunSettings settings, Launcher launcher, std::vector<HostSlots> hosts, Console console,
                       Signals& signals)
    : settings_(std::move(settings)),
      launcher_(std::move(launcher)),
      folder_(std::filesystem::absolute(settings_.folder).lexically_normal()),
      console_(console),
      signals_(signals),
      job_(random_name()),
      watch_(std::move(hosts), settings_.ranks, launcher_),
      starts_({settings_.ranks, settings_.fewest(), settings_.max_restarts}),
      records_(folder_) {}

std::vector<std::string> Supervisor::environment(int start) const {
  const std::string name = std::string(kSupervisionVariable) + "=";
  auto variables = inherited_environment();
  std::erase_if(variables, [&](const auto& variable) { return variable.starts_with(name); });
  variables.push_back(name + to_text({folder_, job_, start, settings_.may_change_batch}));
  return variables;
}

int Supervisor::run() {
  const SnapshotFolder snapshots(snapshot_folder(job_));
  if (const auto next = place(); next != NextStart::kRestart) {
    if (next == NextStart::kInterrupted) return kShellSignal + signals_.first_request();
    const auto why = words_of(next, {}, kTrouble);
    throw InvalidArgument(why + (watch_.complaint().empty() ? "" : " (" + watch_.complaint() + ")"));
  }
  if (!watch_.losses().empty()) console_.say(printable_line(restart_words()));
  for (;;) {
    StartRecord record;
    const auto outcome = start_once(record);
    const bool is_asked = signals_.first_request() != 0;
    const auto next = after(outcome, record.status);
    const bool is_asked_since = !is_asked && signals_.first_request() != 0;
    const int status = is_asked_since ? kShellSignal + signals_.first_request() : record.status;
    record.next = words_of(next, outcome, status);
    this->record(record, outcome);
    if (next != NextStart::kFinished || starts_.number() > 1) console_.say(printable_line(record.next));
    if (next == NextStart::kRestart) continue;
    if (watch_.are_named()) watch_.remove_elsewhere(snapshots.path(), environment(starts_.number()), signals_);
    return status;
  }
}

NextStart Supervisor::place() {
  const int next_start = starts_.number() + 1;
  watch_.look(environment(next_start), signals_);
  kill_processes_of(job_, kKillLimit);  // what those that do not answer have left here
  if (signals_.first_request() != 0) return NextStart::kInterrupted;
  const auto usable = watch_.usable();
  const auto next = starts_.place(slots_of(usable));
  if (next == NextStart::kRestart) hosts_ = first_slots(usable, starts_.ranks());
  return next;
}

StartOutcome Supervisor::start_once(StartRecord& record) {
  starts_.begin();
  std::string hostfile;
  if (watch_.are_named()) {
    hostfile = (folder_ / "hosts").string();
    write_text_file(hostfile, hostfile_text(hosts_, launcher_.kind));
  }
  record = {job_,
            launcher_.job(starts_.ranks(), hostfile, settings_.program),
            starts_.ranks(),
            hosts_,
            seconds_since_1970(),
            0,
            0,
            {}};
  OneStart start({launcher_.kind, record.command, environment(starts_.number()), job_, folder_ / kStepFile}, console_,
                 signals_);
  auto outcome = start.run();
  record.end = seconds_since_1970();
  record.status = status_of(outcome);
  return outcome;
}

// Hydra may lose the ranks' status when it has handed a signal on: to start a run that is done costs little. Other
// launchers get another signal than this process did.
int Supervisor::status_of(const StartOutcome& outcome) const {
  const int asked = signals_.first_request();
  const int status = outcome.report.status(outcome.is_cut_off ? std::nullopt : std::optional(outcome.launcher_status));
  const bool is_answer =
      outcome.is_cut_off || status == 0 || status == kShellSignal + first_signal(launcher_.kind, asked);
  return asked != 0 && is_answer ? kShellSignal + asked : status;
}

NextStart Supervisor::after(const StartOutcome& outcome, int status) {
  const bool is_asked = signals_.first_request() != 0 || is_answer_to_signal(outcome);
  const std::optional<std::int64_t> step = outcome.last ? std::optional(outcome.last->step) : std::nullopt;
  const auto next = starts_.after({status, step, is_asked});
  if (status != 0 && !is_asked) say_end(outcome, status);
  const bool are_gone = kill_processes_of(job_, kKillLimit).empty();
  if (next != NextStart::kRestart) return next;
  return are_gone ? place() : NextStart::kNotEnded;
}

void Supervisor::say_end(const StartOutcome& outcome, int status) const {
  std::string text = "start " + std::to_string(starts_.number()) + " of at most " + std::to_string(starts_.most()) +
                     " has failed " + step_of(outcome) + " with status " + std::to_string(status) + ": ";
  const auto& fault = outcome.report.fault();
  text += fault ? described(*fault) : "no rank has said why";
  if (outcome.is_cut_off) text += "; mpiexec did not end and was killed";
  console_.say(printable_line(text));
}

std::string Supervisor::words_of(NextStart next, const StartOutcome& outcome, int status) const {
  const std::string ends = ": the run ends with status " + std::to_string(status);
  switch (next) {
    case NextStart::kRestart:
      return restart_words();
    case NextStart::kFinished:
      return "done, with " + count_of(starts_.number(), "start");
    case NextStart::kInterrupted:
      return "asked to end" + ends + "; the same command goes on";
    case NextStart::kSameFault:
      return "the same fault " + (outcome.last ? step_of(outcome) : "before any step") + " twice" + ends;
    case NextStart::kNoneLeft:
      return count_of(settings_.max_restarts, "restart") + ", as --max-restarts allows" + ends;
    case NextStart::kNotEnded:
      return "processes of the last start cannot be killed" + ends;
    case NextStart::kTooFewSlots:
      break;
  }
  return count_of(slots_of(watch_.usable()), "slot") + " left for at least " + count_of(settings_.fewest(), "rank") +
         ", as " + joined(watch_.losses()) + ends;
}

std::string Supervisor::restart_words() const {
  std::string text = (starts_.number() == 0 ? "starting with " : "restarting with ") +
                     count_of(starts_.ranks(), "rank") + ", start " + std::to_string(starts_.number() + 1) +
                     " of at most " + std::to_string(starts_.most());
  if (starts_.ranks() < settings_.ranks) text += ", re-planned for " + count_of(starts_.ranks(), "rank");
  if (const auto losses = watch_.losses(); !losses.empty())
    text += "; " + joined(losses) + ": now on " + described(hosts_);
  return text;
}

void Supervisor::record(const StartRecord& record, const StartOutcome& outcome) const {
  try {
    records_.write(starts_.number(), record, outcome);
  } catch (const Error& error) {
    console_.say(error.what());
  }
}

}  // namespace autopar::tool
