#pragma once

#include <map>
#include <string>
#include <vector>

#include <autopar/capture/op_graph.hpp>
#include <autopar/plan/plan.hpp>

#include "torch/cost/partition.hpp"
#include "torch/interpret/stage_parts.hpp"

namespace autopar::staging {

/// The segments that a plan recomputes, found in every captured program of the model.
///
/// The plan identifies atoms of the program that it was made for. A program with the same operators in each atom (but
/// other sizes) recomputes the same atoms. In other programs (another mode), an atom that reads parameters belongs to
/// the segment that reads them. An atom that reads none belongs to the segment of the atom before it.
class PlannedSegments {
 public:
  PlannedSegments() = default;
  /// @param graph, atoms  of the program that the plan was made for
  PlannedSegments(const Plan& plan, const OpGraph& graph, const cost::AtomPartition& atoms);

  [[nodiscard]] interpret::RecomputedAtoms in(const OpGraph& graph, const cost::AtomPartition& atoms) const;

 private:
  std::vector<int> segment_of_;              ///< by atom of the plan's program; empty: nothing is recomputed
  std::vector<std::string> operators_;       ///< by atom: names of its operators
  std::map<std::string, int> by_parameter_;  ///< the first segment that reads the parameter
};

}  // namespace autopar::staging
