#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace autopar {

/// Ensures that calls which all ranks make in one order come from one thread at a time:
///
///   const auto inside = caller.enter("save");  // throws if another thread is inside
///
/// The thread may change from call to call; a thread that is inside may enter again. Thread-safe.
class OneCaller {
 public:
  /// Holds the entry while it lives. Destroy it on the thread that entered.
  class Inside {
   public:
    Inside(Inside&& other) noexcept : of_(std::exchange(other.of_, nullptr)) {}
    Inside& operator=(Inside&&) = delete;
    ~Inside() {
      if (of_ != nullptr) of_->leave();
    }

   private:
    friend class OneCaller;
    explicit Inside(OneCaller& of) : of_(&of) {}
    OneCaller* of_;
  };

  /// @param action  the name of the call in messages of this and other threads
  /// @throws InvalidArgument if another thread is inside; nothing has happened then
  [[nodiscard]] Inside enter(std::string_view action);

 private:
  void leave() noexcept;

  std::mutex mutex_;
  int depth_ = 0;  ///< nested entries of the thread that is inside
  std::thread::id thread_;
  std::string action_;  ///< the outermost entry
};

}  // namespace autopar
