#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <autopar/runtime/world.hpp>
#include <autopar/torch/kept.hpp>
#include <autopar/torch/load_options.hpp>

#include "torch/checkpoint/kept_text.hpp"

namespace autopar::checkpoint {

/// The objects outside the model that the user registered for save and load, by reference and by name.
///
///   kept.add("epoch", detail::kept_object(epoch), KeptScope::kAllRanks);
///   const auto values = kept.collect(world, "cannot save run/step-1000");   // for SavedInfo
class KeptValues {
 public:
  /// Does not communicate.
  /// @throws InvalidArgument if the name is taken, empty, or has control characters
  void add(const std::string& name, detail::KeptObject object, KeptScope scope);

  /// The values of all objects; those of kPerRank have the values of all ranks on rank 0, and none elsewhere.
  /// Collective.
  /// @throws CheckpointError, on every rank, with `subject`, the name and two ranks, if ranks registered other objects,
  /// or have different values where one is saved; or if a value is too large
  [[nodiscard]] std::map<std::string, KeptValue> collect(World& world, const std::string& subject) const;

 private:
  friend class KeptLoad;
  struct Entry {
    detail::KeptObject object;
    KeptScope scope = KeptScope::kAllRanks;
  };
  std::map<std::string, Entry> entries_;
};

/// The kept values of one load: checked first, taken later.
class KeptLoad {
 public:
  /// Checks the values of a checkpoint for the registered objects. Collective.
  /// @param saved  of the checkpoint; the same on all ranks
  /// @throws CheckpointError, on every rank, if ranks registered other objects, the checkpoint lacks a name and that is
  /// refused, a value does not fit its object, or values of ranks are of another world size; nothing has changed
  KeptLoad(World& world, const KeptValues& kept, const std::map<std::string, KeptValue>& saved, Missing missing,
           std::string subject);

  /// Sets all objects, on all ranks or none. Rank 0 logs the names of the checkpoint that are not registered.
  /// Collective.
  /// @throws CheckpointError, on every rank, if an object's own `load` threw on some. All objects are then set to what
  /// they saved of themselves before; if one cannot be, the message names it.
  void take();

 private:
  struct Change {
    std::string name;
    std::function<void()> apply;
    std::function<void()> undo;  ///< empty: the object could not save its present value
  };
  void plan_changes(const KeptValues& kept, const std::map<std::string, KeptValue>& saved, Missing missing);
  void undo(std::size_t count) const;

  World& world_;
  std::string subject_;
  std::vector<Change> changes_;
  std::string unknown_;  ///< names that are not registered, as text
};

}  // namespace autopar::checkpoint
