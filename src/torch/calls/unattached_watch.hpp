#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}

namespace autopar::calls {

/// Sees that parameters which got gradients are changed afterwards though no attached optimizer has them: libtorch's
/// optimizers tell nobody that they exist.
///
/// It keeps the first numbers of a few parameters that got gradients in the first call, and compares them in the calls
/// 1, 2, 4, … 64 after it; then it is over. On a device each comparison waits for it once.
class UnattachedWatch {
 public:
  /// Parameters of this optimizer are not looked at from now on. It need not live on.
  void cover(const torch::optim::Optimizer& optimizer);
  /// A parameter of which this rank holds `handle` got a gradient.
  void note_gradient(const at::Tensor& handle);
  /// At the start of a call: the handle of a parameter that was changed since it got a gradient; undefined if none is
  /// known. Once only.
  [[nodiscard]] at::Tensor look();
  [[nodiscard]] bool is_over() const { return calls_ > kLastCall; }

 private:
  static constexpr std::size_t kFew = 4;
  static constexpr std::int64_t kLastCall = 64;
  struct Kept {
    at::Tensor handle, first;
  };
  [[nodiscard]] static at::Tensor first_numbers(const at::Tensor& handle);

  std::unordered_set<const void*> covered_;  ///< addresses, which outlive the optimizers
  std::vector<Kept> kept_;
  std::int64_t calls_ = 0;  ///< since a parameter was kept
};

}  // namespace autopar::calls
