#pragma once

#include <cstdint>
#include <string>

#include <torch/torch.h>

#include <autopar/shard/collectives.hpp>
#include <autopar/shard/cross_entropy.hpp>
#include <autopar/shard/linear.hpp>
#include <autopar/shard/linear_cross_entropy.hpp>
#include <autopar/shard/top_k.hpp>

/// How the classes lie on the ranks.
enum class HeadKind {
  kDense,    ///< the whole weight on each rank, for its own samples
  kRow,      ///< some features of all classes on each rank: logits are summed
  kColumn,   ///< some classes on each rank: logits stay there
  kChunked,  ///< the same, and logits are never there but for a chunk
};

/// A linear layer to `classes`, with its loss. Each rank brings its own samples.
class Head {
 public:
  /// @throws InvalidArgument if `kind` is none
  static HeadKind kind_named(const std::string& name);

  Head(HeadKind kind, int64_t features, int64_t classes, const autopar::Groups& groups);

  /// Loss of own samples: the mean over those of all ranks, the same value on each.
  torch::Tensor loss(const torch::Tensor& features, const torch::Tensor& target);
  /// Of the samples of all ranks, the part whose class is the largest logit.
  double top_1(const torch::Tensor& features, const torch::Tensor& target);

  /// The ranks that hold the same parameters, for other samples: over these gradients are summed.
  const autopar::Group& holders() const { return options_.replicas(); }

  autopar::ParallelLinear layer{nullptr};

 private:
  struct Samples {
    autopar::Placed features;
    torch::Tensor target;
  };
  /// As the layer takes them.
  Samples brought(const torch::Tensor& features, const torch::Tensor& target) const;

  HeadKind kind_;
  autopar::Group group_;
  autopar::ParallelCrossEntropyOptions options_;
};
