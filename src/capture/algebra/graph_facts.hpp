#pragma once

#include <cstdint>
#include <vector>

#include "capture/algebra/batch_algebra.hpp"

namespace autopar::algebra {

/// The kinds of leaves from which a value was computed. Aliases share it: it is stored by storage.
struct Provenance {
  bool inputs = false;
  bool parameters = false;
  bool buffers = false;
  bool random = false;

  Provenance& operator|=(const Provenance& other);
};

/// What follows from a graph before anything is typed. All fields are by index.
struct GraphFacts {
  GraphFacts(const OpGraph& of, const AlgebraOptions& options);

  [[nodiscard]] Provenance provenance(ValueId value) const;
  /// All live ops that values are computed from, up to the last definer among them.
  [[nodiscard]] std::vector<bool> cone(const std::vector<ValueId>& values) const;

  const OpGraph& graph;
  std::vector<ValueId> leaf_of_storage;  ///< none: made by an op
  std::vector<std::vector<ValueId>> values_of_storage;
  std::vector<bool> live;              ///< by op: somebody needs memory that it makes or writes
  std::vector<std::int32_t> last_use;  ///< by value: last live op that reads it; ops.size() for outputs
  std::vector<bool> written_storage;   ///< leaf storages that a live op writes
  std::vector<Provenance> of_storage;  ///< see `provenance`
  std::vector<Provenance> of_value;    ///< for values without storage

 private:
  void find_leaves();
  void find_live_ops();
  void find_provenance(const AlgebraOptions& options);
};

}  // namespace autopar::algebra
