#include <autopar/io/host_name.hpp>
#include <autopar/training/goodput.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iomanip>
#include <sstream>
#include <utility>
#include <vector>

#include <autopar/io/wall_clock.hpp>
#include <autopar/training/progress.hpp>

namespace autopar::training {

namespace {

using Shares = std::array<std::pair<const char*, double TimeSpent::*>, 5>;
constexpr Shares kShares{{{"planning", &TimeSpent::planning},
                          {"saving", &TimeSpent::saving},
                          {"restarting", &TimeSpent::restarting},
                          {"data", &TimeSpent::data},
                          {"waiting", &TimeSpent::waiting}}};

/// Of one rank.
struct Measured {
  double planning = 0, saving = 0, data = 0, waiting = 0;
  std::array<char, 64> host{};
};

}  // namespace

double TimeSpent::useful() const {
  double rest = total;
  for (const auto& [name, share] : kShares) rest -= this->*share;
  return std::max(rest, 0.0);
}

std::string to_text(const TimeSpent& spent, const std::string& slowest) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << "goodput " << 100 * spent.goodput() << " % of "
       << duration_text(spent.total);
  constexpr double kLeast = 0.0005;
  const char* before = "; ";
  for (const auto& [name, share] : kShares) {
    if (spent.*share < kLeast * spent.total || spent.*share <= 0) continue;
    text << std::exchange(before, ", ") << name << ' ' << 100 * (spent.*share) / spent.total << " %";
    if (share == &TimeSpent::waiting && !slowest.empty()) text << " for " << slowest;
  }
  return text.str();
}

Values figures_of(const TimeSpent& spent) {
  Values figures{{"goodput", spent.goodput()}};
  for (const auto& [name, share] : kShares)
    figures.emplace_back(std::string("time_") + name, spent.total > 0 ? spent.*share / spent.total : 0);
  return figures;
}

Goodput::Goodput(World& world, const TimeSpent& before) : world_(world), before_(before) {
  not_counted_ = world.waited().value();
  if (before.until == 0 || before.has_ended) return;
  const auto since = std::max(seconds_since_1970() - before.until, 0.0);
  before_.restarting += since;
  before_.total += since;
}

Goodput::Saving::Moment Goodput::moment() const { return {std::chrono::steady_clock::now(), world_.waited().value()}; }

void Goodput::add_saving(const Saving::Moment& begin) {
  const auto end = moment();
  saving_ += std::chrono::duration<double>(end.time - begin.time).count();
  not_counted_ += end.waited - begin.waited;
}

std::string Goodput::text_of(const TimeSpent& spent) const {
  return to_text(spent, "rank " + std::to_string(slowest_rank_) + " on " + slowest_host_);
}

Values Goodput::figures_of(const TimeSpent& spent) const {
  auto figures = training::figures_of(spent);
  figures.emplace_back("slowest_rank", slowest_rank_);
  return figures;
}

TimeSpent Goodput::spent(Seconds planning, Seconds preparing) {
  Measured mine{planning.value(), saving_, preparing.value(), world_.waited().value() - not_counted_};
  host_name().copy(mine.host.data(), mine.host.size() - 1);
  const auto all = world_.all_gather(std::as_bytes(std::span(&mine, 1)), "adding up where the time went");
  auto spent = before_;
  spent.total += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  spent.until = seconds_since_1970();
  spent.has_ended = false;
  const auto share = 1 / static_cast<double>(all.size());
  Measured slowest;
  slowest_rank_ = 0;
  for (std::size_t r = 0; r < all.size(); ++r) {
    Measured measured;
    std::memcpy(&measured, all[r].data(), sizeof measured);
    spent.planning += share * measured.planning;
    spent.saving += share * measured.saving;
    spent.data += share * measured.data;
    spent.waiting += share * measured.waiting;
    if (r > 0 && measured.waiting >= slowest.waiting) continue;
    slowest = measured;
    slowest_rank_ = static_cast<int>(r);
  }
  spent.waiting -= slowest.waiting;
  slowest_host_ = slowest.host.data();
  return spent;
}

}  // namespace autopar::training
