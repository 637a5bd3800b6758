#include "torch/interpret/stage_parts.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <autopar/graph/algorithms/acyclic_splitting.hpp>
#include <autopar/graph/graph.hpp>

namespace autopar::interpret {

namespace {

struct NoPayload {};
using AtomGraph = Graph<std::vector<OpId>, NoPayload>;

/// The atoms of a stage, in the order of their ids, which is topological.
AtomGraph atoms_of_stage(const OpGraph& graph, const std::vector<OpId>& ops, const std::vector<NodeId>& atom_of) {
  std::map<NodeId, std::vector<OpId>> ops_of;
  for (const auto op : ops) ops_of[atom_of[op.index()]].push_back(op);
  AtomGraph atoms;
  std::map<NodeId, NodeId> node_of;
  for (auto& [atom, members] : ops_of) node_of[atom] = atoms.add_node(std::move(members));
  for (const NodeId node : atoms.nodes()) {
    for (const auto op : atoms[node]) {
      for_each_input(graph.op(op), [&](ValueId value) {
        const auto definer = graph.value(value).definer;
        if (!definer.valid() || !atom_of[definer.index()].valid()) return;
        const auto from = node_of.find(atom_of[definer.index()]);
        if (from != node_of.end() && from->second != node) atoms.add_edge(from->second, node);
      });
    }
  }
  return atoms;
}

}  // namespace

std::vector<StagePart> parts_of_stage(const OpGraph& graph, const std::vector<OpId>& ops,
                                      const RecomputedAtoms& recomputed) {
  const auto segment_of = [&](OpId op) { return recomputed.segment_of[recomputed.atom_of[op.index()].index()]; };
  const bool once =
      recomputed.segment_of.empty() || std::all_of(ops.begin(), ops.end(), [&](OpId op) { return segment_of(op) < 0; });
  if (once) return {{ops, false}};
  const auto atoms = atoms_of_stage(graph, ops, recomputed.atom_of);
  std::vector<int> groups;
  for (const NodeId node : atoms.nodes()) groups.push_back(segment_of(atoms[node].front()));
  std::vector<StagePart> parts;
  for (const auto& members : acyclic_splitting(atoms, groups)) {
    const bool is_segment = groups[members.front().index()] >= 0;
    if (is_segment || parts.empty() || parts.back().recomputed) parts.push_back({{}, is_segment});
    auto& part = parts.back().ops;
    for (const NodeId node : members) part.insert(part.end(), atoms[node].begin(), atoms[node].end());
  }
  for (auto& part : parts) std::sort(part.ops.begin(), part.ops.end());
  return parts;
}

}  // namespace autopar::interpret
