#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <autopar/core/units.hpp>
#include <autopar/io/trace_file.hpp>
#include <autopar/plan/report/make_plan.hpp>
#include <autopar/plan/step/objective.hpp>

/// The parts of a step, predicted and measured in the same way.
namespace terms {

namespace ap = autopar;

inline constexpr std::array<const char*, 6> kNames{"forward", "backward", "messages", "sums", "update", "waiting"};
enum Term { kForward, kBackward, kMessages, kSums, kUpdate, kWaiting };

/// Seconds of one rank's step:
/// - forward, backward: computing them, all micro-batches;
/// - messages: what the rank sends and receives, from when both ends are ready until the receiver has it;
/// - sums: of gradients, as long as they outlast the last backward;
/// - update: the optimizer's step;
/// - waiting: between the first and the last compute action, for messages and other ranks.
using Terms = std::array<double, kNames.size()>;

namespace detail {

struct Bar {
  std::string name;
  double start = 0, end = 0;
};

[[nodiscard]] inline bool is(const Bar& bar, std::string_view kind) {
  return std::string_view(bar.name).starts_with(kind);
}
[[nodiscard]] inline bool is_compute(const Bar& bar) { return is(bar, "forward") || is(bar, "backward"); }

/// Everything but messages and update.
[[nodiscard]] inline Terms of_bars(const std::vector<Bar>& bars) {
  Terms out{};
  double last = 0, summed = 0;
  for (const auto& bar : bars) {
    if (is(bar, "forward")) out[kForward] += bar.end - bar.start;
    if (is(bar, "backward")) out[kBackward] += bar.end - bar.start;
    if (is_compute(bar)) last = std::max(last, bar.end);
    if (is(bar, "reduction")) summed = std::max(summed, bar.end);
  }
  out[kSums] = std::max(0.0, summed - last);
  out[kWaiting] = std::max(0.0, last - out[kForward] - out[kBackward]);
  return out;
}

}  // namespace detail

/// What a plan predicts, by rank: its program on the simulator once more.
[[nodiscard]] inline std::vector<Terms> predicted(const ap::Plan& plan, const ap::ModelProfile& profile,
                                                  const ap::ProfiledCost& costs) {
  const auto work = ap::make_workload(profile, costs);
  const auto staging = ap::staging_of(plan, profile.graph.node_count());
  const auto sized = ap::make_pipeline(work, staging, ap::meshes_of(plan), plan.world, plan.buckets);
  const ap::StagingCosts stage_costs(work, staging, sized);
  ap::Constraints constraints;
  constraints.world = plan.world;
  constraints.batch = plan.batch;
  const auto program = ap::make_program(sized.pipeline, {constraints.local_batches(), plan.microbatches}, plan.schedule,
                                        ap::Phase::kStep, {});
  const auto timeline = ap::simulate(sized.pipeline, program, stage_costs);
  std::vector<Terms> out;
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    std::vector<detail::Bar> bars;
    double messages = 0;
    for (std::size_t i = 0; i < program.ranks[r].size(); ++i) {
      const auto& action = program.ranks[r][i];
      const auto& span = timeline.spans[r][i];
      if (action.peer == ap::Rank::of(r)) continue;
      bars.push_back({ap::describe(action), span.start.value(), span.end.value()});
      const bool is_message = action.kind == ap::ActionKind::kSend || action.kind == ap::ActionKind::kReceive;
      if (is_message) messages += (span.end - span.start).value();
    }
    auto& mine = out.emplace_back(detail::of_bars(bars));
    mine[kMessages] = messages;
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      const auto& members = plan.stages[s].mesh.ranks();
      if (std::find(members.begin(), members.end(), ap::Rank::of(r)) == members.end()) continue;
      mine[kUpdate] += stage_costs.update(ap::StageId::of(s), plan.optimizer_state_factor).value();
    }
  }
  return out;
}

/// The same from a trace of two ranks, whose clocks need not agree: the fastest messages of both directions are taken
/// to be equally fast.
class Measured {
 public:
  /// Of the latest step. @param updates  seconds by rank
  void add(const std::string& trace, const std::array<double, 2>& updates) {
    std::array<std::vector<detail::Bar>, 2> bars{read(trace, 0), read(trace, 1)};
    std::array<double, 2> fastest{1e9, 1e9};  // by sender
    const auto sends = sends_of(bars);
    for_each_receive(bars, sends, [&](std::size_t to, const detail::Bar& receive, double sent, double) {
      fastest[1 - to] = std::min(fastest[1 - to], receive.end - sent);
    });
    const bool both = fastest[0] < 1e9 && fastest[1] < 1e9;
    const double ahead = both ? (fastest[0] - fastest[1]) / 2 : 0;  // of rank 1's clock
    std::array<double, 2> messages{};
    for_each_receive(bars, sends, [&](std::size_t to, const detail::Bar& receive, double sent, double free) {
      const double here = sent + (to == 1 ? ahead : -ahead);
      const double travelled = std::max(0.0, receive.end - std::max({here, free, receive.start}));
      for (double& sum : messages) sum += travelled;
    });
    for (std::size_t r = 0; r < 2; ++r) {
      Terms step = detail::of_bars(bars[r]);
      step[kMessages] = messages[r];
      step[kUpdate] = updates[r];
      for (std::size_t t = 0; t < step.size(); ++t) samples_[r][t].push_back(step[t]);
    }
  }

  /// Medians over the steps. @pre at least one step
  [[nodiscard]] std::vector<Terms> medians() const {
    std::vector<Terms> out(2);
    for (std::size_t r = 0; r < 2; ++r) {
      for (std::size_t t = 0; t < kNames.size(); ++t) {
        auto values = samples_[r][t];
        std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
        out[r][t] = values[values.size() / 2];
      }
    }
    return out;
  }

 private:
  /// The actions of a rank's latest step in a Chrome trace as the session writes it, in seconds since the first one's
  /// begin. Messages of a rank to itself are left out.
  static std::vector<detail::Bar> read(const std::string& trace, int rank) {
    std::vector<detail::Bar> bars;
    double latest = -1;
    const auto number = [&](const char* key, std::size_t from) {
      return std::stod(trace.substr(trace.find(key, from) + std::string_view(key).size(), 32));
    };
    const std::string_view opening = R"("ph":"X","name":")";
    const auto own = " rank " + std::to_string(rank);
    for (auto at = trace.find(opening); at != std::string::npos; at = trace.find(opening, at + 1)) {
      if (static_cast<int>(number("\"pid\":", at)) != rank || number("\"step\":", at) < latest) continue;
      if (std::exchange(latest, number("\"step\":", at)) < number("\"step\":", at)) bars.clear();
      const auto begin = at + opening.size();
      detail::Bar bar{trace.substr(begin, trace.find('"', begin) - begin), number("\"ts\":", at) * 1e-6, 0};
      bar.end = bar.start + number("\"dur\":", at) * 1e-6;
      const bool is_message = detail::is(bar, "send") || detail::is(bar, "receive");
      const bool is_action = is_message || detail::is_compute(bar) || detail::is(bar, "reduction");
      if (is_action && !(is_message && bar.name.ends_with(own))) bars.push_back(std::move(bar));
    }
    double first = bars.empty() ? 0 : bars.front().start;
    for (const auto& bar : bars) first = std::min(first, bar.start);
    for (auto& bar : bars) bar.start -= first, bar.end -= first;
    return bars;
  }

  /// "values of channel 2, micro-batch 3, samples [0, 4)" of a message's name.
  static std::string content(const detail::Bar& message) {
    const auto from = message.name.find(" of ") + 4;
    return message.name.substr(from, message.name.rfind(", ") - from);
  }
  using Sends = std::array<std::map<std::string, double>, 2>;  // [sender]: when they started
  static Sends sends_of(const std::array<std::vector<detail::Bar>, 2>& bars) {
    Sends sends;
    for (std::size_t r = 0; r < 2; ++r) {
      for (const auto& bar : bars[r]) {
        if (detail::is(bar, "send")) sends[r].emplace(content(bar), bar.start);
      }
    }
    return sends;
  }

  /// @param visit  (receiver, bar, start of the send by the sender's clock, when the receiver had nothing else to do)
  template <class Visit>
  static void for_each_receive(const std::array<std::vector<detail::Bar>, 2>& bars, const Sends& sends, Visit visit) {
    for (std::size_t to = 0; to < 2; ++to) {
      for (const auto& bar : bars[to]) {
        const auto sent = sends[1 - to].find(content(bar));
        if (!detail::is(bar, "receive") || sent == sends[1 - to].end()) continue;
        double free = 0;
        for (const auto& compute : bars[to]) {
          if (detail::is_compute(compute) && compute.end <= bar.end) free = std::max(free, compute.end);
        }
        visit(to, bar, sent->second, free);
      }
    }
  }

  std::array<std::array<std::vector<double>, kNames.size()>, 2> samples_;
};

}  // namespace terms
