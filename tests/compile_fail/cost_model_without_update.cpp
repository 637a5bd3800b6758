// expect: Planner: the costs do not model CostModel of the graph: they need
// expect: `Seconds update(Bytes, double factor) const`
// expect: model.update(bytes, samples)
#include <autopar/plan/planner.hpp>

namespace ap = autopar;

struct MyCosts {
  ap::NodeCost node(const ap::ModelGraph& graph, ap::NodeId node, double samples) const;
  ap::ValueProfile value(const ap::ModelGraph& graph, ap::EdgeId edge) const;
  ap::Seconds transfer(ap::Bytes bytes, ap::Rank from, ap::Rank to) const;
  ap::Seconds all_reduce(ap::Bytes bytes, std::span<const ap::Rank> ranks) const;
};

ap::Plan planned(const ap::ModelGraph& graph, const MyCosts& costs, const ap::Cluster& cluster) {
  return ap::Planner<>{}.plan(graph, costs, cluster, {});
}
