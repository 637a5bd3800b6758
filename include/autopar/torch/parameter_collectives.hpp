#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace autopar {

/// What an optimizer's step needs of parameters of which ranks hold parts: `model->attach` hands it over
/// (DescribedOptimizer). An optimizer that is not attached gets one over whole parameters, so its step is written once.
///
/// Every member is collective: all ranks call it, with all parameters of the optimizer's groups in their order, those
/// included of which this rank has nothing. Results are the same on every rank, to the bit.
///
/// `tensors[i]` lies like this rank's part of `handles[i]`: the handle itself, its gradient, state, or what
/// element-wise operators make of these. It is undefined where this rank has nothing of the parameter, or there is
/// nothing to count.
class ParameterCollectives {
 public:
  using Tensors = std::vector<at::Tensor>;
  /// @param wholes  of one parameter, with its own sizes, in the order in which they were given
  using OnWhole = std::function<void(std::size_t parameter, const Tensors& wholes)>;

  virtual ~ParameterCollectives() = default;

  /// Of the whole parameter. Not collective.
  [[nodiscard]] virtual std::vector<std::int64_t> sizes(const at::Tensor& handle) const = 0;
  /// Sums over all elements of each parameter.
  /// @param partial  [handles] or [handles, …]: of this rank's elements, anything where it has none
  /// @return as `partial`, in f64
  [[nodiscard]] virtual at::Tensor sum(const Tensors& handles, const at::Tensor& partial) = 0;
  /// [handles] p-norms in f64; 0 where nothing counts. @param p  1 or more, or infinity
  [[nodiscard]] virtual at::Tensor norms(const Tensors& handles, const Tensors& tensors, double p = 2) = 0;
  /// The dot product of two vectors in f64, each of all elements of all parameters; without dimensions.
  [[nodiscard]] virtual at::Tensor dot(const Tensors& handles, const Tensors& a, const Tensors& b) = 0;
  /// What each rank says, by rank.
  [[nodiscard]] virtual std::vector<double> of_ranks(double mine) = 0;
  /// Calls `on_whole` for each parameter with whole tensors in place of this rank's parts `tensors[i]`, on one rank
  /// each of those that hold it, spread by size; what it writes into them comes back to all that do. Parameters of
  /// which tensors[i] is empty, on all holders, are left out. A throw on one rank throws on all.
  /// @param kept  none, or by parameter: tensors of sizes of their own, which all holders have alike
  ///              (OptimizerDescriptor's kWhole): what `on_whole` writes into this rank's comes to all as well
  /// @cost memory of two largest parameters at most, with all that belongs to them
  virtual void on_wholes(const Tensors& handles, const std::vector<Tensors>& tensors, const OnWhole& on_whole,
                         const std::vector<Tensors>& kept = {}) = 0;
};

}  // namespace autopar
