#pragma once

#include <memory>
#include <string>
#include <utility>

#include <autopar/runtime/log.hpp>
#include <autopar/torch/session.hpp>

#include "torch/programs/captured_program.hpp"
#include "torch/programs/recent_map.hpp"

namespace autopar::programs {

/// Captured programs by the key of the call that they were captured for: mode, signature, what requires gradients. The
/// one used longest ago of more than `kRememberedPrograms` is forgotten. Calls under way and gradients that wait for
/// their backward hold their programs themselves. Ranks that ask for equal keys in one order know the same programs.
class ProgramCache {
 public:
  /// @param log  of rank 0; silent elsewhere
  explicit ProgramCache(Logger log = {}) : log_(std::move(log)) {}

  /// Null if there is none. Keeps it longer.
  [[nodiscard]] std::shared_ptr<CapturedProgram> find(const std::string& key) {
    const auto* found = programs_.find(key);
    return found == nullptr ? nullptr : *found;
  }
  /// As `find`, without keeping it longer.
  [[nodiscard]] std::shared_ptr<CapturedProgram> peek(const std::string& key) const {
    const auto* found = programs_.peek(key);
    return found == nullptr ? nullptr : *found;
  }
  [[nodiscard]] bool knows(const std::string& key) const { return programs_.peek(key) != nullptr; }
  /// Whether there is one, which does not stand for the call any more.
  [[nodiscard]] bool is_stale(const std::string& key) const {
    const auto program = peek(key);
    return program != nullptr && program->is_stale();
  }
  /// In place of the one with this key. Warns once where another is forgotten for it.
  /// @return whether another was forgotten
  bool remember(const std::string& key, std::shared_ptr<CapturedProgram> program) {
    const bool forgets = programs_.is_full() && !knows(key);
    programs_.put(key, std::move(program));
    if (forgets && !std::exchange(warned_, true)) {
      log_.warn("forward was captured for more than " + std::to_string(kRememberedPrograms) +
                " signatures of its arguments, so the one called longest ago is forgotten, and captured again when it "
                "comes back. Each capture takes time: pass a number that changes from call to call as a 0-dim tensor, "
                "and let sizes other than the batch's be few");
    }
    return forgets;
  }
  void clear() { programs_.clear(); }

 private:
  Logger log_;
  bool warned_ = false;
  RecentMap<std::string, std::shared_ptr<CapturedProgram>> programs_{kRememberedPrograms};
};

}  // namespace autopar::programs
