#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <autopar/capture/op_graph.hpp>

namespace torch::nn {
class Module;
}

namespace autopar::trace {

/// One tensor argument of the model, as capture needs it: its form, never its data.
struct InputSpec {
  std::vector<std::int64_t> sizes;  ///< the batch dim's entry is replaced by each capture's batch size
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::optional<std::int64_t> batch_dim = 0;  ///< none: the same tensor for all samples
  bool requires_grad = false;
  /// Contiguous or channels-last; operators take over the format of their arguments.
  at::MemoryFormat format = at::MemoryFormat::Contiguous;

  friend bool operator==(const InputSpec&, const InputSpec&) = default;
};

/// The form of `tensor`. A negative batch dim counts from the end. @throws InvalidArgument if there is no such dim.
[[nodiscard]] InputSpec input_spec(const at::Tensor& tensor, std::optional<std::int64_t> batch_dim = 0);

/// The user's forward on flat tensor arguments, with flat tensor results (other arguments are bound).
using FlatForward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// libtorch's autocast around a forward.
struct Autocast {
  c10::ScalarType dtype = c10::ScalarType::BFloat16;  ///< BFloat16 or Half
  c10::DeviceType device = c10::DeviceType::CPU;  ///< CPU or CUDA: whose operator lists apply; not the device of the
                                                  ///< capture
  /// Casts float32 parameters, buffers and arguments where they are first read, not only the operands of products. Then
  /// everything is computed in `dtype`, except losses, sums and means of all elements, and recurrent layers.
  bool everywhere = false;
};

struct CaptureOptions {
  /// Record batch norms in training mode as per-sample operators and all-reduces.
  bool exact_batch_norm = false;
  /// Run the forward inside autocast, with two differences. Results have the element types that they have without
  /// autocast. Sums and means of all elements of a tensor (a loss) give float32.
  std::optional<Autocast> autocast{};
  /// CPU or CUDA: decides the memory layout of results where their kernels differ, for example in attention with
  /// dropout.
  c10::DeviceType device = c10::DeviceType::CPU;
  /// Batch sizes of the three captures. They are neither multiples of one another nor of the same parity. So halves,
  /// parities and thresholds between them are detected.
  std::array<std::int64_t, 3> batch_sizes{7, 12, 18};
  /// Called for each real tensor that forward reads and that is no argument, parameter or buffer; may throw.
  std::function<void(const at::Tensor&)> on_constant{};
};

/// Runs `forward` three times on fake tensors, and once more before if `options.autocast` is set. It runs under the
/// caller's grad mode and autocast state, and the module's train/eval flags. Returns the one program of which the three
/// runs are instances. Everything that grows with the batch is a SizeExpr.
///
/// No operator touches data: parameters, buffers, gradients and generators stay as they are. Parameters may be CPU,
/// CUDA or fake tensors; the forward sees all of them on the CPU. Costs milliseconds and negligible memory, at any
/// size. Not collective; several threads may capture different modules at once.
///
/// @throws CaptureError if an operator reads data, has data-dependent sizes, or writes an argument or an unregistered
///                       tensor. Also for a custom autograd::Function, a hook, a tensor kept from an earlier forward,
///                       and CUDA autocast. Also for everything that is not affine in the batch size
[[nodiscard]] OpGraph capture(const torch::nn::Module& module, const std::vector<InputSpec>& inputs,
                              const FlatForward& forward, const CaptureOptions& options = {});

/// Captures once more at each batch size and compares with the graph. This detects branches like `if (batch < 5)`. Call
/// it with every global batch size, which is the size that one process runs. The forward never sees the sizes into
/// which a plan divides it. With one sample, libtorch treats any layout as contiguous, so copies that `contiguous`
/// omits do not count.
/// @param options  the options of the capture
/// @throws CaptureError naming the first operator that differs
void verify_capture(const OpGraph& graph, const torch::nn::Module& module, const std::vector<InputSpec>& inputs,
                    const FlatForward& forward, std::span<const std::int64_t> batch_sizes,
                    const CaptureOptions& options = {});

}  // namespace autopar::trace
