#include "head.hpp"

#include <array>
#include <utility>

#include <autopar/core/error.hpp>

namespace ap = autopar;
using torch::Tensor;

HeadKind Head::kind_named(const std::string& name) {
  constexpr std::array kKinds{std::pair{"dense", HeadKind::kDense}, std::pair{"row", HeadKind::kRow},
                              std::pair{"column", HeadKind::kColumn}, std::pair{"chunked", HeadKind::kChunked}};
  for (const auto& [known, kind] : kKinds) {
    if (name == known) return kind;
  }
  throw ap::InvalidArgument("no head is called '" + name + "'; there are dense, row, column and chunked");
}

Head::Head(HeadKind kind, int64_t features, int64_t classes, const ap::Groups& groups)
    : kind_(kind), group_(groups.tensor) {
  ap::ParallelLinearOptions options(features, classes);
  if (kind == HeadKind::kDense) {
    options_.replicas(groups.world);
  } else {
    options.dim(kind == HeadKind::kRow ? 0 : 1).group(groups.tensor);
    options_.replicas(groups.replicas);
  }
  layer = ap::ParallelLinear(options);
}

Head::Samples Head::brought(const Tensor& features, const Tensor& target) const {
  if (kind_ == HeadKind::kDense) return {features, target};
  const auto slices = ap::Placed::shard(features, group_, 0);
  const Tensor targets = ap::gather(ap::Placed::shard(target, group_, 0));
  if (kind_ == HeadKind::kRow) return {ap::gather(slices, ap::Placement::replicate()), targets};
  return {slices, targets};
}

Tensor Head::loss(const Tensor& features, const Tensor& target) {
  const auto samples = brought(features, target);
  if (kind_ == HeadKind::kChunked) return ap::linear_cross_entropy(samples.features, layer, samples.target, options_);
  return ap::parallel_cross_entropy(layer(samples.features), samples.target, options_);
}

double Head::top_1(const Tensor& features, const Tensor& target) {
  const torch::NoGradGuard no_grad;
  const auto samples = brought(features, target);
  return ap::top_k_accuracy(layer(samples.features), samples.target, {1}).item<double>();
}
