#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include <autopar/bottleneck/tables.hpp>

namespace autopar::detail {

/// Lower bounds on what each node needs under each tensor degree, over all its variants.
class LeastNeeds {
 public:
  /// One node under one tensor degree. `work`, `in_flight` and `bytes` are those of the variant with the least work;
  /// everything else is the minimum over variants.
  struct Node {
    double work = std::numeric_limits<double>::infinity();  ///< infinite if it cannot run so
    double parameters = 0, in_flight = 0, bytes = 0, all_in = 0;
    double least_in_flight = 0, least_bytes = 0;
    std::vector<double> in{}, out{};
  };

  explicit LeastNeeds(const VariantTables& tables)
      : nodes_(tables.graph.node_count()), degrees_(tables.tensor_degrees.size()) {
    of_.assign(nodes_ * degrees_, {});
    for (int waiting = 1; waiting <= tables.devices + 1; waiting = waiting < 4 ? waiting + 1 : waiting + waiting / 4)
      held_at_.push_back(waiting);
    held_.assign(held_at_.size() * nodes_ * degrees_, std::numeric_limits<double>::infinity());
    for (std::size_t n = 0; n < nodes_; ++n) {
      for (std::size_t t = 0; t < degrees_; ++t) tabulate(n, t, tables.variants[n][t]);
    }
    for (std::size_t d = 0; d < tables.replicas.size(); ++d) {
      work_share_ = std::min(work_share_, tables.replicas[d] * tables.work_share[d]);
      border_share_ = std::min(border_share_, tables.replicas[d] * tables.border_cost[d]);
    }
  }

  [[nodiscard]] const Node& at(NodeId node, std::size_t t) const { return of_[node.index() * degrees_ + t]; }
  /// Whether the variants of each node differ in work and bytes only.
  [[nodiscard]] bool uniform() const { return uniform_; }
  /// Least device-seconds for a second of work, and for a crossing byte.
  [[nodiscard]] double work_share() const { return work_share_; }
  [[nodiscard]] double border_share() const { return border_share_; }

  /// The row of `held` for a number of micro-batches in flight, rounded down.
  [[nodiscard]] std::size_t row_of(int waiting) const {
    return static_cast<std::size_t>(std::upper_bound(held_at_.begin(), held_at_.end(), waiting) - held_at_.begin()) - 1;
  }
  /// Least bytes of a node with the row's number of micro-batches in flight.
  [[nodiscard]] double held(std::size_t row, NodeId node, std::size_t t) const {
    return held_[(row * nodes_ + node.index()) * degrees_ + t];
  }

 private:
  void tabulate(std::size_t n, std::size_t t, const std::vector<NodeVariant>& variants) {
    if (!variants.empty()) of_[n * degrees_ + t] = least_of(variants);
    for (const NodeVariant& v : variants) {
      for (std::size_t y = 0; y < held_at_.size(); ++y) {
        double& held = held_[(y * nodes_ + n) * degrees_ + t];
        held = std::min(held, v.bytes_in_flight * held_at_[y] + v.bytes);
      }
      uniform_ =
          uniform_ && v.parameters == variants[0].parameters && v.in == variants[0].in && v.out == variants[0].out;
    }
  }

  [[nodiscard]] static Node least_of(const std::vector<NodeVariant>& variants) {
    Node least;
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
      for (std::size_t e = 0; e < v.in.size(); ++e) least.in[e] = std::min(least.in[e], v.in[e]);
      for (std::size_t e = 0; e < v.out.size(); ++e) least.out[e] = std::min(least.out[e], v.out[e]);
    }
    for (const double bytes : least.in) least.all_in += bytes;
    return least;
  }

  std::size_t nodes_, degrees_;
  std::vector<Node> of_;      // [node][tensor degree]
  std::vector<int> held_at_;  // micro-batches in flight, ascending
  std::vector<double> held_;  // [position above][node][tensor degree]
  bool uniform_ = true;
  double work_share_ = std::numeric_limits<double>::infinity(), border_share_ = work_share_;
};

}  // namespace autopar::detail
