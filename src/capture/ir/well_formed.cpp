#include "capture/ir/well_formed.hpp"

#include <cstddef>
#include <vector>

namespace autopar::ir {

namespace {

class WellFormed {
 public:
  explicit WellFormed(const OpGraph& graph) : graph_(graph), results_(graph.values.size(), 0) {}

  [[nodiscard]] std::string fault() {
    for (std::size_t i = 0; i < graph_.ops.size() && fault_.empty(); ++i) check_op(OpId::of(i));
    for (std::size_t v = 0; v < graph_.values.size() && fault_.empty(); ++v) check_value(ValueId::of(v));
    for (const auto input : graph_.inputs) check_leaf(input, ValueKind::kInput, "input");
    for (const auto& parameter : graph_.parameters) check_leaf(parameter.value, ValueKind::kParameter, parameter.name);
    for (const auto& buffer : graph_.buffers) check_leaf(buffer.value, ValueKind::kBuffer, buffer.name);
    for (const auto output : graph_.outputs)
      require(exists(output), [&] { return std::string("an output is no value"); });
    return fault_;
  }

 private:
  /// @param fault  gives the words, which are made for a fault alone: most programs have none
  template <class Fault>
  void require(bool holds, const Fault& fault) {
    if (!holds && fault_.empty()) fault_ = fault();
  }
  [[nodiscard]] bool exists(ValueId value) const { return value.valid() && value.index() < graph_.values.size(); }
  [[nodiscard]] static std::string name(ValueId value) { return "value " + std::to_string(value.value()); }

  void check_op(OpId op) {
    const auto& node = graph_.op(op);
    for_each_input(node, [&](ValueId value) {
      require(exists(value), [&] { return graph_.describe(op) + " reads " + name(value) + ", which is none"; });
      if (!exists(value)) return;
      const auto definer = graph_.value(value).definer;
      require(!definer.valid() || definer < op,
              [&] { return graph_.describe(op) + " reads " + name(value) + " before it is made"; });
    });
    for_each_output(node, [&](ValueId value) {
      require(exists(value), [&] { return graph_.describe(op) + " makes " + name(value) + ", which is none"; });
      if (!exists(value)) return;
      ++results_[value.index()];
      require(graph_.value(value).definer == op,
              [&] { return graph_.describe(op) + " makes " + name(value) + ", which names another"; });
    });
    check_storages(op, node.reads);
    check_storages(op, node.writes);
  }

  void check_storages(OpId op, const std::vector<StorageId>& storages) {
    for (std::size_t k = 0; k < storages.size(); ++k) {
      require(storages[k].valid() && storages[k].value() < graph_.storage_count,
              [&] { return graph_.describe(op) + " reads or writes a storage that is none"; });
      require(k == 0 || storages[k - 1] < storages[k],
              [&] { return graph_.describe(op) + " has storages that do not ascend"; });
    }
  }

  void check_value(ValueId id) {
    const auto& value = graph_.value(id);
    require(value.is_leaf() != value.definer.valid(),
            [&] { return name(id) + " is a leaf that an operator makes, or made by none"; });
    require(results_[id.index()] == (value.is_leaf() ? 0 : 1),
            [&] { return name(id) + " is not one result of one operator"; });
    require(value.sizes.size() == value.strides.size() || value.strides.empty(),
            [&] { return name(id) + " has not as many strides as dims"; });
    require(!value.storage.valid() || value.storage.value() < graph_.storage_count,
            [&] { return name(id) + " lies in a storage that is none"; });
    if (!value.previous.valid()) return;
    require(exists(value.previous), [&] { return name(id) + " follows a version that is none"; });
    if (!exists(value.previous)) return;
    const auto& previous = graph_.value(value.previous);
    require(previous.storage == value.storage, [&] { return name(id) + " lies elsewhere than the version before it"; });
    require(!previous.definer.valid() || previous.definer < value.definer,
            [&] { return name(id) + " follows a version that is made later"; });
  }

  void check_leaf(ValueId id, ValueKind kind, const std::string& what) {
    require(exists(id) && graph_.value(id).kind == kind, [&] { return "'" + what + "' is no leaf of its kind"; });
  }

  const OpGraph& graph_;
  std::vector<int> results_;  ///< by value: of how many operators' results
  std::string fault_;
};

}  // namespace

std::string fault_of(const OpGraph& graph) { return WellFormed(graph).fault(); }

}  // namespace autopar::ir
