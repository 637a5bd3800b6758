#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include <autopar/bottleneck/least_needs.hpp>
#include <autopar/bottleneck/rest_devices.hpp>
#include <autopar/bottleneck/tables.hpp>

namespace autopar::detail {

/// A stage that grows node by node in front of a tail, with lower bounds on its needs under each tensor degree. A node
/// joins after all its successors, so its contribution depends on the tail alone.
///
/// Refers to its arguments, which must outlive it.
class GrowingStage {
 public:
  static constexpr std::size_t kLanes = 4;  ///< tensor degrees that are processed together

  GrowingStage(const VariantTables& tables, const LeastNeeds& least, const RestDevices& rest)
      : tables_(tables), least_(least), rest_(rest), blocks_((tables.tensor_degrees.size() + kLanes - 1) / kLanes) {
    const std::size_t nodes = tables_.graph.node_count();
    position_in_.resize(tables_.graph.edge_count());
    for (const NodeId node : tables_.graph.nodes()) {
      std::size_t e = 0;
      for (const EdgeId edge : tables_.graph.in_edges(node)) position_in_[edge.index()] = e++;
    }
    terms_.assign(nodes * blocks_, {});
    stamp_.assign(nodes, 0);
    inside_.assign(nodes, 0);
    frames_.assign((nodes + 1) * blocks_, {});
    words_.assign((nodes + 63) / 64, 0);
    held_.assign(tables_.tensor_degrees.size(), 0);
  }

  /// Starts an empty stage in front of a tail of these nodes.
  /// @param row     of `RestDevices`
  /// @param fewest, lowest  lower bounds on the tail's devices and on its sum of data degrees
  template <class Nodes>
  void begin(const Nodes& tail, double limit, std::size_t row, int fewest, int lowest) {
    limit_ = limit;
    row_ = row;
    for (std::size_t t = 0; t < held_.size(); ++t) {
      const int most = std::min((tables_.devices - fewest) / tables_.tensor_degrees[t], tables_.most_replicas - lowest);
      held_[t] = least_.row_of(most < 1 ? 1 : 1 + (lowest + most - 1) / most);
    }
    in_tail_.assign(tables_.graph.node_count(), 0);
    for (const NodeId node : tail) in_tail_[node.index()] = 1;
    ++now_;
    nodes_.clear();
    std::fill_n(frames_.begin(), blocks_, Terms{});
  }

  void enter(NodeId node) {
    inside_[node.index()] = 1;
    words_[node.index() / 64] ^= std::uint64_t{1} << node.index() % 64;
    nodes_.push_back(node);
    if (stamp_[node.index()] != now_) {
      stamp_[node.index()] = now_;
      describe(node);
    }
    const std::size_t depth = nodes_.size();
    for (std::size_t b = 0; b < blocks_; ++b)
      frames_[depth * blocks_ + b] = frames_[(depth - 1) * blocks_ + b].plus(terms_[node.index() * blocks_ + b]);
  }
  void leave(NodeId node) {
    inside_[node.index()] = 0;
    words_[node.index() / 64] ^= std::uint64_t{1} << node.index() % 64;
    nodes_.pop_back();
  }

  [[nodiscard]] const std::vector<NodeId>& nodes() const { return nodes_; }
  [[nodiscard]] const std::vector<char>& inside() const { return inside_; }         ///< by node
  [[nodiscard]] const std::vector<std::uint64_t>& words() const { return words_; }  ///< a bit for each node
  [[nodiscard]] std::size_t blocks() const { return blocks_; }
  /// Lower bound on devices, from work and crossing edges.
  [[nodiscard]] double devices(std::size_t t) const { return frame(t / kLanes).devices[t % kLanes]; }

  struct Lanes {
    unsigned grows = 0;  ///< by bit: tensor degrees under which a larger stage may be feasible
    unsigned now = 0;    ///< likewise this stage
  };
  /// @param spare  devices that the stage may need beyond the bound of `RestDevices`
  /// @param room   devices available to it
  [[nodiscard]] Lanes possible(std::size_t block, double spare, double room) const {
    const Terms& terms = frame(block);
    Lanes lanes;
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      const unsigned can = (terms.waste[lane] <= spare) & (terms.bytes[lane] <= tables_.memory);
      lanes.grows |= can << lane;
      lanes.now |= (can & static_cast<unsigned>(terms.devices[lane] <= room)) << lane;
    }
    return lanes;
  }

 private:
  using Sums = std::array<double, kLanes>;
  struct Terms {
    Sums devices{};
    Sums waste{};  ///< see RestDevices
    Sums bytes{};  ///< lower bound

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

  [[nodiscard]] const Terms& frame(std::size_t block) const { return frames_[nodes_.size() * blocks_ + block]; }

  void describe(NodeId node) {
    for (std::size_t t = 0; t < blocks_ * kLanes; ++t) {
      Terms& terms = terms_[node.index() * blocks_ + t / kLanes];
      const std::size_t lane = t % kLanes;
      if (t >= tables_.tensor_degrees.size()) {
        terms.waste[lane] = std::numeric_limits<double>::infinity();
        continue;
      }
      const LeastNeeds::Node& least = least_.at(node, t);
      terms.devices[lane] = tables_.tensor_degrees[t] / limit_ *
                            (least.work * least_.work_share() + border_of(node, least, t) * least_.border_share());
      terms.waste[lane] = rest_.waste(row_, node, t);
      terms.bytes[lane] = least_.held(held_[t], node, t);
    }
  }
  [[nodiscard]] double border_of(NodeId node, const LeastNeeds::Node& least, std::size_t t) const {
    if (least.work == std::numeric_limits<double>::infinity()) return 0;
    double border = least.all_in;
    std::size_t e = 0;
    for (const EdgeId edge : tables_.graph.out_edges(node)) {
      const NodeId after = tables_.graph.target(edge);
      if (in_tail_[after.index()]) {
        border += least.out[e];
      } else {
        const LeastNeeds::Node& other = least_.at(after, t);
        if (!other.in.empty()) border -= other.in[position_in_[edge.index()]];
      }
      ++e;
    }
    return border;
  }

  const VariantTables& tables_;
  const LeastNeeds& least_;
  const RestDevices& rest_;
  std::size_t blocks_;
  std::vector<std::size_t> position_in_;  // of an edge among its target's in-edges

  double limit_ = 0;
  std::size_t row_ = 0;
  std::vector<std::size_t> held_;  // row of `LeastNeeds::held`, by tensor degree
  std::vector<char> in_tail_, inside_;
  std::vector<std::uint64_t> words_;
  std::vector<std::uint32_t> stamp_;
  std::uint32_t now_ = 0;
  std::vector<Terms> terms_, frames_;  // [node][block], [nodes in the stage][block]
  std::vector<NodeId> nodes_;
};

}  // namespace autopar::detail
