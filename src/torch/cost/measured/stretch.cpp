#include "torch/cost/measured/stretch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>

#include <autopar/graph/algorithms/topological_order.hpp>

namespace autopar::cost::detail {

namespace {

/// Bytes of atoms that run together.
class Held {
 public:
  Held(const ModelProfile& model, double samples) : model_(model), samples_(samples) {}

  void add(NodeId node) {
    constexpr int kCopies = 2;  // a parameter and its gradient
    const auto& atom = model_.graph[node];
    saved_ += atom.saved.at(samples_);
    workspace_ = std::max(workspace_, atom.workspace.at(samples_));
    for (const auto parameter : atom.parameters) {
      if (!parameters_.insert(parameter).second) continue;
      saved_ += static_cast<double>(kCopies * model_.parameters[parameter.index()].bytes.value());
    }
  }
  [[nodiscard]] double bytes() const { return saved_ + workspace_; }

 private:
  const ModelProfile& model_;
  double samples_;
  std::set<ParameterId> parameters_;
  double saved_ = 0, workspace_ = 0;
};

}  // namespace

Stretch typical_stretch(const GraphProfile& profile, double samples, Bytes most,
                        const std::function<std::optional<Seconds>(NodeId)>& time) {
  const auto& graph = profile.model.graph;
  const auto order = topological_order(graph);
  std::map<std::uint64_t, Seconds> by_structure;
  std::vector<bool> may_run;  // by position in `order`
  Seconds all;
  for (const NodeId node : order) {
    const auto seconds = time(node);
    may_run.push_back(seconds.has_value());
    by_structure[graph[node].structure] += seconds.value_or(Seconds{});
    all += seconds.value_or(Seconds{});
  }
  std::span<const NodeId> best;
  Seconds most_time;
  for (std::size_t first = 0; first < order.size() && most_time < all; ++first) {
    Held held(profile.model, samples);
    std::set<std::uint64_t> structures;
    Seconds spoken_for;
    std::size_t end = first;
    for (; end < order.size() && may_run[end]; ++end) {
      held.add(order[end]);
      if (held.bytes() > static_cast<double>(most.value())) break;
      const auto structure = graph[order[end]].structure;
      if (structures.insert(structure).second) spoken_for += by_structure.at(structure);
    }
    if (spoken_for > most_time) {
      most_time = spoken_for;
      best = std::span(order).subspan(first, end - first);
    }
    if (end == order.size()) break;  // later ones are parts of this
  }
  Stretch stretch;
  stretch.atoms.assign(best.begin(), best.end());
  for (const NodeId node : best) {
    const auto& ops = profile.atoms.atoms[node.index()];
    stretch.ops.insert(stretch.ops.end(), ops.begin(), ops.end());
  }
  std::ranges::sort(stretch.ops);
  return stretch;
}

}  // namespace autopar::cost::detail
