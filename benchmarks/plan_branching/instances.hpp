#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "text.hpp"

namespace branching {

/// How a generated graph branches.
enum class Shape { kChains, kBlocks, kLayers, kFan };
inline constexpr const char* kShapeNames[] = {"chains", "blocks", "layers", "fan"};

/// A planning instance in the format of msr-fiddle/piper with many cuts, from a seed alone: nodes with the magnitudes
/// of the published BERT (tensor degrees 1 to 8, some nodes only 1; vanilla and recomputed), all costs perturbed so
/// that no two nodes are alike.
class Instance {
 public:
  Instance(std::uint64_t seed, Shape shape) : random_(seed * 0x9E3779B97F4A7C15ull + 7) {
    random_.discard(8);
    same_sizes_ = chance(50);
    switch (shape) {
      case Shape::kChains:
        chains();
        break;
      case Shape::kBlocks:
        blocks();
        break;
      case Shape::kLayers:
        layers();
        break;
      case Shape::kFan:
        fan();
        break;
    }
  }

  [[nodiscard]] int nodes() const { return nodes_; }
  [[nodiscard]] const std::vector<std::pair<int, int>>& edges() const { return edges_; }

  /// @cost linear in the text
  [[nodiscard]] std::string json() {
    std::vector<double> carried;  // bytes, by edge
    for (std::size_t e = 0; e < edges_.size(); ++e) carried.push_back(std::floor(uniform(0.2, 1.5) * 30e6));
    return instance_json(
        1920, nodes_, edges_, [&](int node) { return node_json(node); },
        [&](std::size_t edge) { return number(carried[edge]); });
  }

 private:
  [[nodiscard]] double uniform(double low, double high) {
    return low + (high - low) * static_cast<double>(random_() >> 11) * 0x1p-53;
  }
  [[nodiscard]] int dice(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }
  [[nodiscard]] bool chance(int percent) { return dice(1, 100) <= percent; }
  static std::string number(double value) { return std::to_string(value); }

  int add(const std::vector<int>& before) {
    for (const int node : before) edges_.emplace_back(node, nodes_);
    return nodes_++;
  }
  int chain(int from, int length) {
    for (int i = 0; i < length; ++i) from = add({from});
    return from;
  }

  /// Several towers between a fork and a join.
  void chains() {
    const int branches = dice(3, 5), longest = branches == 3 ? 18 : branches == 4 ? 11 : 7;
    const int head = chain(add({}), dice(0, 2));
    std::vector<int> ends;
    for (int b = 0; b < branches; ++b) ends.push_back(chain(head, dice(longest * 2 / 3, longest)));
    chain(add(ends), dice(0, 3));
  }
  /// Forks and joins one after the other, with another tower beside them.
  void blocks() {
    int at = add({});
    const int root = at;
    for (int block = dice(2, 4); block > 0; --block) {
      std::vector<int> ends;
      for (int b = dice(3, 5); b > 0; --b) ends.push_back(chain(at, dice(1, 3)));
      at = add(ends);
    }
    add({at, chain(root, dice(6, 12))});
  }
  /// Rows of nodes with random edges from the row before.
  void layers() {
    const int width = dice(3, 5), rows = dice(24, 40) / width;
    std::vector<int> row;
    for (int i = 0; i < width; ++i) row.push_back(add({}));
    for (int r = 1; r < rows; ++r) {
      std::vector<int> next;
      for (int i = 0; i < width; ++i) {
        std::vector<int> before{row[static_cast<std::size_t>(i)]};
        const int other = dice(0, width - 1);
        if (other != i && chance(25)) before.push_back(row[static_cast<std::size_t>(other)]);
        next.push_back(add(before));
      }
      row = std::move(next);
    }
    add(row);
  }
  /// Many short branches side by side.
  void fan() {
    const int head = chain(add({}), dice(2, 8));
    std::vector<int> ends;
    for (int b = dice(8, 10); b > 0; --b) ends.push_back(chain(head, b % 3 == 0 ? 3 : chance(50) ? 1 : 2));
    chain(add(ends), dice(2, 8));
  }

  [[nodiscard]] std::string node_json(int node) {
    const double seconds = uniform(0.002, 0.04), parameters = uniform(0.02, 1) * 180e6;
    const double saved = (same_sizes_ ? 1 : uniform(0.05, 1.5)) * 600e6,
                 kept = (same_sizes_ ? 0.08 : uniform(0.02, 0.2));
    const double overhead = uniform(0.02, 0.3), recompute = uniform(1.2, 1.5),
                 sync = std::floor(uniform(0.2, 1.2) * 30e6);
    const bool only_one = chance(8);
    const double held = same_sizes_ ? 2 * 177e6 : 2 * parameters;
    std::string text = "{\"id\":" + std::to_string(node) + ",\"name\":\"op\",\"TMPCs\":{";
    for (const int degree : {1, 2, 4, 8}) {
      if (only_one && degree > 1) break;
      const double share = 1.0 / degree, time = seconds * (share + overhead * (1 - share));
      const double full = saved * (share + 0.15 * (1 - share));
      const auto variant = [&](const char* name, double t, double a, double b) {
        return std::string("{\"id\":\"") + name + "\",\"timePerSample\":" + precise(t) +
               ",\"parameterSize\":" + number(std::floor(parameters * share)) +
               ",\"memoryUsageA\":" + number(std::floor(a)) + ",\"memoryUsageB\":" + number(std::floor(b)) +
               ",\"syncTimeFw\":{" + ends(node, true, degree > 1 ? sync : 0) + "},\"syncTimeBw\":{" +
               ends(node, false, degree > 1 ? sync : 0) + "}}";
      };
      if (degree > 1) text += ",";
      text += "\"" + std::to_string(degree) + "\":[" + variant("vanilla", time, full, held * share) + "," +
              variant("activation recomp", time * recompute, saved * kept, held * share + full) + "]";
    }
    return text + "}}";
  }
  [[nodiscard]] std::string ends(int node, bool incoming, double bytes) const {
    std::string text;
    for (const auto& [from, to] : edges_) {
      if ((incoming ? to : from) != node) continue;
      if (!text.empty()) text += ",";
      text += "\"" + std::to_string(incoming ? from : to) + "\":" + number(bytes);
    }
    return text;
  }

  std::mt19937_64 random_;
  bool same_sizes_ = false;  ///< memory alike, as of repeated layers; times never
  int nodes_ = 0;
  std::vector<std::pair<int, int>> edges_;
};

}  // namespace branching
