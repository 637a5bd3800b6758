#pragma once

#include <mutex>
#include <set>

#include <ATen/core/Tensor.h>

namespace autopar::autograd {

/// Sums of gradients whose memory holds no numbers yet. The first gradient is written there, and later ones are added:
/// nothing zeroes the memory, and no product reads the zeros. Callable from any thread.
class UnwrittenSums {
 public:
  /// @param sum  stays there until it is taken or discarded
  void add(const at::Tensor& sum) {
    const std::lock_guard lock(mutex_);
    if (sum.numel() > 0) sums_.insert(sum.const_data_ptr());
  }
  /// Whether the sum holds no numbers. The caller then writes all of it.
  [[nodiscard]] bool take(const at::Tensor& sum) {
    const std::lock_guard lock(mutex_);
    return sum.numel() > 0 && sums_.erase(sum.const_data_ptr()) > 0;
  }
  /// Its memory is freed.
  void discard(const at::Tensor& sum) { static_cast<void>(take(sum)); }
  /// Zeroes a sum that holds no numbers.
  void zero(const at::Tensor& sum) {
    if (take(sum)) sum.zero_();
  }
  /// Adds the gradient, or writes it if it is the first. @pre autograd records nothing
  void add_to(const at::Tensor& sum, const at::Tensor& gradient) {
    if (take(sum))
      sum.copy_(gradient);
    else
      sum.add_(gradient);
  }

 private:
  std::mutex mutex_;
  std::set<const void*> sums_;
};

}  // namespace autopar::autograd
