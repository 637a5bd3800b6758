#include "host_list.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <sstream>

#include <autopar/core/error.hpp>

namespace autopar::tool {

namespace {

constexpr std::size_t kLongestHost = 253;  // a domain name's

bool is_host_name(std::string_view name) {
  constexpr std::string_view kCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
  return !name.empty() && name.size() <= kLongestHost && name.front() != '-' &&
         name.find_first_not_of(kCharacters) == std::string_view::npos;
}

std::optional<int> slots_in(std::string_view text) {
  int slots = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), slots);
  if (error != std::errc() || end != text.data() + text.size() || slots < 1 || slots > kMostSlots) return std::nullopt;
  return slots;
}

/// A line of a hostfile. @throws ConfigError
class HostLine {
 public:
  explicit HostLine(std::string place) : place_(std::move(place)) {}

  [[nodiscard]] std::optional<HostSlots> read(const std::string& line) const {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string host, more;
    if (!(words >> host)) return std::nullopt;
    std::optional<int> slots;
    if (const auto colon = host.find(':'); colon != std::string::npos) {
      slots = slots_of_word(host.substr(colon + 1));
      host.erase(colon);
    }
    if (!is_host_name(host))
      throw ConfigError("'" + host + "' is no name of a host (letters, digits, '.', '-' and '_')", place_);
    while (words >> more) {
      constexpr std::string_view kSlots = "slots=";
      if (!more.starts_with(kSlots))
        throw ConfigError("'" + more + "' is not understood; lines are 'host', 'host:4' or 'host slots=4'", place_);
      if (slots) throw ConfigError("the slots of host '" + host + "' are given twice", place_);
      slots = slots_of_word(more.substr(kSlots.size()));
    }
    return HostSlots{host, slots.value_or(1)};
  }

 private:
  [[nodiscard]] int slots_of_word(const std::string& word) const {
    const auto slots = slots_in(word);
    if (!slots) {
      throw ConfigError(
          "'" + word + "' is no number of slots; they are whole and from 1 to " + std::to_string(kMostSlots), place_);
    }
    return *slots;
  }

  std::string place_;
};

}  // namespace

std::vector<HostSlots> parse_hostfile(std::string_view text, const std::string& file) {
  std::vector<HostSlots> hosts;
  std::istringstream lines{std::string(text)};
  std::string line;
  int total = 0;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string place = file + ", line " + std::to_string(number);
    const auto read = HostLine(place).read(line);
    if (!read) continue;
    if (read->slots > kMostSlots - total)
      throw ConfigError("all hosts together have more than " + std::to_string(kMostSlots) + " slots", place);
    total += read->slots;
    const auto known = std::ranges::find(hosts, read->host, &HostSlots::host);
    if (known == hosts.end()) {
      hosts.push_back(*read);
    } else {
      known->slots += read->slots;
    }
  }
  if (hosts.empty()) throw ConfigError("names no host; lines are 'host', 'host:4' or 'host slots=4'", file);
  return hosts;
}

int slots_of(const std::vector<HostSlots>& hosts) {
  int slots = 0;
  for (const auto& host : hosts) slots += host.slots;
  return slots;
}

std::vector<HostSlots> first_slots(const std::vector<HostSlots>& hosts, int count) {
  std::vector<HostSlots> first;
  for (const auto& host : hosts) {
    const int taken = std::min(host.slots, count);
    if (taken > 0) first.push_back({host.host, taken});
    count -= std::max(taken, 0);
  }
  return first;
}

std::string hostfile_text(const std::vector<HostSlots>& hosts, LauncherKind kind) {
  const std::string separator = kind == LauncherKind::kOpenMpi ? " slots=" : ":";
  std::string text;
  for (const auto& host : hosts) text += host.host + separator + std::to_string(host.slots) + '\n';
  return text;
}

std::string described(const std::vector<HostSlots>& hosts) {
  std::string text;
  for (const auto& host : hosts)
    text += (text.empty() ? "" : ", ") + host.host + " (" + std::to_string(host.slots) + ")";
  return text;
}

}  // namespace autopar::tool
