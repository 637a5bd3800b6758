#include "host_watch.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

#include <autopar/io/host_name.hpp>

#include "questions.hpp"

namespace autopar::tool {

namespace {

/// `nvidia-smi -L` prints a line "GPU 0: …" for each device.
int devices_in(const Answer& answer) {
  if (!answer.is_done) return 0;
  std::istringstream lines(answer.output);
  int devices = 0;
  for (std::string line; std::getline(lines, line);) devices += line.starts_with("GPU ") ? 1 : 0;
  return devices;
}

/// So many at once that no limit of open files is met.
std::vector<Answer> answers_in_turn(const std::vector<Command>& commands, const std::vector<std::string>& environment,
                                    Signals& signals) {
  constexpr std::size_t kAtOnce = 128;
  std::vector<Answer> answers;
  for (std::size_t begin = 0; begin < commands.size(); begin += kAtOnce) {
    const auto end = std::min(commands.size(), begin + kAtOnce);
    const std::vector<Command> part(commands.begin() + static_cast<std::ptrdiff_t>(begin),
                                    commands.begin() + static_cast<std::ptrdiff_t>(end));
    for (auto& answer : answers_of(part, environment, signals)) answers.push_back(std::move(answer));
  }
  return answers;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

int usable_slots(const HostState& state) {
  if (!state.answers) return 0;
  return state.devices < state.devices_at_first ? std::min(state.host.slots, state.devices) : state.host.slots;
}

std::string loss_of(const HostState& state) {
  if (!state.answers) return "host " + state.host.host + " does not answer";
  if (state.devices >= state.devices_at_first) return {};
  return "host " + state.host.host + " has " + std::to_string(state.devices) + " of its " +
         std::to_string(state.devices_at_first) + " devices";
}

HostWatch::HostWatch(std::vector<HostSlots> hosts, int slots, Launcher launcher)
    : launcher_(std::move(launcher)), are_named_(!hosts.empty()) {
  if (!are_named_) hosts = {{host_name(), slots}};
  for (auto& host : hosts) states_.push_back({std::move(host)});
}

Command HostWatch::on(const HostState& state, const Command& what) const {
  return are_named_ ? launcher_.on_host(state.host.host, what) : what;
}

void HostWatch::look(const std::vector<std::string>& environment, Signals& signals) {
  std::vector<Command> commands;
  for (const auto& state : states_) commands.push_back(on(state, {"true"}));
  complaint_.clear();
  const auto alive = answers_in_turn(commands, environment, signals);
  std::vector<HostState*> asked;
  commands.clear();
  for (std::size_t i = 0; i < states_.size(); ++i) {
    auto& state = states_[i];
    state.answers = alive[i].is_done;
    state.devices = 0;
    if (!state.answers && complaint_.empty()) complaint_ = first_line(alive[i].complaints);
    if (!state.answers || (has_looked_ && state.devices_at_first == 0)) continue;
    asked.push_back(&state);
    commands.push_back(on(state, {"nvidia-smi", "-L"}));
  }
  const auto devices = answers_in_turn(commands, environment, signals);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    asked[i]->devices = devices_in(devices[i]);
    if (!has_looked_) asked[i]->devices_at_first = asked[i]->devices;
  }
  has_looked_ = true;
}

std::vector<HostSlots> HostWatch::usable() const {
  std::vector<HostSlots> hosts;
  for (const auto& state : states_) {
    if (const int slots = usable_slots(state); slots > 0) hosts.push_back({state.host.host, slots});
  }
  return hosts;
}

std::vector<std::string> HostWatch::losses() const {
  std::vector<std::string> losses;
  for (const auto& state : states_) {
    if (auto loss = loss_of(state); !loss.empty()) losses.push_back(std::move(loss));
  }
  return losses;
}

void HostWatch::remove_elsewhere(const std::string& folder, const std::vector<std::string>& environment,
                                 Signals& signals) const {
  std::vector<Command> commands;
  for (const auto& state : states_) {
    const bool is_here = !are_named_ || state.host.host == host_name() || state.host.host == "localhost";
    if (state.answers && !is_here) commands.push_back(on(state, {"rm", "-rf", "--", folder}));
  }
  static_cast<void>(answers_in_turn(commands, environment, signals));
}

}  // namespace autopar::tool
