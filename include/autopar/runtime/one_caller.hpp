#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace autopar {

/// Sees that what all ranks do in one order comes from one thread at a time:
///
///   const auto inside = caller.enter("save");  // throws if another thread is inside
///
/// Which thread it is may change from call to call; a thread that is inside may enter again. Any thread may use it.
class OneCaller {
 public:
  /// Inside while it lives, which ends on the thread that entered.
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

  /// @param action  names the call in messages, of this thread and of others
  /// @throws InvalidArgument if another thread is inside; nothing has happened then
  [[nodiscard]] Inside enter(std::string_view action);

 private:
  void leave() noexcept;

  std::mutex mutex_;
  int depth_ = 0;  ///< of the thread that is inside
  std::thread::id thread_;
  std::string action_;  ///< its outermost
};

}  // namespace autopar
