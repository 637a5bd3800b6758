#include "torch/staging/planned_segments.hpp"

#include <utility>

namespace autopar::staging {

namespace {

std::string operators_of(const OpGraph& graph, const std::vector<OpId>& ops) {
  std::string names;
  for (const auto op : ops) names += graph.name(op) + "." + graph.overload(op) + " ";
  return names;
}

/// Calls `visit` with the name of each parameter that the ops read.
template <class Visit>
void for_each_parameter(const OpGraph& graph, const std::vector<OpId>& ops, Visit&& visit) {
  for (const auto value : parameters_read(graph, ops)) visit(graph.value(value).name);
}

}  // namespace

PlannedSegments::PlannedSegments(const Plan& plan, const OpGraph& graph, const cost::AtomPartition& atoms) {
  int segments = 0;
  for (const auto& stage : plan.stages) {
    for (const auto& segment : stage.recomputed) {
      segment_of_.resize(atoms.atoms.size(), -1);
      for (const auto atom : segment) segment_of_.at(atom.index()) = segments;
      ++segments;
    }
  }
  if (segment_of_.empty()) return;
  for (std::size_t atom = 0; atom < atoms.atoms.size(); ++atom) {
    operators_.push_back(operators_of(graph, atoms.atoms[atom]));
    for_each_parameter(graph, atoms.atoms[atom],
                       [&](const std::string& name) { by_parameter_.emplace(name, segment_of_[atom]); });
  }
}

interpret::RecomputedAtoms PlannedSegments::in(const OpGraph& graph, const cost::AtomPartition& atoms) const {
  if (segment_of_.empty()) return {};
  interpret::RecomputedAtoms out{atoms.atom_of, segment_of_};
  bool same = atoms.atoms.size() == operators_.size();
  for (std::size_t atom = 0; same && atom < operators_.size(); ++atom) {
    same = operators_of(graph, atoms.atoms[atom]) == operators_[atom];
  }
  if (same) return out;
  out.segment_of.clear();
  int before = -1;
  for (const auto& ops : atoms.atoms) {
    bool found = false;
    for_each_parameter(graph, ops, [&](const std::string& name) {
      const auto known = by_parameter_.find(name);
      if (found || known == by_parameter_.end()) return;
      before = known->second;
      found = true;
    });
    out.segment_of.push_back(before);
  }
  return out;
}

}  // namespace autopar::staging
