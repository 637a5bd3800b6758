#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace autopar {

/// Collective operations for an optimizer's step on sharded parameters. `model->attach` passes them to a
/// DescribedOptimizer. Before it is attached, an optimizer has an implementation for unsharded parameters, so its step
/// is written once.
///
/// Every member is collective unless it says otherwise: all ranks call it with all parameters of the optimizer's
/// groups, in order. This includes parameters that the rank does not hold. Results are bit-identical on every rank.
///
/// `tensors[i]` has the layout of this rank's part of `handles[i]`: it is the handle, its gradient, state, or the
/// result of element-wise operators on these. It is undefined if this rank holds nothing of the parameter, or if the
/// parameter is to be skipped.
class ParameterCollectives {
 public:
  using Tensors = std::vector<at::Tensor>;
  /// @param wholes  the unsharded tensors of one parameter, in the order in which they were passed
  using OnWhole = std::function<void(std::size_t parameter, const Tensors& wholes)>;

  virtual ~ParameterCollectives() = default;

  /// The sizes of the unsharded parameter. Not collective.
  [[nodiscard]] virtual std::vector<std::int64_t> sizes(const at::Tensor& handle) const = 0;
  /// Sums over all elements of each parameter.
  /// @param partial  [handles] or [handles, …]: sums over this rank's elements; ignored for parameters without any here
  /// @return f64, with the sizes of `partial`
  [[nodiscard]] virtual at::Tensor sum(const Tensors& handles, const at::Tensor& partial) = 0;
  /// [handles] p-norms in f64; 0 for tensors that are undefined on all ranks.
  /// @param p  1 or more, or infinity
  [[nodiscard]] virtual at::Tensor norms(const Tensors& handles, const Tensors& tensors, double p = 2) = 0;
  /// The dot product of two vectors, each the elements of all parameters: 0-dim f64.
  [[nodiscard]] virtual at::Tensor dot(const Tensors& handles, const Tensors& a, const Tensors& b) = 0;
  /// The value that each rank passes, by rank.
  [[nodiscard]] virtual std::vector<double> of_ranks(double mine) = 0;
  /// Calls `on_whole` for each parameter with unsharded tensors in place of this rank's parts `tensors[i]`. It runs on
  /// one of the ranks that hold the parameter; the work is spread by size. What it writes into the tensors reaches all
  /// holders. A parameter whose tensors[i] is empty on all holders is skipped. If one rank throws, all throw.
  /// @param kept  none, or by parameter: tensors of other sizes, equal on all holders (OptimizerDescriptor's kWhole).
  /// What `on_whole` writes into them reaches all holders as well.
  /// @cost memory: at most two of the largest parameters, with all their tensors
  virtual void on_wholes(const Tensors& handles, const std::vector<Tensors>& tensors, const OnWhole& on_whole,
                         const std::vector<Tensors>& kept = {}) = 0;
};

}  // namespace autopar
