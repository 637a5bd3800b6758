#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <autopar/shard/group.hpp>
#include <autopar/shard/placed.hpp>
#include <autopar/shard/sharded_parameter.hpp>

namespace autopar {

struct ParallelEmbeddingOptions {
  ParallelEmbeddingOptions(std::int64_t num_embeddings, std::int64_t embedding_dim)
      : num_embeddings_(num_embeddings), embedding_dim_(embedding_dim) {}

  TORCH_ARG(std::int64_t, num_embeddings);
  TORCH_ARG(std::int64_t, embedding_dim);
  TORCH_ARG(std::optional<std::int64_t>, padding_idx) = std::nullopt;
  /// 0: each rank has some words. 1 or -1: each rank has some features. None: each rank has all.
  TORCH_ARG(std::optional<int>, dim) = std::nullopt;
  TORCH_ARG(Group, group);
};

/// torch::nn::Embedding with its weight [words, features] sharded over a group (Shoeybi et al. 2019, section 3).
///
///     dim      weight here         takes                  gives          forward      backward
///     0        [words/P, features] indices on all ranks   Replicate      all-reduce   nothing
///     1, -1    [words, features/P] indices on all ranks   Shard(last)    nothing      nothing
///     none     whole               indices on all ranks   Replicate      nothing      nothing
///
/// As in torch::nn::Embedding, the vector of `padding_idx` starts as zeros and gets no gradient. Parameters start as
/// with the seed of the group's first rank. Without a group, or alone in it, it is torch::nn::Embedding. The check of
/// indices waits for the device.
/// @throws InvalidArgument for another dim, and for an index that is not a word, with its position
class ParallelEmbeddingImpl : public torch::nn::Cloneable<ParallelEmbeddingImpl>, public HasShards {
 public:
  ParallelEmbeddingImpl(std::int64_t num_embeddings, std::int64_t embedding_dim)
      : ParallelEmbeddingImpl(ParallelEmbeddingOptions(num_embeddings, embedding_dim)) {}
  /// Collective over the group, as are `reset` and `clone`.
  explicit ParallelEmbeddingImpl(ParallelEmbeddingOptions options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  [[nodiscard]] Placed forward(const at::Tensor& indices);

  [[nodiscard]] std::vector<ShardedParameter> shards() const override;

  ParallelEmbeddingOptions options;
  at::Tensor weight;  ///< this rank's slice

 private:
  [[nodiscard]] bool is_dense() const { return !options.dim().has_value() || options.group().is_alone(); }
  [[nodiscard]] int sharded_dim() const { return options.dim() == 0 ? 0 : 1; }
  [[nodiscard]] Split split() const;
  [[nodiscard]] at::Tensor own_vectors(const at::Tensor& indices) const;
  void require_words(const at::Tensor& indices) const;
};

TORCH_MODULE(ParallelEmbedding);

}  // namespace autopar
