#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/bottleneck/answer.hpp>
#include <autopar/bottleneck/growing_stage.hpp>
#include <autopar/bottleneck/least_needs.hpp>
#include <autopar/bottleneck/rest_devices.hpp>
#include <autopar/bottleneck/stage_fit.hpp>
#include <autopar/bottleneck/tables.hpp>
#include <autopar/graph/algorithms/downsets.hpp>

namespace autopar::detail {

/// Decides whether a pipeline exists whose stages all take at most a limit.
///
/// A dynamic program from the last stage backwards over tails: sets closed under successors. A label of a tail is a sum
/// of its stages' data degrees with the fewest devices for it. Labels that are dominated, or that the rest of the nodes
/// cannot complete (`RestDevices`), are dropped. Of a stage's data degrees only the smallest that is fast enough and
/// fits is tried. A larger one takes more devices and leaves more micro-batches in flight in the stages before it.
///
/// Refers to its arguments, which must outlive it.
class BottleneckCheck {
 public:
  BottleneckCheck(const VariantTables& tables, const DownsetLattice& tails)
      : tables_(tables),
        tails_(tails),
        least_(tables),
        rest_(tables, tails),
        stage_(tables, least_, rest_),
        fit_(tables, least_) {
    fronts_.resize(tails_.size());
    by_size_.resize(tables.graph.node_count());
    for (std::size_t i = 0; i + 1 < tails_.size(); ++i)
      by_size_[tails_.cardinality(DownsetId::of(i))].push_back(DownsetId::of(i));
  }
  BottleneckCheck(const BottleneckCheck&) = delete;  // parts refer to each other
  BottleneckCheck& operator=(const BottleneckCheck&) = delete;

  /// @param width   how many tails of each size are extended, those with the smallest bound on devices first; if there
  /// are more, kNo proves nothing
  /// @param states  budget; reduced by the states used
  [[nodiscard]] Answer run(double limit, std::size_t width, std::int64_t& states) {
    limit_ = limit * (1 + kRounding);
    states_left_ = states - static_cast<std::int64_t>(tails_.size());
    rest_.prepare(limit_);
    labels_.clear();
    for (auto& front : fronts_) front.clear();
    end_ = -1;
    complete_ = true;
    if (rest_.at(tails_.empty_set(), 0) <= static_cast<double>(tables_.devices)) {
      add(tails_.empty_set(), {0, 0, -1, tails_.empty_set(), 0, 0});
    }
    for (std::size_t size = 0; size < by_size_.size() && end_ < 0 && states_left_ >= 0; ++size) {
      choose(by_size_[size], width);
      for (std::size_t i = 0; i < chosen_.size() && end_ < 0 && states_left_ >= 0; ++i) extend(chosen_[i].tail);
    }
    states = states_left_;
    if (end_ >= 0) return Answer::kYes;
    return states_left_ < 0 ? Answer::kUnknown : Answer::kNo;
  }

  /// Whether the last run skipped no tail: then its kNo is a proof.
  [[nodiscard]] bool complete() const { return complete_; }
  /// The largest number of tails of one size.
  [[nodiscard]] std::size_t widest() const {
    std::size_t widest = 0;
    for (const auto& tails : by_size_) widest = std::max(widest, tails.size());
    return widest;
  }

  /// The pipeline that the last run found. @pre it returned kYes
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
  static constexpr double kRounding = 1e-13;     // for sums in another order
  static constexpr std::int64_t kTryStates = 4;  // visits that cost as much as one check of a stage's variants
  static constexpr std::size_t kTogether = 4;    // labels that one look at the front may rule out

  struct Label {
    int sum, devices;
    std::int32_t before;  ///< the label that it extends
    DownsetId tail;
    std::int16_t t, d;
  };
  struct FrontLabel {
    int sum, devices;
    std::int32_t label;
  };
  using Front = std::vector<FrontLabel>;

  [[nodiscard]] static int in_flight(int sum, int replicas) { return 1 + (sum + replicas - 1) / replicas; }

  /// Selects the tails of one size that can be completed.
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

  [[nodiscard]] bool affordable(DownsetId tail, int sum, int devices) const {
    return devices + static_cast<double>(rest_.at(tail, sum)) <= tables_.devices;
  }

  /// Adds a label that is not dominated and drops those that it dominates. Sums ascend, devices descend.
  void add(DownsetId tail, const Label& label) {
    Front& front = fronts_[tail.index()];
    auto at = front.begin();
    while (at != front.end() && at->sum < label.sum) ++at;
    auto last = at;
    while (last != front.end() && last->devices >= label.devices) ++last;
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
      if (affordable(from, label.sum, label.devices)) open_.push_back(label);
    }
    if (open_.empty()) return;
    fewest_ = open_.back().devices;
    const int lowest = open_.front().sum;
    row_ = rest_.row_of(lowest);
    room_ = tables_.devices - fewest_ + 1e-5;
    spare_ = room_ - static_cast<double>(rest_.at(from, lowest));
    stage_.begin(tails_.members(from), limit_, row_, fewest_, lowest);
    tails_.for_each_superset(
        from,
        [&](NodeId node, DownsetId to) {
          stage_.enter(node);
          --states_left_;
          if (end_ >= 0 || states_left_ < 0) return false;
          return look_at(to);
        },
        [&](NodeId node) { stage_.leave(node); });
  }

  /// @return whether a larger stage may be feasible, judged by what never shrinks when a stage grows
  [[nodiscard]] bool look_at(DownsetId to) {
    const double room = room_ - static_cast<double>(rest_.in_row(row_, to));
    bool possible = false;
    for (std::size_t b = 0; b < stage_.blocks(); ++b) {
      GrowingStage::Lanes lanes = stage_.possible(b, spare_, room);
      possible |= lanes.grows != 0;
      for (; lanes.now != 0; lanes.now &= lanes.now - 1)
        offer(to, b * GrowingStage::kLanes + static_cast<std::size_t>(std::countr_zero(lanes.now)), room);
    }
    return possible;
  }

  /// Position of the first data degree with at least so many replicas.
  [[nodiscard]] std::size_t first_degree(double replicas) const {
    const auto at = std::lower_bound(tables_.replicas.begin(), tables_.replicas.end(), replicas);
    return static_cast<std::size_t>(at - tables_.replicas.begin());
  }
  /// @param at  number of leading labels whose sum is at most `sum`; advances, as callers pass rising sums
  [[nodiscard]] static bool dominated(const Front& front, std::size_t& at, int sum, std::int64_t devices) {
    while (at < front.size() && front[at].sum <= sum) ++at;
    return at > 0 && front[at - 1].devices <= devices;
  }

  /// Tries the grown stage under a tensor degree in front of each open label. From label to label the least sufficient
  /// data degree never decreases.
  void offer(DownsetId to, std::size_t t, double room) {
    --states_left_;
    const int most = fewest_ + static_cast<int>(room), degree = tables_.tensor_degrees[t];
    std::size_t d = first_degree(stage_.devices(t) / degree - 1e-9);
    std::optional<StageFit::Needs> needs;
    std::size_t at = 0;
    const Front& front = fronts_[to.index()];
    for (std::size_t i = 0; i < open_.size() && d < tables_.replicas.size(); ++i) {
      const FrontLabel& label = open_[i];
      if (i % kTogether == 0) {
        const int replicas = tables_.replicas[d];
        const std::int64_t fewest =
            open_[std::min(i + kTogether, open_.size()) - 1].devices + static_cast<std::int64_t>(replicas) * degree;
        if (label.sum + replicas > tables_.most_replicas) return;  // and so would all later labels
        if (fewest > most || dominated(front, at, label.sum + replicas, fewest)) {
          i += kTogether - 1;
          continue;
        }
      }
      for (; d < tables_.replicas.size(); ++d) {
        const int replicas = tables_.replicas[d], sum = label.sum + replicas;
        if (sum > tables_.most_replicas) return;
        const std::int64_t wide = label.devices + static_cast<std::int64_t>(replicas) * degree;
        if (wide > most) break;
        const int used = static_cast<int>(wide);
        if (dominated(front, at, sum, used) || !affordable(to, sum, used)) break;
        states_left_ -= kTryStates;
        if (!needs) needs = fit_.needs(stage_, t);
        if (label.sum > 0 && needs->most_waiting < 2) return;
        // A waiting stage has at least one micro-batch in flight, and one more for each stage behind it. Skip to the
        // degree that leaves few enough.
        const int waiting = in_flight(label.sum, replicas);
        if (label.sum > 0 && waiting > needs->most_waiting) {
          const double enough = label.sum / (std::floor(needs->most_waiting) - 1);
          d = std::max(d + 1, first_degree(enough * (1 - 1e-12))) - 1;
          continue;
        }
        if (!fit_.runs(*needs, stage_, t, d, waiting, limit_)) continue;
        add(to, {sum, used, label.label, to, static_cast<std::int16_t>(t), static_cast<std::int16_t>(d)});
        at = 0;
        break;
      }
    }
  }

  const VariantTables& tables_;
  const DownsetLattice& tails_;
  LeastNeeds least_;
  RestDevices rest_;
  GrowingStage stage_;
  StageFit fit_;

  double limit_ = 0;
  bool complete_ = true;
  std::int64_t states_left_ = 0;
  std::vector<Label> labels_;
  std::vector<Front> fronts_;  // by tail
  std::int32_t end_ = -1;      // label of all nodes
  std::vector<std::vector<DownsetId>> by_size_;
  struct Chosen {
    double devices;
    DownsetId tail;
  };
  std::vector<Chosen> chosen_;

  Front open_;  // of the tail that is being extended
  int fewest_ = 0;
  std::size_t row_ = 0;
  double room_ = 0, spare_ = 0;  // devices for the stage and the nodes before it; how many of them the bound does not
                                 // need
};

}  // namespace autopar::detail
