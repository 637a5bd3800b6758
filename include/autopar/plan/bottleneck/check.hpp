#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/graph/algorithms/downsets.hpp>
#include <autopar/plan/bottleneck/rest_devices.hpp>
#include <autopar/plan/bottleneck/tables.hpp>
#include <autopar/plan/bottleneck/variant_fit.hpp>

namespace autopar::detail {

enum class Answer { kYes, kNo, kUnknown };

/// Decides whether a pipeline exists whose stages all take at most a limit.
///
/// A dynamic program from the last stage backwards over tails (sets closed under successors). A label of a tail is the
/// sum of data degrees of its stages and the fewest devices for that; dominated labels go, and those that the rest of
/// the nodes cannot complete (`RestDevices`). Of the data degrees of a stage the smallest that is fast enough and fits
/// is enough: a larger one takes more devices and leaves more micro-batches in flight in front.
///
/// Refers to its arguments, which must outlive it.
class BottleneckCheck {
 public:
  BottleneckCheck(const VariantTables& tables, const DownsetLattice& tails)
      : tables_(tables), tails_(tails), rest_(tables, tails), fit_(tables), blocks_((tables.tensor_degrees.size() + 3) / 4) {
    tabulate();
  }

  /// @param width   most tails of each size that are extended, those that waste the fewest devices first; if there are
  ///                more, a no is no proof
  /// @param states  budget, what is used is taken off
  [[nodiscard]] Answer run(double limit, std::size_t width, std::int64_t& states) {
    limit_ = limit * (1 + kRounding);
    states_left_ = states - static_cast<std::int64_t>(tails_.size());
    rest_.prepare(limit_);
    labels_.clear();
    for (auto& front : fronts_)
      front.clear();
    end_ = -1;
    complete_ = true;
    if (rest_.at(tails_.empty_set(), 0) <= static_cast<double>(tables_.devices)) {
      add(tails_.empty_set(), {0, 0, -1, tails_.empty_set(), 0, 0});
    }
    for (std::size_t size = 0; size < by_size_.size() && end_ < 0 && states_left_ >= 0; ++size) {
      choose(by_size_[size], width);
      for (std::size_t i = 0; i < chosen_.size() && end_ < 0 && states_left_ >= 0; ++i)
        extend(chosen_[i].tail);
    }
    states = states_left_;
    if (end_ >= 0) return Answer::kYes;
    return states_left_ < 0 ? Answer::kUnknown : Answer::kNo;
  }

  /// Whether the last run left out no tail, so that its no is a proof.
  [[nodiscard]] bool complete() const { return complete_; }
  /// Most tails of one size.
  [[nodiscard]] std::size_t widest() const {
    std::size_t widest = 0;
    for (const auto& tails : by_size_)
      widest = std::max(widest, tails.size());
    return widest;
  }

  /// The pipeline that the last run found. @pre it said yes
  [[nodiscard]] std::vector<VariantStage> stages() {
    std::vector<VariantStage> stages;
    for (std::int32_t at = end_; labels_[static_cast<std::size_t>(at)].before >= 0;) {
      const Label label = labels_[static_cast<std::size_t>(at)];
      const Label before = labels_[static_cast<std::size_t>(label.before)];
      NodeSet nodes = tails_.members(label.tail);
      nodes -= tails_.members(before.tail);
      VariantStage stage;
      std::vector<char> inside(tables_.graph.node_count(), 0);
      for (const NodeId node : nodes) {
        stage.nodes.push_back(node);
        inside[node.index()] = 1;
      }
      const auto t = static_cast<std::size_t>(label.t), d = static_cast<std::size_t>(label.d);
      stage.replicas = tables_.replicas[d];
      stage.tensor_degree = tables_.tensor_degrees[t];
      stage.variants = fit_.fastest({stage.nodes, inside, t, d, in_flight(before.sum, stage.replicas)});
      stages.push_back(std::move(stage));
      at = label.before;
    }
    return stages;
  }

 private:
  static constexpr double kRounding = 1e-13;  // sums of doubles in another order
  static constexpr std::int64_t kTryStates = 4;  // a stage whose variants are looked at costs as much as so many visits
  static constexpr std::size_t kLanes = 4;
  static constexpr double kAny = 1e30;
  using Lanes = std::array<double, kLanes>;

  struct Label {
    int sum, devices;
    std::int32_t before;  ///< label it came from
    DownsetId tail;
    std::int16_t t, d;
  };
  struct FrontLabel {
    int sum, devices;
    std::int32_t label;
  };
  /// What a node adds to a stage, or the sum of it, under four tensor degrees.
  struct Terms {
    Lanes devices{};  ///< that its work and its crossing edges need at least
    Lanes waste{};    ///< see RestDevices
    Lanes bytes{};    ///< at least

    [[nodiscard]] Terms plus(const Terms& other) const {
      Terms sum;
      for (std::size_t i = 0; i < kLanes; ++i) {
        sum.devices[i] = devices[i] + other.devices[i];
        sum.waste[i] = waste[i] + other.waste[i];
        sum.bytes[i] = bytes[i] + other.bytes[i];
      }
      return sum;
    }
  };
  /// Of one node under one tensor degree: the least of each over variants, and the variant with the least work.
  struct Least {
    double work = std::numeric_limits<double>::infinity();  ///< if it cannot run so
    double parameters = 0, in_flight = 0, bytes = 0, all_in = 0;
    double least_in_flight = 0, least_bytes = 0;
    std::vector<double> in{}, out{};
  };

  [[nodiscard]] static int in_flight(int sum, int replicas) { return 1 + (sum + replicas - 1) / replicas; }

  void tabulate() {
    const std::size_t nodes = tables_.graph.node_count(), degrees = tables_.tensor_degrees.size();
    least_.assign(nodes * degrees, {});
    for (int waiting = 1; waiting <= tables_.devices + 1; waiting = waiting < 4 ? waiting + 1 : waiting + waiting / 4)
      held_at_.push_back(waiting);
    held_.assign(held_at_.size() * nodes * degrees, std::numeric_limits<double>::infinity());
    for (std::size_t n = 0; n < nodes; ++n) {
      for (std::size_t t = 0; t < degrees; ++t) {
        const auto& variants = tables_.variants[n][t];
        if (!variants.empty()) least_[n * degrees + t] = least_of(variants);
        for (const NodeVariant& v : variants) {
          for (std::size_t y = 0; y < held_at_.size(); ++y) {
            double& held = held_[(y * nodes + n) * degrees + t];
            held = std::min(held, v.bytes_in_flight * held_at_[y] + v.bytes);
          }
          uniform_ = uniform_ && v.parameters == variants[0].parameters && v.in == variants[0].in &&
                     v.out == variants[0].out;
        }
      }
    }
    work_share_ = border_share_ = std::numeric_limits<double>::infinity();
    for (std::size_t d = 0; d < tables_.replicas.size(); ++d) {
      work_share_ = std::min(work_share_, tables_.replicas[d] * tables_.work_share[d]);
      border_share_ = std::min(border_share_, tables_.replicas[d] * tables_.border_cost[d]);
    }
    position_in_.resize(tables_.graph.edge_count());
    for (const NodeId node : tables_.graph.nodes()) {
      std::size_t e = 0;
      for (const EdgeId edge : tables_.graph.in_edges(node))
        position_in_[edge.index()] = e++;
    }
    terms_.assign(nodes * blocks_, {});
    stamp_.assign(nodes, 0);
    in_stage_.assign(nodes, 0);
    frames_.assign((nodes + 1) * blocks_, {});
    fronts_.resize(tails_.size());
    by_size_.resize(nodes);
    for (std::size_t i = 0; i + 1 < tails_.size(); ++i)
      by_size_[tails_.cardinality(DownsetId::of(i))].push_back(DownsetId::of(i));
  }

  [[nodiscard]] static Least least_of(const std::vector<NodeVariant>& variants) {
    Least least;
    least.parameters = variants[0].parameters;
    least.least_in_flight = variants[0].bytes_in_flight;
    least.least_bytes = variants[0].bytes;
    least.in = variants[0].in;
    least.out = variants[0].out;
    for (const NodeVariant& v : variants) {
      if (v.work < least.work || (v.work == least.work && v.bytes_in_flight < least.in_flight)) {
        least.work = v.work;
        least.in_flight = v.bytes_in_flight;
        least.bytes = v.bytes;
      }
      least.parameters = std::min(least.parameters, v.parameters);
      least.least_in_flight = std::min(least.least_in_flight, v.bytes_in_flight);
      least.least_bytes = std::min(least.least_bytes, v.bytes);
      for (std::size_t e = 0; e < v.in.size(); ++e)
        least.in[e] = std::min(least.in[e], v.in[e]);
      for (std::size_t e = 0; e < v.out.size(); ++e)
        least.out[e] = std::min(least.out[e], v.out[e]);
    }
    for (const double bytes : least.in)
      least.all_in += bytes;
    return least;
  }

  /// The tails of one size that can be completed.
  void choose(const std::vector<DownsetId>& tails, std::size_t width) {
    chosen_.clear();
    for (const DownsetId tail : tails) {
      double least = std::numeric_limits<double>::infinity();
      for (const FrontLabel& label : fronts_[tail.index()])
        least = std::min(least, label.devices + static_cast<double>(rest_.at(tail, label.sum)));
      if (least <= tables_.devices) chosen_.push_back({least, tail});
    }
    if (chosen_.size() <= width) return;
    complete_ = false;
    std::sort(chosen_.begin(), chosen_.end(), [](const Chosen& a, const Chosen& b) {
      return a.devices != b.devices ? a.devices < b.devices : a.tail < b.tail;
    });
    chosen_.resize(width);
  }

  [[nodiscard]] bool affordable(int devices, float rest) const {
    return devices + static_cast<double>(rest) <= tables_.devices;
  }

  /// Keeps the labels of a tail free of dominated ones: ascending sums, descending devices.
  void add(DownsetId tail, const Label& label) {
    auto& front = fronts_[tail.index()];
    auto at = front.begin();
    while (at != front.end() && at->sum < label.sum)
      ++at;
    auto last = at;
    while (last != front.end() && last->devices >= label.devices)
      ++last;
    const auto id = static_cast<std::int32_t>(labels_.size());
    labels_.push_back(label);
    if (last == at) {
      front.insert(at, {label.sum, label.devices, id});
    } else {
      *at = {label.sum, label.devices, id};
      front.erase(at + 1, last);
    }
    if (tail == tails_.all_nodes()) end_ = id;
  }

  void extend(DownsetId from) {
    open_.clear();
    for (const FrontLabel& label : fronts_[from.index()]) {
      if (affordable(label.devices, rest_.at(from, label.sum))) open_.push_back(label);
    }
    if (open_.empty()) return;
    begin(from);
    tails_.for_each_superset(
        from,
        [&](NodeId node, DownsetId to) {
          in_stage_[node.index()] = 1;
          nodes_.push_back(node);
          enter(node);
          --states_left_;
          if (end_ >= 0 || states_left_ < 0) return false;
          return look_at(to);
        },
        [&](NodeId node) {
          in_stage_[node.index()] = 0;
          nodes_.pop_back();
        });
  }

  /// What all stages that end at a tail share.
  void begin(DownsetId from) {
    fewest_ = open_.back().devices;
    lowest_ = open_.front().sum;
    row_ = rest_.row_of(lowest_);
    room_ = tables_.devices - fewest_ + 1e-5;
    spare_ = room_ - static_cast<double>(rest_.at(from, lowest_));
    const std::size_t degrees = tables_.tensor_degrees.size();
    held_now_.assign(degrees, 0);
    for (std::size_t t = 0; t < degrees; ++t) {
      const int most = std::min((tables_.devices - fewest_) / tables_.tensor_degrees[t], tables_.most_replicas - lowest_);
      const int waiting = most < 1 ? 1 : in_flight(lowest_, most);
      held_now_[t] = static_cast<std::size_t>(std::upper_bound(held_at_.begin(), held_at_.end(), waiting) - held_at_.begin()) - 1;
    }
    in_tail_.assign(tables_.graph.node_count(), 0);
    for (const NodeId node : tails_.members(from))
      in_tail_[node.index()] = 1;
    ++now_;
    nodes_.clear();
    std::fill_n(frames_.begin(), blocks_, Terms{});
  }

  void enter(NodeId node) {
    if (stamp_[node.index()] != now_) {
      stamp_[node.index()] = now_;
      describe(node);
    }
    const std::size_t depth = nodes_.size();
    for (std::size_t b = 0; b < blocks_; ++b)
      frames_[depth * blocks_ + b] = frames_[(depth - 1) * blocks_ + b].plus(terms_[node.index() * blocks_ + b]);
  }

  /// All successors of a node that joins a stage are in it or in the tail: what it adds depends on the tail alone.
  void describe(NodeId node) {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    const std::size_t degrees = tables_.tensor_degrees.size(), nodes = tables_.graph.node_count();
    for (std::size_t t = 0; t < blocks_ * kLanes; ++t) {
      Terms& terms = terms_[node.index() * blocks_ + t / kLanes];
      const std::size_t lane = t % kLanes;
      if (t >= degrees) {
        terms.waste[lane] = kNever;
        continue;
      }
      const Least& least = least_[node.index() * degrees + t];
      terms.devices[lane] = tables_.tensor_degrees[t] / limit_ *
                            (least.work * work_share_ + border_of(node, least, t) * border_share_);
      terms.waste[lane] = rest_.waste(row_, node, t);
      terms.bytes[lane] = held_[(held_now_[t] * nodes + node.index()) * degrees + t];
    }
  }
  [[nodiscard]] double border_of(NodeId node, const Least& least, std::size_t t) const {
    if (least.work == std::numeric_limits<double>::infinity()) return 0;
    double border = least.all_in;
    std::size_t e = 0;
    for (const EdgeId edge : tables_.graph.out_edges(node)) {
      const NodeId after = tables_.graph.target(edge);
      if (in_tail_[after.index()]) {
        border += least.out[e];
      } else {
        const Least& other = least_[after.index() * tables_.tensor_degrees.size() + t];
        if (!other.in.empty()) border -= other.in[position_in_[edge.index()]];
      }
      ++e;
    }
    return border;
  }

  /// @return whether larger stages can be right: what only grows with a stage decides
  [[nodiscard]] bool look_at(DownsetId to) {
    const double room = room_ - static_cast<double>(rest_.in_row(row_, to));
    bool possible = false;
    for (std::size_t b = 0; b < blocks_; ++b) {
      const Terms& terms = frames_[nodes_.size() * blocks_ + b];
      unsigned grows = 0, now = 0;
      for (unsigned lane = 0; lane < kLanes; ++lane) {
        const unsigned can = (terms.waste[lane] <= spare_) & (terms.bytes[lane] <= tables_.memory);
        grows |= can << lane;
        now |= (can & static_cast<unsigned>(terms.devices[lane] <= room)) << lane;
      }
      possible |= grows != 0;
      for (; now != 0; now &= now - 1)
        offer(to, b * kLanes + static_cast<std::size_t>(std::countr_zero(now)), room);
    }
    return possible;
  }

  struct Needs {
    double work, border, parameters, in_flight, bytes;
    double most_waiting;  ///< micro-batches in flight above which no variants fit
  };
  /// Of the stage that grows, with the least of each over the variants of a node.
  [[nodiscard]] Needs needs(std::size_t t) const {
    const std::size_t degrees = tables_.tensor_degrees.size();
    Needs sum{0, 0, 0, 0, 0, 0};
    double in_flight = 0, bytes = 0;
    for (const NodeId node : nodes_) {
      const Least& least = least_[node.index() * degrees + t];
      sum.work += least.work;
      sum.parameters += least.parameters;
      sum.in_flight += least.in_flight;
      sum.bytes += least.bytes;
      in_flight += least.least_in_flight;
      bytes += least.least_bytes;
      std::size_t e = 0;
      for (const EdgeId edge : tables_.graph.in_edges(node)) {
        if (!in_stage_[tables_.graph.source(edge).index()]) sum.border += least.in[e];
        ++e;
      }
      e = 0;
      for (const EdgeId edge : tables_.graph.out_edges(node)) {
        if (!in_stage_[tables_.graph.target(edge).index()]) sum.border += least.out[e];
        ++e;
      }
    }
    sum.most_waiting = in_flight > 0 ? (tables_.memory - bytes) / in_flight : bytes <= tables_.memory ? kAny : 0;
    return sum;
  }

  /// Position of the first data degree of at least so many replicas.
  [[nodiscard]] std::size_t first_degree(double replicas) const {
    const auto at = std::lower_bound(tables_.replicas.begin(), tables_.replicas.end(), replicas);
    return static_cast<std::size_t>(at - tables_.replicas.begin());
  }

  void offer(DownsetId to, std::size_t t, double room) {
    --states_left_;
    const int most = fewest_ + static_cast<int>(room);
    const int degree = tables_.tensor_degrees[t];
    const double devices = frames_[nodes_.size() * blocks_ + t / kLanes].devices[t % kLanes];
    std::size_t d = first_degree(devices / degree - 1e-9);
    std::optional<Needs> stage;
    std::size_t at = 0;  // labels of `to` before it have a smaller or equal sum
    for (const FrontLabel& label : open_) {
      for (; d < tables_.replicas.size(); ++d) {
        const int replicas = tables_.replicas[d], sum = label.sum + replicas;
        if (sum > tables_.most_replicas) return;  // and so would all later labels
        if (label.devices + static_cast<std::int64_t>(replicas) * degree > most) break;
        const int used = label.devices + replicas * degree;
        const auto& front = fronts_[to.index()];
        while (at < front.size() && front[at].sum <= sum)
          ++at;
        if (at > 0 && front[at - 1].devices <= used) break;
        if (!affordable(used, rest_.at(to, sum))) break;
        states_left_ -= kTryStates;
        if (!stage) {
          stage = needs(t);
          if (stage->most_waiting < 2 && label.sum > 0) return;
        }
        // Waiting stages have at least one micro-batch in flight and one for each stage behind: straight to the degree
        // that leaves few enough.
        if (label.sum > 0 && in_flight(label.sum, replicas) > stage->most_waiting) {
          const double enough = label.sum / (std::floor(stage->most_waiting) - 1);
          d = std::max(d + 1, first_degree(enough * (1 - 1e-12))) - 1;
          continue;
        }
        if (!runs(t, d, in_flight(label.sum, replicas), *stage)) continue;
        add(to, {sum, used, label.label, to, static_cast<std::int16_t>(t), static_cast<std::int16_t>(d)});
        at = 0;
        break;
      }
      if (d == tables_.replicas.size()) return;
    }
  }

  [[nodiscard]] bool runs(std::size_t t, std::size_t d, int waiting, const Needs& stage) {
    const double took = seconds(stage, d);
    if (took > limit_) return false;
    if (uniform_ && stage.in_flight * waiting + stage.bytes <= tables_.memory) return true;
    const VariantFit::Stage whole{nodes_, in_stage_, t, d, waiting};
    return uniform_ ? fit_.fits_with(whole, (limit_ - took) / tables_.work_share[d]) : fit_.fits_within(whole, limit_);
  }
  [[nodiscard]] double seconds(const Needs& stage, std::size_t d) const {
    return stage.work * tables_.work_share[d] + stage.border * tables_.border_cost[d] +
           stage.parameters * tables_.parameter_cost[d];
  }

  const VariantTables& tables_;
  const DownsetLattice& tails_;
  RestDevices rest_;
  VariantFit fit_;
  std::size_t blocks_;        // of four tensor degrees
  bool uniform_ = true;       // variants of a node differ in work and bytes only
  std::vector<Least> least_;  // [node][tensor degree]
  double work_share_ = 0, border_share_ = 0;  // least device-seconds of a second, of a byte
  std::vector<std::size_t> position_in_;      // of an edge among those of its target
  std::vector<int> held_at_;                  // micro-batches in flight, ascending
  std::vector<double> held_;                  // least bytes then, [position above][node][tensor degree]

  double limit_ = 0;
  bool complete_ = true;
  std::int64_t states_left_ = 0;
  std::vector<Label> labels_;
  std::vector<std::vector<FrontLabel>> fronts_;  // by tail
  std::int32_t end_ = -1;                        // label of all nodes
  std::vector<std::vector<DownsetId>> by_size_;
  struct Chosen {
    double devices;
    DownsetId tail;
  };
  std::vector<Chosen> chosen_;

  // The tail that is extended, and the stage that grows in front of it.
  std::vector<FrontLabel> open_;
  int fewest_ = 0, lowest_ = 0;
  std::size_t row_ = 0;
  double room_ = 0, spare_ = 0;        // devices for the stage and the rest; of it for waste
  std::vector<std::size_t> held_now_;  // by tensor degree
  std::vector<char> in_tail_, in_stage_;
  std::vector<std::uint32_t> stamp_;
  std::uint32_t now_ = 0;
  std::vector<Terms> terms_, frames_;  // [node][block], [nodes in the stage][block]
  std::vector<NodeId> nodes_;
};

}  // namespace autopar::detail
