#pragma once

#include <autopar/plan/options.hpp>

#include "torch/planning/user_cache.hpp"
#include "torch/ranks/ranks.hpp"

namespace autopar::session {

/// The options of a model: those of its code until the first call, then what all ranks agree on (files, environment).
class SessionOptions {
 public:
  explicit SessionOptions(Options code) : code_(std::move(code)), options_(code_) {}

  /// The reference stays valid; what it refers to changes when options are resolved.
  [[nodiscard]] const Options& get() const { return options_; }
  [[nodiscard]] bool resolved() const { return resolved_; }
  /// Of the user who runs the program. @pre resolved()
  [[nodiscard]] const planning::UserCache& cache() const { return cache_; }
  /// Reads the process's options, compares them between ranks, and sets log levels and stall limits of the World.
  /// Collective, once. @throws ConfigError, InvalidArgument on all ranks
  void resolve(ranks::WorldRanks& ranks);

 private:
  Options code_, options_;
  bool resolved_ = false;
  planning::UserCache cache_;
};

}  // namespace autopar::session
