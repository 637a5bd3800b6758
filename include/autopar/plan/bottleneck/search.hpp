#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <autopar/graph/algorithms/downsets.hpp>
#include <autopar/plan/bottleneck/tables.hpp>
#include <autopar/plan/bottleneck/variant_choice.hpp>

namespace autopar {

/// What the search says of a problem.
struct BottleneckResult {
  std::vector<VariantStage> stages;                          ///< in pipeline order; empty if no plan exists
  double seconds = std::numeric_limits<double>::infinity();  ///< of the slowest stage
  double lower_bound = 0;  ///< no plan has a slowest stage below this; infinite if there is no plan
  int checks = 0;
};

/// Seconds of one stage under its own variants.
/// @param crossing  whether the stage's neighbour at the other end of an edge is outside
template <class Outside>
[[nodiscard]] double stage_seconds(const VariantTables& tables, const VariantStage& stage, const Outside& outside) {
  const auto degree = std::find(tables.tensor_degrees.begin(), tables.tensor_degrees.end(), stage.tensor_degree) -
                      tables.tensor_degrees.begin();
  const auto d = static_cast<std::size_t>(std::find(tables.replicas.begin(), tables.replicas.end(), stage.replicas) -
                                          tables.replicas.begin());
  double work = 0, border = 0, parameters = 0;
  for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
    const NodeId node = stage.nodes[i];
    const auto& choices = tables.variants[node.index()][static_cast<std::size_t>(degree)];
    const NodeVariant& v = choices[static_cast<std::size_t>(stage.variants[i])];
    work += v.work;
    parameters += v.parameters;
    std::size_t e = 0;
    for (const NodeId before : tables.graph.predecessors(node))
      border += outside(before) ? v.in[e++] : (++e, 0);
    e = 0;
    for (const NodeId after : tables.graph.successors(node))
      border += outside(after) ? v.out[e++] : (++e, 0);
  }
  return work * tables.work_share[d] + border * tables.border_cost[d] + parameters * tables.parameter_cost[d];
}

/// The pipeline with the fastest slowest stage, and the proof: bisects on its seconds T; whether T can be met is
/// decided by a dynamic program from the last stage backwards over tails, with the sum of data degrees so far and the
/// fewest devices as its state. The last T that cannot be met is the lower bound.
///
/// Exact, deterministic. Refers to the tables, which must outlive it.
class BottleneckSearch {
 public:
  /// @throws InvalidArgument as `check_tables`, or if the graph has more than `max_tails` tails
  explicit BottleneckSearch(const VariantTables& tables, std::size_t max_tails = 4'000'000)
      : tables_(tables), lattice_(tails_of(tables, max_tails)) {
    tabulate();
  }

  static constexpr double kGap = 1e-9;

  /// @param start       a plan to improve, may be empty
  /// @param max_visits  most stages to look at; afterwards the result is the best so far and the bound the last proven
  [[nodiscard]] BottleneckResult solve(BottleneckResult start = {}, std::int64_t max_visits = 300'000'000) {
    BottleneckResult best = std::move(start);
    visits_left_ = max_visits;
    best.lower_bound = least_seconds();
    if (best.stages.empty() && !find_any(best)) return best;
    while (best.lower_bound < best.seconds * (1 - 1e-3)) {
      const double middle = best.lower_bound + (best.seconds - best.lower_bound) / 2;
      if (!tighten(middle, best)) break;
    }
    while (best.lower_bound < best.seconds * (1 - kGap) * (1 - 1e-15)) {
      if (!tighten(best.seconds * (1 - kGap), best)) break;
    }
    return best;
  }
  [[nodiscard]] std::size_t tails() const { return lattice_.size(); }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  /// Of one node under one tensor degree.
  struct Least {
    bool runs = false;
    double work = 0, parameters = 0;  ///< least of any variant
    double in_flight = 0, bytes = 0;  ///< of the variant with the least work
    double least_in_flight = 0;
    double bytes_once = 0;  ///< least with one micro-batch in flight
    std::vector<double> in{}, out{};
  };
  /// Of the nodes of the stage that grows, under one tensor degree.
  struct Sums {
    int missing = 0;
    double work = 0, parameters = 0, in_flight = 0, bytes = 0, least_in_flight = 0, bytes_once = 0, border = 0;
  };
  struct State {
    int sum, devices;
    std::int32_t before;  ///< state it came from
    DownsetId tail;
    std::int16_t degree, d;
  };

  [[nodiscard]] static DownsetLattice tails_of(const VariantTables& tables, std::size_t max_tails) {
    check_tables(tables);
    Graph<char, char> reversed;
    for (std::size_t i = 0; i < tables.graph.node_count(); ++i)
      reversed.add_node();
    for (const EdgeId edge : tables.graph.edges())
      reversed.add_edge(tables.graph.target(edge), tables.graph.source(edge));
    auto lattice = enumerate_downsets(reversed, max_tails);
    detail::demand(lattice.has_value(), "the graph has more than " + std::to_string(max_tails) +
                                            " cuts; put nodes together before an exact search");
    return std::move(*lattice);
  }

  void tabulate() {
    const std::size_t degrees = tables_.tensor_degrees.size();
    least_.assign(tables_.graph.node_count(), std::vector<Least>(degrees));
    least_work_.assign(tables_.graph.node_count(), kNever);
    least_bytes_.assign(tables_.graph.node_count(), kNever);
    for (std::size_t n = 0; n < least_.size(); ++n) {
      for (std::size_t t = 0; t < degrees; ++t) {
        const auto& variants = tables_.variants[n][t];
        Least& least = least_[n][t];
        if (variants.empty()) continue;
        least = least_of(variants);
        least_bytes_[n] = std::min(least_bytes_[n], tables_.tensor_degrees[t] * least.bytes_once);
        least_work_[n] = std::min(least_work_[n], tables_.tensor_degrees[t] * least.work);
        for (const NodeVariant& v : variants) {
          uniform_ =
              uniform_ && v.parameters == variants[0].parameters && v.in == variants[0].in && v.out == variants[0].out;
        }
      }
    }
    device_share_ = kNever;
    for (std::size_t d = 0; d < tables_.replicas.size(); ++d)
      device_share_ = std::min(device_share_, tables_.replicas[d] * tables_.work_share[d]);
    rest_.assign(lattice_.size(), 0);
    rest_bytes_.assign(lattice_.size(), 0);
    double all = 0;
    for (const double work : least_work_)
      all += work;
    rest_[0] = all;
    for (const double bytes : least_bytes_)
      rest_bytes_[0] += bytes;
    for (std::size_t i = 0; i < lattice_.size(); ++i) {
      for (const auto& cover : lattice_.covers(DownsetId::of(i))) {
        rest_[cover.result.index()] = rest_[i] - least_work_[cover.added.index()];
        rest_bytes_[cover.result.index()] = rest_bytes_[i] - least_bytes_[cover.added.index()];
      }
    }
  }

  [[nodiscard]] static Least least_of(const std::vector<NodeVariant>& variants) {
    Least least{.runs = true, .work = kNever, .parameters = kNever, .least_in_flight = kNever, .bytes_once = kNever};
    least.in.assign(variants[0].in.size(), kNever);
    least.out.assign(variants[0].out.size(), kNever);
    for (const NodeVariant& v : variants) {
      if (v.work < least.work || (v.work == least.work && v.bytes_in_flight < least.in_flight)) {
        least.work = v.work;
        least.in_flight = v.bytes_in_flight;
        least.bytes = v.bytes;
      }
      least.parameters = std::min(least.parameters, v.parameters);
      least.least_in_flight = std::min(least.least_in_flight, v.bytes_in_flight);
      least.bytes_once = std::min(least.bytes_once, v.bytes_in_flight + v.bytes);
      for (std::size_t e = 0; e < v.in.size(); ++e)
        least.in[e] = std::min(least.in[e], v.in[e]);
      for (std::size_t e = 0; e < v.out.size(); ++e)
        least.out[e] = std::min(least.out[e], v.out[e]);
    }
    return least;
  }

  /// All devices share all work evenly.
  [[nodiscard]] double least_seconds() const { return rest_[0] * device_share_ / tables_.devices * (1 - 1e-12); }

  /// From the least seconds upwards: checks are cheap where little is possible.
  bool find_any(BottleneckResult& best) {
    const double most = best.lower_bound * 1e4;
    for (double seconds = best.lower_bound * 1.1; seconds < most; seconds *= 2) {
      if (!tighten(seconds, best)) return false;
      if (!best.stages.empty()) return true;
    }
    (void)tighten(kNever, best);
    return !best.stages.empty();
  }

  /// One check: moves the bound up or the plan down. @return false if the budget ended first
  bool tighten(double seconds, BottleneckResult& best) {
    const bool better = improve(seconds, best);
    if (visits_left_ < 0) return false;
    if (!better) best.lower_bound = seconds;
    return true;
  }

  /// @return whether a plan exists whose slowest stage takes at most `seconds`; it is put into `best`
  bool improve(double seconds, BottleneckResult& best) {
    ++best.checks;
    limit_ = seconds;
    states_.clear();
    fronts_.assign(lattice_.size(), {});
    add(DownsetId(0), {0, 0, -1, DownsetId(0), 0, 0});
    for (std::size_t i = 0; i + 1 < lattice_.size() && visits_left_ >= 0; ++i) {
      if (!fronts_[i].empty()) extend(DownsetId::of(i));
      fronts_[i] = {};
    }
    const auto& ends = fronts_.back();
    if (ends.empty()) return false;
    auto plan = stages_to(ends.front());
    const double found = slowest(plan);
    if (found < best.seconds || best.stages.empty()) {
      best.stages = std::move(plan);
      best.seconds = found;
      return true;
    }
    return false;  // sums in another order: no plan is better beyond the last digits
  }

  /// Keeps the states of a tail free of dominated ones, ascending sums with descending devices.
  void add(DownsetId tail, State state) {
    auto& front = fronts_[tail.index()];
    const auto at = std::lower_bound(front.begin(), front.end(), state.sum, [this](std::int32_t s, int sum) {
      return states_[static_cast<std::size_t>(s)].sum < sum;
    });
    const auto devices = [this](std::int32_t s) { return states_[static_cast<std::size_t>(s)].devices; };
    if (at != front.begin() && devices(*(at - 1)) <= state.devices) return;
    if (at != front.end() && states_[static_cast<std::size_t>(*at)].sum == state.sum && devices(*at) <= state.devices)
      return;
    auto last = at;
    while (last != front.end() && devices(*last) >= state.devices)
      ++last;
    states_.push_back(state);
    front.insert(front.erase(at, last), static_cast<std::int32_t>(states_.size()) - 1);
  }

  void extend(DownsetId from) {
    auto front = fronts_[from.index()];
    const double rest = rest_devices(from);
    std::erase_if(
        front, [&](std::int32_t s) { return states_[static_cast<std::size_t>(s)].devices + rest > tables_.devices; });
    if (front.empty()) return;
    const State fewest = states_[static_cast<std::size_t>(front.back())];
    const State lowest = states_[static_cast<std::size_t>(front.front())];
    sums_.assign(tables_.tensor_degrees.size(), {});
    nodes_.clear();
    in_stage_.assign(tables_.graph.node_count(), false);
    lattice_.for_each_superset(
        from,
        [&](NodeId node, DownsetId to) {
          enter(node);
          if (--visits_left_ < 0 || !worth_a_look(from, to, fewest, lowest)) return false;
          offer_stage(from, to, front);
          return true;
        },
        [&](NodeId node) { leave(node); });
  }

  void enter(NodeId node) {
    in_stage_[node.index()] = true;
    nodes_.push_back(node);
    saved_.insert(saved_.end(), sums_.begin(), sums_.end());
    for (std::size_t t = 0; t < sums_.size(); ++t) {
      const Least& least = least_[node.index()][t];
      Sums& sums = sums_[t];
      if (!least.runs) {
        ++sums.missing;
        continue;
      }
      sums.work += least.work;
      sums.parameters += least.parameters;
      sums.in_flight += least.in_flight;
      sums.bytes += least.bytes;
      sums.bytes_once += least.bytes_once;
      sums.least_in_flight += least.least_in_flight;
      for (const double bytes : least.in)
        sums.border += bytes;
      std::size_t e = 0;
      for (const EdgeId edge : tables_.graph.out_edges(node)) {
        const NodeId after = tables_.graph.target(edge);
        if (!in_stage_[after.index()]) {
          sums.border += least.out[e];
        } else if (least_[after.index()][t].runs) {
          sums.border -= least_[after.index()][t].in[position_in(edge)];
        }
        ++e;
      }
    }
  }
  /// Sums are put back as they were, not subtracted, so that no rounding stays.
  void leave(NodeId node) {
    in_stage_[node.index()] = false;
    nodes_.pop_back();
    std::copy(saved_.end() - static_cast<std::ptrdiff_t>(sums_.size()), saved_.end(), sums_.begin());
    saved_.resize(saved_.size() - sums_.size());
  }
  [[nodiscard]] std::size_t position_in(EdgeId edge) const {
    std::size_t e = 0;
    for (const EdgeId other : tables_.graph.in_edges(tables_.graph.target(edge))) {
      if (other == edge) break;
      ++e;
    }
    return e;
  }

  /// Whether the stage or a larger one can be right. What only grows with a stage decides: the bytes that it holds, its
  /// work, and the devices that a tensor degree wastes on its nodes compared with the best for each.
  [[nodiscard]] bool worth_a_look(DownsetId from, DownsetId to, const State& fewest, const State& lowest) const {
    const double even = limit_ == kNever ? 0 : (rest_[from.index()] - rest_[to.index()]) * device_share_ / limit_;
    const double needed = limit_ == kNever ? 0 : rest_[from.index()] * device_share_ / limit_;
    const double spare = tables_.devices - fewest.devices - needed + 1e-9 * tables_.devices;
    for (std::size_t t = 0; t < sums_.size(); ++t) {
      const Sums& sums = sums_[t];
      const int degree = tables_.tensor_degrees[t];
      if (sums.missing > 0) continue;
      const int most = std::min((tables_.devices - fewest.devices) / degree, tables_.replicas.back());
      if (most < 1) continue;
      const int waiting = (lowest.sum + most - 1) / most;
      if (sums.bytes_once + sums.least_in_flight * waiting > tables_.memory) continue;
      if (limit_ != kNever && degree * sums.work * device_share_ / limit_ - even > spare) continue;
      const auto d = first_degree(sums.work, 0, 0);
      if (d < tables_.replicas.size() && fewest.devices + tables_.replicas[d] * degree <= tables_.devices) return true;
    }
    return false;
  }

  /// Devices that everything outside a tail needs at least: for its work and for its bytes.
  [[nodiscard]] double rest_devices(DownsetId tail) const {
    const double work = limit_ == kNever ? 0 : rest_[tail.index()] * device_share_ / limit_;
    return std::max(work, rest_bytes_[tail.index()] / tables_.memory) * (1 - 1e-9);
  }

  [[nodiscard]] double seconds(double work, double border, double parameters, std::size_t d) const {
    return work * tables_.work_share[d] + border * tables_.border_cost[d] + parameters * tables_.parameter_cost[d];
  }
  /// Position of the smallest data degree that is fast enough.
  [[nodiscard]] std::size_t first_degree(double work, double border, double parameters) const {
    std::size_t d = 0;
    while (d < tables_.replicas.size() && seconds(work, border, parameters, d) > limit_)
      ++d;
    return d;
  }

  void offer_stage(DownsetId from, DownsetId to, const std::vector<std::int32_t>& front) {
    pair_now_ = static_cast<std::uint64_t>(from.value()) << 32 | static_cast<std::uint32_t>(to.value());
    known_now_ = nullptr;
    const double rest = rest_devices(to);
    for (std::size_t t = 0; t < sums_.size(); ++t) {
      const Sums& sums = sums_[t];
      if (sums.missing > 0 || sums.bytes_once > tables_.memory) continue;
      const double border = std::max(0.0, sums.border);
      const std::size_t first = first_degree(sums.work, border, sums.parameters);
      for (const std::int32_t s : front) {
        const State before = states_[static_cast<std::size_t>(s)];
        const auto d = smallest_degree(t, first, before, rest);
        if (!d) continue;
        const int replicas = tables_.replicas[*d];
        add(to, {before.sum + replicas, before.devices + replicas * tables_.tensor_degrees[t], s, to,
                 static_cast<std::int16_t>(t), static_cast<std::int16_t>(*d)});
      }
    }
  }

  /// Smaller data degrees need fewer devices and leave fewer micro-batches in flight before: the smallest is enough.
  [[nodiscard]] std::optional<std::size_t> smallest_degree(std::size_t t, std::size_t first, const State& before,
                                                           double rest) {
    const Sums& sums = sums_[t];
    for (std::size_t d = first; d < tables_.replicas.size(); ++d) {
      const int replicas = tables_.replicas[d];
      if (before.devices + replicas * tables_.tensor_degrees[t] + rest > tables_.devices) return std::nullopt;
      if (before.sum + replicas > tables_.most_replicas) return std::nullopt;
      if (seconds(sums.work, sums.border, sums.parameters, d) > limit_) continue;
      const int in_flight = (before.sum + 2 * replicas - 1) / replicas;
      if (uniform_ && sums.in_flight * in_flight + sums.bytes <= tables_.memory) return d;
      const double work = least_work(t, d, in_flight);
      if (work == kNever) continue;
      if (uniform_ ? seconds(work, sums.border, sums.parameters, d) <= limit_ : work <= limit_) return d;
    }
    return std::nullopt;
  }

  /// Least work (or, if variants differ in more than work and bytes, seconds) of the stage within memory. Does not
  /// depend on the limit, so that it is worked out once for all checks.
  [[nodiscard]] double least_work(std::size_t t, std::size_t d, int in_flight) {
    if (known_now_ == nullptr) known_now_ = &known_[pair_now_];
    known_now_->resize(tables_.tensor_degrees.size());
    auto& row = (*known_now_)[t];
    const std::size_t at = uniform_ ? static_cast<std::size_t>(in_flight)
                                    : static_cast<std::size_t>(in_flight) * tables_.replicas.size() + d;
    if (at >= row.size()) row.resize(at + 1, kUnknown);
    if (row[at] == kUnknown) row[at] = choose(nodes_, in_stage_, t, d, in_flight).cost;
    return row[at];
  }

  [[nodiscard]] detail::VariantChoice::Solution choose(const std::vector<NodeId>& nodes,
                                                       const std::vector<bool>& inside, std::size_t t, std::size_t d,
                                                       int in_flight) const {
    std::vector<detail::VariantChoice::Class> classes;
    classes.reserve(nodes.size());
    for (const NodeId node : nodes) {
      auto& items = classes.emplace_back();
      const auto& variants = tables_.variants[node.index()][t];
      for (std::size_t v = 0; v < variants.size(); ++v) {
        const double cost =
            uniform_ ? variants[v].work
                     : seconds(variants[v].work, border_of(node, variants[v], inside), variants[v].parameters, d);
        items.push_back({variants[v].bytes_in_flight * in_flight + variants[v].bytes, cost, static_cast<int>(v)});
      }
    }
    return detail::VariantChoice::solve(std::move(classes), tables_.memory);
  }
  [[nodiscard]] double border_of(NodeId node, const NodeVariant& variant, const std::vector<bool>& inside) const {
    double border = 0;
    std::size_t e = 0;
    for (const NodeId before : tables_.graph.predecessors(node))
      border += inside[before.index()] ? (++e, 0) : variant.in[e++];
    e = 0;
    for (const NodeId after : tables_.graph.successors(node))
      border += inside[after.index()] ? (++e, 0) : variant.out[e++];
    return border;
  }

  [[nodiscard]] std::vector<VariantStage> stages_to(std::int32_t end) const {
    std::vector<VariantStage> stages;
    for (std::int32_t s = end; states_[static_cast<std::size_t>(s)].before >= 0;) {
      const State& state = states_[static_cast<std::size_t>(s)];
      const State& before = states_[static_cast<std::size_t>(state.before)];
      VariantStage stage;
      NodeSet nodes = lattice_.members(state.tail);
      nodes -= lattice_.members(before.tail);
      std::vector<bool> inside(tables_.graph.node_count(), false);
      for (const NodeId node : nodes) {
        stage.nodes.push_back(node);
        inside[node.index()] = true;
      }
      const auto d = static_cast<std::size_t>(state.d), t = static_cast<std::size_t>(state.degree);
      stage.replicas = tables_.replicas[d];
      stage.tensor_degree = tables_.tensor_degrees[t];
      const int in_flight = (before.sum + 2 * stage.replicas - 1) / stage.replicas;
      stage.variants = choose(stage.nodes, inside, t, d, in_flight).chosen;
      stages.push_back(std::move(stage));
      s = state.before;
    }
    return stages;
  }

  [[nodiscard]] double slowest(const std::vector<VariantStage>& stages) const {
    double most = 0;
    for (const VariantStage& stage : stages) {
      std::vector<bool> inside(tables_.graph.node_count(), false);
      for (const NodeId node : stage.nodes)
        inside[node.index()] = true;
      most = std::max(most, stage_seconds(tables_, stage, [&](NodeId node) { return !inside[node.index()]; }));
    }
    return most;
  }

  const VariantTables& tables_;
  DownsetLattice lattice_;
  bool uniform_ = true;  ///< variants of a node differ in work and bytes only
  double device_share_ = 1;
  std::vector<std::vector<Least>> least_;  // [node][degree]
  std::vector<double> least_work_;         // device-seconds, by node
  std::vector<double> least_bytes_;        // bytes on all devices together, by node
  std::vector<double> rest_, rest_bytes_;  // of both, outside each tail
  static constexpr double kUnknown = -1;
  using Known = std::vector<std::vector<double>>;  // [tensor degree][micro-batches in flight]
  std::unordered_map<std::uint64_t, Known> known_;
  std::uint64_t pair_now_ = 0;  // the stage that is looked at
  Known* known_now_ = nullptr;

  double limit_ = 0;
  std::int64_t visits_left_ = 0;
  std::vector<State> states_;
  std::vector<std::vector<std::int32_t>> fronts_;  // by tail
  std::vector<Sums> sums_, saved_;                 // by tensor degree; one more for each node of the stage
  std::vector<NodeId> nodes_;
  std::vector<bool> in_stage_;
};

}  // namespace autopar
