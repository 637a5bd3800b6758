#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <autopar/bottleneck/instance_file.hpp>

#include "text.hpp"

namespace branching {

/// How layers of a profile are joined into a graph that branches.
enum class Wiring { kTowers, kForkJoin, kSkips, kGlue, kMasks };
inline constexpr const char* kWiringNames[] = {"towers", "fork-join", "skips", "glue", "masks"};

/// A planning instance with many cuts whose nodes are those of a published profile: layers that differ by no more than
/// the noise of their measurement, an embedding, a pooler, and nodes that take no time.
class ProfileInstance {
 public:
  /// @param profile  a chain: some nodes of no work, an embedding, layers, a pooler
  ProfileInstance(std::uint64_t seed, Wiring wiring, const autopar::PlanningInstance& profile)
      : profile_(profile), random_(seed * 0x9E3779B97F4A7C15ull + 11) {
    random_.discard(8);
    find_kinds();
    switch (wiring) {
      case Wiring::kTowers:
        towers();
        break;
      case Wiring::kForkJoin:
        fork_join();
        break;
      case Wiring::kSkips:
        skips();
        break;
      case Wiring::kGlue:
        glue();
        break;
      case Wiring::kMasks:
        masks();
        break;
    }
  }

  [[nodiscard]] int nodes() const { return static_cast<int>(kind_of_.size()); }
  [[nodiscard]] const std::vector<std::pair<int, int>>& edges() const { return edges_; }

  /// @cost linear in the text
  [[nodiscard]] std::string json() const {
    return instance_json(
        profile_.costs.most_replicas(), nodes(), edges_, [&](int node) { return node_json(node); },
        [&](std::size_t edge) { return precise(bytes_[edge]); });
  }

 private:
  static constexpr double kHidden = 31457280, kMask = 16777216;  ///< bytes of the edges of the profile
  static constexpr autopar::NodeId kFree = autopar::NodeId::none();

  [[nodiscard]] int dice(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }

  void find_kinds() {
    for (const autopar::NodeId node : profile_.graph.nodes()) {
      const auto variants = profile_.costs.variants(profile_.graph, node, 1);
      const auto& v = variants.front();
      if (v.work > 0.01) {
        layers_.push_back(node);
      } else if (v.work > 0) {
        embedding_ = node;
      } else if (v.bytes > 0) {
        pooler_ = node;
      } else if (v.bytes_in_flight > 1e6) {
        mask_ = node;
      } else {
        tokens_ = node;
      }
    }
  }
  [[nodiscard]] autopar::NodeId layer() {
    return layers_[static_cast<std::size_t>(dice(0, static_cast<int>(layers_.size()) - 1))];
  }

  int add(autopar::NodeId kind, const std::vector<int>& before, double bytes = kHidden) {
    for (const int node : before) {
      edges_.emplace_back(node, nodes());
      bytes_.push_back(bytes);
    }
    kind_of_.push_back(kind);
    return nodes() - 1;
  }
  int embed() { return add(embedding_, {add(tokens_, {}), add(tokens_, {})}, 8192); }
  int chain(int from, int length) {
    for (int i = 0; i < length; ++i) from = add(layer(), {from});
    return from;
  }

  /// Towers of layers side by side, each with its own input or all with one.
  void towers() {
    const int branches = dice(3, 5), longest = branches == 3 ? 18 : branches == 4 ? 11 : 7;
    const bool own = dice(0, 1) == 1;
    const int head = own ? -1 : chain(embed(), dice(0, 2));
    std::vector<int> ends;
    for (int b = 0; b < branches; ++b) ends.push_back(chain(own ? embed() : head, dice(longest * 2 / 3, longest)));
    add(pooler_, {chain(add(layer(), ends), dice(0, 3))});
  }
  /// Blocks of several layers side by side, one block after the other, beside another tower.
  void fork_join() {
    int at = embed();
    const int root = at;
    for (int block = dice(2, 4); block > 0; --block) {
      std::vector<int> ends;
      for (int b = dice(3, 5); b > 0; --b) ends.push_back(chain(at, dice(1, 3)));
      at = add(layer(), ends);
    }
    add(pooler_, {at, chain(root, dice(6, 12))});
  }
  /// Three chains of layers that look at each other's, and at their own of several layers ago.
  void skips() {
    const int width = dice(3, 4), rows = width == 3 ? dice(12, 15) : dice(8, 10);
    const int root = embed();
    std::vector<std::vector<int>> chains(static_cast<std::size_t>(width), {root});
    for (int row = 1; row <= rows; ++row) {
      for (int c = 0; c < width; ++c) {
        auto& own = chains[static_cast<std::size_t>(c)];
        std::vector<int> before{own.back()};
        if (own.size() > 4 && dice(1, 100) <= 30) before.push_back(own[own.size() - 4]);
        const auto& other = chains[static_cast<std::size_t>(dice(0, width - 1))];
        if (&other != &own && row > 3 && dice(1, 100) <= 20) before.push_back(other[static_cast<std::size_t>(row) - 3]);
        own.push_back(add(layer(), before));
      }
    }
    std::vector<int> ends;
    for (const auto& chain : chains) ends.push_back(chain.back());
    add(pooler_, ends);
  }
  /// Towers with nodes between their layers that cost nothing, some of which carry the layers' values on.
  void glue() {
    const int branches = dice(3, 4), longest = branches == 3 ? 9 : 5;
    const int head = embed();
    std::vector<int> ends;
    for (int b = 0; b < branches; ++b) {
      int at = head;
      for (int i = dice(longest * 2 / 3, longest); i > 0; --i) {
        at = add(layer(), {at});
        const int carried = dice(0, 2);
        if (carried > 0) at = add(kFree, {at}, carried == 1 ? 0 : kHidden);
      }
      ends.push_back(at);
    }
    add(pooler_, {chain(add(kFree, ends), dice(0, 4))});
  }
  /// Towers whose layers each have small inputs of their own.
  void masks() {
    const int head = embed();
    std::vector<int> ends;
    for (int b = 0; b < 2; ++b) {
      int at = head;
      for (int i = dice(6, 8); i > 0; --i) {
        const int input = dice(0, 2) == 0 ? -1 : add(dice(0, 1) == 0 ? mask_ : tokens_, {});
        at = add(layer(), {at});
        if (input < 0) continue;
        edges_.emplace_back(input, at);
        bytes_.push_back(kind_of_[static_cast<std::size_t>(input)] == mask_ ? kMask : 8192);
      }
      ends.push_back(at);
    }
    add(pooler_, {chain(add(layer(), ends), dice(0, 8))});
  }

  [[nodiscard]] std::string node_json(int node) const {
    const autopar::NodeId kind = kind_of_[static_cast<std::size_t>(node)];
    std::string text = "{\"id\":" + std::to_string(node) + ",\"name\":\"op\",\"TMPCs\":{";
    bool first = true;
    for (const int degree : profile_.costs.tensor_degrees()) {
      text += std::string(first ? "\"" : ",\"") + std::to_string(degree) + "\":[";
      first = false;
      std::vector<autopar::NodeVariant> variants(1);
      variants[0].name = "vanilla";
      if (kind != kFree) variants = profile_.costs.variants(profile_.graph, kind, degree);
      const bool summed = degree > 1 && kind != kFree;
      for (std::size_t i = 0; i < variants.size(); ++i) {
        const auto& v = variants[i];
        text += std::string(i > 0 ? "," : "") + "{\"id\":\"" + v.name + "\",\"timePerSample\":" + precise(v.work) +
                ",\"parameterSize\":" + precise(v.parameters) + ",\"memoryUsageA\":" + precise(v.bytes_in_flight) +
                ",\"memoryUsageB\":" + precise(v.bytes) + ",\"syncTimeFw\":{" + ends(node, true, summed) +
                "},\"syncTimeBw\":{" + ends(node, false, summed) + "}}";
      }
      text += "]";
    }
    return text + "}}";
  }
  [[nodiscard]] std::string ends(int node, bool incoming, bool summed) const {
    std::string text;
    for (std::size_t e = 0; e < edges_.size(); ++e) {
      const auto& [from, to] = edges_[e];
      if ((incoming ? to : from) != node) continue;
      if (!text.empty()) text += ",";
      text += "\"" + std::to_string(incoming ? from : to) + "\":" + precise(summed ? bytes_[e] : 0);
    }
    return text;
  }

  const autopar::PlanningInstance& profile_;
  std::mt19937_64 random_;
  std::vector<autopar::NodeId> layers_, kind_of_;
  autopar::NodeId embedding_, pooler_, mask_, tokens_;
  std::vector<std::pair<int, int>> edges_;
  std::vector<double> bytes_;  ///< by edge
};

}  // namespace branching
