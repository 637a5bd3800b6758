#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/core/placement.hpp>
#include <autopar/core/split.hpp>
#include <autopar/shard/group.hpp>

namespace autopar {

/// A tensor with its placement on a group, as PyTorch's DTensor: argument and result of parallel layers.
///
///     Placed h = fc1(x);                                             // x: a tensor that all ranks have
///     Placed y = fc2(h.map([](const at::Tensor& t) { return at::gelu(t); }));
///     at::Tensor out = y;                                            // throws unless y is on all ranks
///
/// Dims are those of the whole tensor, which no rank needs to have. In a group of one rank a value is replicated. A
/// value's gradient has the same placement; the gradient of a partial value is replicated.
class Placed {
 public:
  /// A replicated value. Implicit, since a plain tensor is one that all ranks have.
  Placed(at::Tensor everywhere);  // NOLINT(google-explicit-constructor)
  static Placed replicate(at::Tensor everywhere, Group group);
  /// Slices along `dim` (negative: from the end).
  /// @throws InvalidArgument unless `local` has the size of this rank's slice of `split`
  static Placed shard(at::Tensor local, Group group, int dim, Split split);
  /// Slices with the lengths that the ranks have, such as their own samples. Collective: one number for each rank.
  static Placed shard(at::Tensor local, Group group, int dim);
  /// A partial value: the sum of the ranks' tensors.
  static Placed partial(at::Tensor local, Group group);

  /// This rank's tensor.
  [[nodiscard]] const at::Tensor& local() const { return local_; }
  [[nodiscard]] Placement placement() const { return placement_; }
  [[nodiscard]] const Group& group() const { return group_; }
  /// \pre placement().is_shard()
  [[nodiscard]] const Split& split() const;
  [[nodiscard]] int dim() const { return static_cast<int>(local_.dim()); }
  /// Of the whole tensor.
  [[nodiscard]] std::int64_t size(int dim) const;
  [[nodiscard]] std::vector<std::int64_t> sizes() const;

  /// @throws InvalidArgument, with what to do, unless the value is replicated
  operator at::Tensor() const;  // NOLINT(google-explicit-constructor)

  /// Applies `function` to the local tensor. It must be element-wise: the same sizes, each element computed from one
  /// element. (Softmax along the sharded dim has the same sizes but is not element-wise.)
  /// @throws InvalidArgument for other sizes, and for a partial value, where the sum of functions is not the function
  /// of the sum
  template <class Function>
  [[nodiscard]] Placed map(Function&& function) const {
    require_whole_elements();
    return with_same_sizes(std::forward<Function>(function)(local_));
  }

  /// As the members of at::Tensor.
  /// @throws InvalidArgument if slices would not stay slices. That is when the sharded dim is joined to one before it,
  /// or cut into other parts than slices of whole first sizes.
  [[nodiscard]] Placed flatten(int start, int end) const;
  [[nodiscard]] Placed unflatten(int dim, const std::vector<std::int64_t>& sizes) const;
  [[nodiscard]] Placed transpose(int a, int b) const;

  /// Element-wise, for two values with equal placement. Partial values can be added and scaled, but not multiplied.
  /// @throws InvalidArgument otherwise
  friend Placed operator+(const Placed& a, const Placed& b) { return a.plus(b); }
  friend Placed operator*(const Placed& a, const Placed& b) { return a.times(b); }
  friend Placed operator*(const Placed& a, double factor) { return a.times(factor); }

 private:
  Placed(at::Tensor local, Placement placement, Group group, std::optional<Split> split)
      : local_(std::move(local)), placement_(placement), group_(std::move(group)), split_(std::move(split)) {}
  [[nodiscard]] Placed plus(const Placed& other) const;
  [[nodiscard]] Placed times(const Placed& other) const;
  [[nodiscard]] Placed times(double factor) const;
  void require_whole_elements() const;
  [[nodiscard]] Placed with_same_sizes(at::Tensor local) const;
  [[nodiscard]] int from_front(int dim) const;

  at::Tensor local_;
  Placement placement_;
  Group group_;
  std::optional<Split> split_;
};

/// "Shard(1) 6+5+5+5 of [8, 21]"
[[nodiscard]] std::string to_string(const Placed& value);

}  // namespace autopar
