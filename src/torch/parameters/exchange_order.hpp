#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/core/ids.hpp>
#include <autopar/schedule/action.hpp>

#include "torch/parameters/parameter_store.hpp"

namespace autopar::parameters {

/// The order in which ranks exchange the elements of a parameter. With tensor shards, their slices follow one another;
/// otherwise it is the memory order of the unsharded parameter. A rank holds one interval of it, in its handle's order.
///
///   const ExchangeOrder order(parameters, tensor);
///   order.write(shard, order.of(rank), whole);   // puts what a rank holds into its place
class ExchangeOrder {
 public:
  ExchangeOrder(const ParameterStore& parameters, const ManagedTensor& tensor);

  /// Number of elements of the unsharded parameter.
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// The interval that a rank holds; empty if it holds nothing.
  [[nodiscard]] Interval of(Rank rank) const;
  /// These elements of an unsharded tensor without gaps, flat: a view or a copy.
  [[nodiscard]] at::Tensor read(const at::Tensor& whole, Interval elements) const;
  /// Writes these elements.
  /// @param flat  as many elements
  void write(const at::Tensor& flat, Interval elements, const at::Tensor& whole) const;

 private:
  /// A part of the unsharded tensor, and its position in the order.
  struct Piece {
    ShardSlices slices;
    std::int64_t begin = 0;
  };
  /// The pieces that `elements` lie in, restricted to them, ascending.
  [[nodiscard]] std::vector<Piece> pieces_of(Interval elements) const;

  std::int64_t size_ = 0;
  std::vector<Piece> pieces_;
  std::map<Rank, Interval> held_;
};

}  // namespace autopar::parameters
