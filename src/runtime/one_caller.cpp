#include <autopar/runtime/one_caller.hpp>

#include <autopar/core/error.hpp>

namespace autopar {

OneCaller::Inside OneCaller::enter(std::string_view action) {
  const std::lock_guard lock(mutex_);
  if (depth_ > 0 && thread_ != std::this_thread::get_id()) {
    throw InvalidArgument("'" + std::string(action) + "' was called while another thread of this rank is in '" +
                          action_ +
                          "': calls must come from one thread, since all ranks make them in one order; make them "
                          "from the same thread, or wait for the other one first");
  }
  if (depth_++ == 0) {
    thread_ = std::this_thread::get_id();
    action_ = action;
  }
  return Inside(*this);
}

void OneCaller::leave() noexcept {
  const std::lock_guard lock(mutex_);
  --depth_;
}

}  // namespace autopar
