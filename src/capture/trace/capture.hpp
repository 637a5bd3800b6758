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

namespace autopar {

/// One tensor argument of the model, as capture needs it: its form, never its data.
struct InputSpec {
  std::vector<std::int64_t> sizes;  ///< the batch dim's entry is replaced by each capture's batch size
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::optional<std::int64_t> batch_dim = 0;  ///< none: the same tensor for all samples
  bool requires_grad = false;
  /// Or channels-last: operators take on that of their arguments
  at::MemoryFormat format = at::MemoryFormat::Contiguous;

  friend bool operator==(const InputSpec&, const InputSpec&) = default;
};

/// The form of `tensor`. A negative batch dim counts from the end. @throws InvalidArgument if there is no such dim.
[[nodiscard]] InputSpec input_spec(const at::Tensor& tensor, std::optional<std::int64_t> batch_dim = 0);

/// The user's forward on flat tensor arguments, with flat tensor results (its other arguments bound).
using FlatForward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// libtorch's autocast around a forward.
struct Autocast {
  c10::ScalarType dtype = c10::ScalarType::BFloat16;  ///< BFloat16 or Half
  c10::DeviceType device = c10::DeviceType::CPU;  ///< CPU or CUDA: whose lists of operators, wherever the capture runs
  /// Not products alone: parameters, buffers and arguments of float32 are cast where they are first read, so that all
  /// is computed in `dtype` but losses, sums and means of all elements, and recurrent layers.
  bool everywhere = false;
};

struct CaptureOptions {
  /// Record batch norms in training mode as operators of which each treats samples alike, and all-reduces.
  bool exact_batch_norm = false;
  /// Run the forward inside autocast. Unlike there, results have the element types that they have without it, and what
  /// sums or averages all elements of a tensor (a loss) gives float32.
  std::optional<Autocast> autocast{};
  /// CPU or CUDA: how results lie in memory where the kernels of both do it differently, as those of attention with
  /// dropout.
  c10::DeviceType device = c10::DeviceType::CPU;
  /// Batch sizes of the three captures. Neither multiples of one another nor of one parity, so that halves, parities
  /// and thresholds between them show.
  std::array<std::int64_t, 3> batch_sizes{7, 12, 18};
  /// Asked for each tensor with data that forward reads and is none of its arguments, parameters and buffers; may
  /// throw.
  std::function<void(const at::Tensor&)> on_constant{};
};

/// Runs `forward` three times (under `options.autocast` once more before) on phantoms, under the caller's grad mode,
/// autocast state and the module's train/eval flags, and returns the one program that the three runs are instances of;
/// everything that grows with the batch is a SizeExpr.
///
/// No operator touches data: parameters, buffers, gradients and generators stay as they are, whether parameters are CPU
/// or CUDA tensors or phantoms; the forward sees all of them on the CPU. Costs milliseconds and no memory to speak of,
/// whatever the sizes. Not collective; several threads may capture at once (different modules).
///
/// @throws CaptureError  an operator that reads data or has data-dependent sizes, writes an argument or an unregistered
///                       tensor, a custom autograd::Function, a hook, a tensor kept from an earlier forward, CUDA
///                       autocast, and whatever is not affine in the batch size
[[nodiscard]] OpGraph capture(const torch::nn::Module& module, const std::vector<InputSpec>& inputs,
                              const FlatForward& forward, const CaptureOptions& options = {});

/// Captures once more at each batch size and compares with the graph: the guard against `if (batch < 5)`. To be called
/// with every global batch, since one process runs that program; how a plan divides it is no size the forward ever
/// sees. With one sample, where libtorch takes any layout for contiguous, copies that `contiguous` leaves out do not
/// count.
/// @param options  those of the capture
/// @throws CaptureError naming the first operator that differs
void verify_capture(const OpGraph& graph, const torch::nn::Module& module, const std::vector<InputSpec>& inputs,
                    const FlatForward& forward, std::span<const std::int64_t> batch_sizes,
                    const CaptureOptions& options = {});

}  // namespace autopar
