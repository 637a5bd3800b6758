#pragma once

#include <torch/torch.h>

#include <autopar/runtime/loopback.hpp>
#include <autopar/shard/group.hpp>
#include <autopar/shard/placed.hpp>

#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>

#include "double_precision.hpp"

/// What the tests of parallel layers share. Ranks are threads, so checks throw instead of asserting.
namespace shard_test {

using at::Tensor;

inline void must_be(bool holds, const std::string& what) {
  if (!holds) throw std::logic_error(what);
}

/// max|a−b| ≤ tolerance·(1 + max|b|), of tensors that both are defined and of the same sizes.
inline void must_equal(const Tensor& got, const Tensor& want, const std::string& what, double tolerance = 1e-12) {
  must_be(got.defined() && want.defined(), what + ": undefined");
  std::ostringstream text;
  text << what << ": sizes " << got.sizes() << " instead of " << want.sizes();
  must_be(got.sizes() == want.sizes(), text.str());
  if (want.numel() == 0) return;
  const auto a = got.detach().to(torch::kDouble), b = want.detach().to(torch::kDouble);
  const auto unlike = a.isnan().ne(b.isnan()).any().item<bool>();
  const auto error = (a - b).nan_to_num(0).abs().max().item<double>();
  const auto bound = tolerance * (1 + b.nan_to_num(0).abs().max().item<double>());
  text.str("");
  text << what << ": differs by " << error << ", allowed is " << bound;
  must_be(!unlike && error <= bound, text.str());
}

/// `body` on ranks of which `group_size` share a tensor (0: all).
inline void on_ranks(int ranks, const std::function<void(autopar::World&, const autopar::Groups&)>& body,
                     int group_size = 0) {
  autopar::loopback::run(ranks, [&](autopar::World& world) {
    body(world, autopar::init_groups(world, group_size == 0 ? ranks : group_size, torch::kCPU));
  });
}

/// This rank's rows, columns, … of what all have.
inline Tensor part_of(const Tensor& whole, const autopar::Group& group, int dim, const autopar::Split& split) {
  return whole.narrow(dim, split.begin(group.place()), split.length(group.place()));
}

inline Tensor part_of(const Tensor& whole, const autopar::Group& group, int dim) {
  return part_of(whole, group, dim, autopar::Split::even(whole.size(dim), group.size()));
}

/// A leaf of its own.
inline Tensor leaf(const Tensor& of) { return of.detach().clone().requires_grad_(true); }

}  // namespace shard_test
