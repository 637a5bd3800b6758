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

/// A tensor and how it lies on a group: what parallel layers take and give, as PyTorch's DTensor.
///
///     Placed h = fc1(x);                                             // x: a tensor that all ranks have
///     Placed y = fc2(h.map([](const at::Tensor& t) { return at::gelu(t); }));
///     at::Tensor out = y;                                            // throws unless y is on all ranks
///
/// Dims are those of the whole tensor, which no rank needs to have. A value whose group is a rank alone is replicated.
/// The gradient of a value lies as the value does; that of terms of a sum is replicated.
class Placed {
 public:
  /// The same tensor on all ranks. Implicit: a plain tensor is what all ranks have.
  Placed(at::Tensor everywhere);  // NOLINT(google-explicit-constructor)
  static Placed replicate(at::Tensor everywhere, Group group);
  /// Slices along `dim` (negative: from the end). @throws InvalidArgument unless `local` is this rank's of `split`
  static Placed shard(at::Tensor local, Group group, int dim, Split split);
  /// Slices of whatever lengths the ranks have, such as their own samples. Collective: a message of a number a rank.
  static Placed shard(at::Tensor local, Group group, int dim);
  /// Terms of a sum.
  static Placed partial(at::Tensor local, Group group);

  /// What this rank has.
  [[nodiscard]] const at::Tensor& local() const { return local_; }
  [[nodiscard]] Placement placement() const { return placement_; }
  [[nodiscard]] const Group& group() const { return group_; }
  /// \pre placement().is_shard()
  [[nodiscard]] const Split& split() const;
  [[nodiscard]] int dim() const { return static_cast<int>(local_.dim()); }
  /// Of the whole tensor.
  [[nodiscard]] std::int64_t size(int dim) const;
  [[nodiscard]] std::vector<std::int64_t> sizes() const;

  /// @throws InvalidArgument unless all ranks have it, naming the way out
  operator at::Tensor() const;  // NOLINT(google-explicit-constructor)

  /// `function(local())`, which must be element-wise: of the same sizes, each element made of its own. (A softmax along
  /// the dim that is sharded is not, though its sizes are.)
  /// @throws InvalidArgument for other sizes, and for terms of a sum, whose function is not the sum of functions
  template <class Function>
  [[nodiscard]] Placed map(Function&& function) const {
    require_whole_elements();
    return with_same_sizes(std::forward<Function>(function)(local_));
  }

  /// As at::Tensor's. @throws InvalidArgument if slices would not stay slices: joining the sharded dim to one before
  /// it,
  ///                         or cutting it into others than slices of whole first sizes
  [[nodiscard]] Placed flatten(int start, int end) const;
  [[nodiscard]] Placed unflatten(int dim, const std::vector<std::int64_t>& sizes) const;
  [[nodiscard]] Placed transpose(int a, int b) const;

  /// Element-wise, of two values that lie alike; terms of a sum can be added and scaled, not multiplied.
  /// @throws InvalidArgument
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
