#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/core/ids.hpp>
#include <autopar/schedule/action.hpp>

#include "torch/parameters/parameter_store.hpp"

namespace autopar::parameters {

/// The order in which ranks exchange the elements of a parameter: slices of tensor shards one behind another, else the
/// memory order of the whole. What a rank holds is one interval of it, in the order of its handle.
///
///   const ExchangeOrder order(parameters, tensor);
///   order.write(shard, order.of(rank), whole);   // puts what a rank holds into its place
class ExchangeOrder {
 public:
  ExchangeOrder(const ParameterStore& parameters, const StateTensor& tensor);

  /// Elements of the whole.
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// What a rank holds; empty where it holds nothing.
  [[nodiscard]] Interval of(Rank rank) const;
  /// These elements of a whole tensor without gaps, flat: a view or a copy.
  [[nodiscard]] at::Tensor read(const at::Tensor& whole, Interval elements) const;
  /// Writes them. @param flat  as many elements
  void write(const at::Tensor& flat, Interval elements, const at::Tensor& whole) const;

 private:
  /// Of a whole tensor, and where it begins.
  struct Piece {
    Slab slab;
    std::int64_t begin = 0;
  };
  /// Those that `elements` lie in, restricted to them, ascending.
  [[nodiscard]] std::vector<Piece> pieces_of(Interval elements) const;

  std::int64_t size_ = 0;
  std::vector<Piece> pieces_;
  std::map<Rank, Interval> held_;
};

}  // namespace autopar::parameters
