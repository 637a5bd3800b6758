#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <autopar/graph/algorithms/downsets.hpp>
#include <autopar/plan/bottleneck/answer.hpp>
#include <autopar/plan/bottleneck/stage_catalog.hpp>
#include <autopar/plan/bottleneck/stage_prices.hpp>
#include <autopar/plan/bottleneck/tables.hpp>

namespace autopar::detail {

/// Decides whether a pipeline exists whose stages are all in a catalogue, given prices of nodes that bound its devices.
///
/// The dynamic program of `BottleneckCheck`, over stages that cost no more above what their nodes are worth than the
/// bound is below the devices at hand: others are in no pipeline. A label goes where its devices and the bound on those
/// of the rest are too many together.
///
/// Refers to its arguments, which must outlive it.
class PricedCheck {
 public:
  PricedCheck(const VariantTables& tables, const DownsetLattice& tails, const StageCatalog& catalog, StagePrices& prices)
      : tables_(tables), tails_(tails), catalog_(catalog), prices_(prices), position_(tables.graph.node_count()) {
    for (std::size_t i = 0; i < position_.size(); ++i)
      position_[catalog.order()[i].index()] = static_cast<std::uint8_t>(i);
    fronts_.resize(tails_.size());
    left_.resize(tails_.size());
  }

  /// At the prices last evaluated. @param bound  what they say of all nodes, at most the devices at hand
  /// @param states  budget, what is used is taken off
  /// @return no is a proof if the catalogue lacks nothing that costs less than devices - bound
  [[nodiscard]] Answer run(double bound, std::int64_t& states) {
    states_left_ = states;
    end_ = -1;
    end_seconds_ = std::numeric_limits<float>::infinity();
    labels_.clear();
    for (auto& front : fronts_)
      front.clear();
    price_tails();
    find_useful(tables_.devices - bound + kMargin);
    add(tails_.empty_set(), {0, 0, -1, tails_.empty_set(), 0, 0}, 0);
    for (std::size_t i = 0; i + 1 < tails_.size() && states_left_ >= 0; ++i) {
      --states_left_;
      if (!fronts_[i].empty()) extend(DownsetId::of(i));
    }
    states = states_left_;
    return end_ >= 0 ? Answer::kYes : states_left_ < 0 ? Answer::kUnknown : Answer::kNo;
  }

  struct Step {
    DownsetId from, to;
    std::size_t t, d;
    int sum;  ///< of data degrees behind the stage
  };
  /// The pipeline that the last run found. @pre it said yes
  [[nodiscard]] std::vector<Step> steps() const {
    std::vector<Step> steps;
    for (std::int32_t at = end_; labels_[static_cast<std::size_t>(at)].before >= 0;) {
      const Label& label = labels_[static_cast<std::size_t>(at)];
      const Label& before = labels_[static_cast<std::size_t>(label.before)];
      steps.push_back({before.tail, label.tail, static_cast<std::size_t>(label.t), static_cast<std::size_t>(label.d),
                       before.sum});
      at = label.before;
    }
    return steps;
  }

 private:
  static constexpr double kMargin = 1e-6;  // sums of doubles in another order
  static constexpr std::uint32_t kNone = 0xffffffff;

  struct Label {
    int sum, devices;
    std::int32_t before;  ///< label it came from
    DownsetId tail;
    std::int16_t t, d;
  };
  struct FrontLabel {
    int sum, devices;
    std::int32_t label;
    float seconds;  ///< of the slowest stage, with its fastest variants: decides between labels that are alike
  };
  using Front = std::vector<FrontLabel>;
  struct Option {
    int replicas, devices, most_sum;
    float costs;  ///< above the worth of its nodes, where that is least
    float seconds;
    std::int16_t t, d;
  };
  /// A set that a useful one grows from.
  struct Useful {
    std::array<std::uint64_t, 2> followers{};  ///< positions of nodes
    std::uint32_t first_follower = 0;          ///< place in `followers_`
    std::uint32_t first_option = 0, last_option = 0;
    float least = std::numeric_limits<float>::infinity();  ///< costs of the options of it and what grows from it
  };

  void price_tails() {
    std::vector<char> known(tails_.size(), 0);
    left_[0] = 0;
    for (const double price : prices_.prices())
      left_[0] += price;
    for (std::size_t i = 0; i < tails_.size(); ++i) {
      for (const auto& cover : tails_.covers(DownsetId::of(i))) {
        if (std::exchange(known[cover.result.index()], 1)) continue;
        left_[cover.result.index()] = left_[i] - prices_.prices()[cover.added.index()];
      }
    }
  }

  /// Least that `path` rises from a sum to that of the next stage, for sums up to each.
  void tabulate_rises() {
    const auto sums = static_cast<std::size_t>(prices_.most_sum()) + 1;
    rises_.resize(tables_.replicas.size());
    for (std::size_t d = 0; d < rises_.size(); ++d) {
      rises_[d].assign(sums, std::numeric_limits<double>::infinity());
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t sum = 0; sum + static_cast<std::size_t>(tables_.replicas[d]) < sums; ++sum) {
        const int at = static_cast<int>(sum);
        least = std::min(least, prices_.path(at + tables_.replicas[d]) - prices_.path(at));
        rises_[d][sum] = least;
      }
      rises_[d].back() = least;
    }
  }

  void find_useful(double slack) {
    tabulate_rises();
    options_.clear();
    std::vector<std::uint32_t> place(catalog_.size(), kNone);  // in useful_, of those that are kept
    std::vector<std::pair<std::uint32_t, std::uint32_t>> ranges(catalog_.size());
    std::vector<float> least(catalog_.size(), std::numeric_limits<float>::infinity());
    for (std::size_t set = 1; set < catalog_.size(); ++set) {
      ranges[set].first = static_cast<std::uint32_t>(options_.size());
      list_options(set, slack);
      ranges[set].second = static_cast<std::uint32_t>(options_.size());
      for (std::size_t i = ranges[set].first; i < options_.size(); ++i)
        least[set] = std::min(least[set], options_[i].costs);
    }
    for (std::size_t set = catalog_.size(); set-- > 1;)
      least[catalog_[set].parent] = std::min(least[catalog_[set].parent], least[set]);
    useful_.clear();
    for (std::size_t set = 0; set < catalog_.size(); ++set) {
      if (set > 0 && least[set] == std::numeric_limits<float>::infinity()) continue;
      place[set] = static_cast<std::uint32_t>(useful_.size());
      Useful& useful = useful_.emplace_back();
      useful.first_option = ranges[set].first;
      useful.last_option = ranges[set].second;
      useful.least = least[set];
      if (set == 0) continue;
      const std::size_t at = position_[catalog_[set].node];
      useful_[place[catalog_[set].parent]].followers[at / 64] |= std::uint64_t{1} << at % 64;
    }
    std::uint32_t places = 0;
    for (Useful& useful : useful_) {
      useful.first_follower = places;
      places += static_cast<std::uint32_t>(std::popcount(useful.followers[0]) + std::popcount(useful.followers[1]));
    }
    followers_.assign(places, 0);
    for (std::size_t set = 1; set < catalog_.size(); ++set) {
      if (place[set] == kNone) continue;
      const Useful& parent = useful_[place[catalog_[set].parent]];
      followers_[parent.first_follower + rank(parent, position_[catalog_[set].node])] = place[set];
    }
    states_left_ -= static_cast<std::int64_t>(catalog_.size() / 2 + options_.size()) + prices_.spent();
  }
  /// How many followers stand before one.
  [[nodiscard]] static std::uint32_t rank(const Useful& set, std::size_t position) {
    const std::uint64_t below = (std::uint64_t{1} << position % 64) - 1;
    const int before = position < 64 ? std::popcount(set.followers[0] & below)
                                     : std::popcount(set.followers[0]) + std::popcount(set.followers[1] & below);
    return static_cast<std::uint32_t>(before);
  }

  void list_options(std::size_t set, double slack) {
    const double worth = prices_.of(set);
    if (static_cast<double>(catalog_.devices(set)) - worth > slack) return;
    for (std::size_t t = 0; t < tables_.tensor_degrees.size(); ++t) {
      const std::size_t first = catalog_.first_degree(set, t);
      if (first == StageCatalog::kNever) continue;
      int reached = -1;
      for (std::size_t d = first; d < tables_.replicas.size(); ++d) {
        const std::int64_t wide = static_cast<std::int64_t>(tables_.replicas[d]) * tables_.tensor_degrees[t];
        const int replicas = tables_.replicas[d];
        if (wide > tables_.devices || replicas > prices_.most_sum()) break;
        const double costs = static_cast<double>(wide) - worth;
        if (costs > slack) break;
        if (costs + rises_[d].back() > slack) continue;
        const int y = prices_.reach(set, t, d);
        if (y == 0) continue;
        const int most_sum = static_cast<int>(std::min<std::int64_t>(
            prices_.most_sum() - replicas, static_cast<std::int64_t>(y - 1) * replicas));
        if (most_sum <= reached) continue;
        reached = most_sum;
        const double all = costs + rises_[d][static_cast<std::size_t>(most_sum)];
        if (all > slack) continue;
        options_.push_back({replicas, static_cast<int>(wide), most_sum, static_cast<float>(all - kMargin), prices_.seconds(set, t, d),
                            static_cast<std::int16_t>(t), static_cast<std::int16_t>(d)});
      }
    }
  }

  void extend(DownsetId from) {
    open_.clear();
    double spare = 0;
    const double rest = left_[from.index()];
    for (const FrontLabel& label : fronts_[from.index()]) {
      const double left = tables_.devices + kMargin - (label.devices + rest + prices_.path(label.sum));
      if (left < 0 || label.devices > tables_.devices) continue;
      open_.push_back(label);
      spare = std::max(spare, left);
    }
    if (!open_.empty()) grow(from, 0, spare + kMargin);
  }
  void grow(DownsetId at, std::uint32_t set, double spare) {
    const Useful& from = useful_[set];
    for (const auto& cover : tails_.covers(at)) {
      const std::size_t position = position_[cover.added.index()];
      if ((from.followers[position / 64] >> position % 64 & 1) == 0) continue;
      const std::uint32_t next = followers_[from.first_follower + rank(from, position)];
      const Useful& useful = useful_[next];
      if (static_cast<double>(useful.least) > spare) continue;
      if (--states_left_ < 0) return;
      if (useful.first_option != useful.last_option) {
        offer(cover.result, std::span(options_).subspan(useful.first_option, useful.last_option - useful.first_option),
              spare);
      }
      grow(cover.result, next, spare);
    }
  }

  /// A stage in front of each label; under each tensor degree with the least data degree that will do.
  void offer(DownsetId to, std::span<const Option> options, double spare) {
    const double rest = left_[to.index()];
    states_left_ -= static_cast<std::int64_t>(open_.size() / 4);
    for (std::size_t begin = 0, end; begin < options.size(); begin = end) {
      end = begin;
      while (end < options.size() && options[end].t == options[begin].t)
        ++end;
      std::size_t at = begin;
      for (const FrontLabel& label : open_) {
        while (at < end && options[at].most_sum < label.sum)
          ++at;
        if (at == end) break;
        const Option& option = options[at];
        if (static_cast<double>(option.costs) > spare) continue;
        --states_left_;
        const int sum = label.sum + option.replicas, devices = label.devices + option.devices;
        if (devices + std::max(0.0, rest + prices_.path(sum)) > tables_.devices + kMargin) continue;
        add(to, {sum, devices, label.label, to, option.t, option.d}, std::max(label.seconds, option.seconds));
      }
    }
  }

  /// Keeps the labels of a tail free of dominated ones: ascending sums, descending devices.
  void add(DownsetId tail, const Label& label, float seconds) {
    Front& front = fronts_[tail.index()];
    const auto at = std::lower_bound(front.begin(), front.end(), label.sum,
                                     [](const FrontLabel& other, int sum) { return other.sum < sum; });
    states_left_ -= static_cast<std::int64_t>(front.size() / 16);
    if (at != front.begin() && (at - 1)->devices <= label.devices) return;
    const bool alike = at != front.end() && at->sum == label.sum && at->devices == label.devices;
    if (alike && at->seconds <= seconds) return;
    if (!alike && at != front.end() && at->sum == label.sum && at->devices <= label.devices) return;
    auto last = at;
    while (last != front.end() && last->devices >= label.devices)
      ++last;
    const auto id = static_cast<std::int32_t>(labels_.size());
    labels_.push_back(label);
    if (last == at) {
      front.insert(at, {label.sum, label.devices, id, seconds});
    } else {
      *at = {label.sum, label.devices, id, seconds};
      front.erase(at + 1, last);
    }
    if (tail == tails_.all_nodes() && seconds < end_seconds_) {
      end_ = id;
      end_seconds_ = seconds;
    }
  }

  const VariantTables& tables_;
  const DownsetLattice& tails_;
  const StageCatalog& catalog_;
  StagePrices& prices_;
  std::vector<std::uint8_t> position_;  // of nodes in the catalogue's order
  std::vector<double> left_;            // worth of the nodes outside, by tail
  std::vector<std::vector<double>> rises_;  // [data degree][sum]
  std::vector<Option> options_;
  std::vector<Useful> useful_;
  std::vector<std::uint32_t> followers_;  // places in useful_

  std::int64_t states_left_ = 0;
  std::vector<Label> labels_;
  std::vector<Front> fronts_;  // by tail
  std::vector<FrontLabel> open_;  // of the tail that is extended
  std::int32_t end_ = -1;         // label of all nodes
  float end_seconds_ = 0;
};

}  // namespace autopar::detail
