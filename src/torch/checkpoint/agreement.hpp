#pragma once

#include <exception>
#include <functional>
#include <string>

#include <autopar/core/error.hpp>
#include <autopar/runtime/world.hpp>

namespace autopar::checkpoint {

/// What ranks do together, for messages.
inline constexpr const char* kSaveAction = "save of a checkpoint";
inline constexpr const char* kLoadAction = "load of a checkpoint";

/// Rank 0's text, on every rank. Collective.
[[nodiscard]] std::string told_by_rank_0(World& world, const std::string& text, const char* action);

/// Runs `work`, which must not communicate, on every rank. Collective.
/// @throws CheckpointError, on every rank, if it threw on some: `subject` and the error of the first of them
void all_or_none(World& world, const char* action, const std::string& subject, const std::function<void()>& work);

/// The first error of a rank, which goes on, so that all ranks stay in step. Nothing is attempted after it.
class FirstError {
 public:
  template <class Body>
  void attempt(const Body& body) {
    if (!text_.empty()) return;
    try {
      body();
    } catch (const std::exception& met) {
      text_ = *met.what() == '\0' ? "an exception without a message" : met.what();
    }
  }
  void require_none() const {
    if (!text_.empty()) throw CheckpointError(text_);
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace autopar::checkpoint
