#include <autopar/shard/embedding.hpp>

#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>

#include <autopar/core/error.hpp>
#include <autopar/shard/collectives.hpp>

#include "shard/draws.hpp"

namespace autopar {

ParallelEmbeddingImpl::ParallelEmbeddingImpl(ParallelEmbeddingOptions given) : options(std::move(given)) {
  reset();  // NOLINT(clang-analyzer-optin.cplusplus.VirtualCall)
}

Split ParallelEmbeddingImpl::split() const {
  return Split::even(sharded_dim() == 0 ? options.num_embeddings() : options.embedding_dim(), options.group().size());
}

void ParallelEmbeddingImpl::reset() {
  const auto words = options.num_embeddings(), features = options.embedding_dim();
  if (options.dim().has_value() && (*options.dim() < -1 || *options.dim() > 1)) {
    throw InvalidArgument("a parallel embedding of dim " + std::to_string(*options.dim()) +
                          "; 0 cuts its words, 1 or -1 its features, none neither");
  }
  if (const auto padding = options.padding_idx(); padding.has_value()) {
    if (*padding < -words || *padding >= words) {
      throw InvalidArgument("padding_idx " + std::to_string(*padding) + " is none of " + std::to_string(words) +
                            " words; choose one, or leave it out");
    }
    if (*padding < 0) options.padding_idx(words + *padding);
  }
  if (is_dense()) {
    weight = register_parameter("weight", at::empty({words, features}));
    torch::nn::init::normal_(weight);
  } else {
    const detail::SharedDraws draws(options.group());
    const int place = options.group().place();
    weight = register_parameter(
        "weight", detail::slice_of_draw(
                      words, features, sharded_dim(), split().begin(place), split().length(place), draws,
                      [](at::Tensor& block, const at::Generator& generator) { block.normal_(0, 1, generator); }));
  }
  if (!options.padding_idx().has_value()) return;
  const at::NoGradGuard no_grad;
  const auto first = is_dense() || sharded_dim() == 1 ? 0 : split().begin(options.group().place());
  const auto row = *options.padding_idx() - first;
  if (row >= 0 && row < weight.size(0)) weight[row].zero_();
}

void ParallelEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "autopar::ParallelEmbedding(num_embeddings=" << options.num_embeddings()
         << ", embedding_dim=" << options.embedding_dim();
  if (options.padding_idx().has_value()) stream << ", padding_idx=" << *options.padding_idx();
  if (!is_dense()) stream << ", dim=" << *options.dim() << ", ranks=" << options.group().size();
  stream << ")";
}

void ParallelEmbeddingImpl::require_words(const at::Tensor& indices) const {
  const auto flat = indices.reshape({-1});
  const auto bad = flat.lt(0).logical_or_(flat.ge(options.num_embeddings()));
  if (!bad.any().item<bool>()) return;
  const auto position = bad.to(at::kInt).argmax().item<std::int64_t>();
  throw InvalidArgument("index " + std::to_string(flat[position].item<std::int64_t>()) + " at position " +
                        std::to_string(position) + " is none of the embedding's " +
                        std::to_string(options.num_embeddings()) + " words");
}

/// Zeros where the word is another rank's.
at::Tensor ParallelEmbeddingImpl::own_vectors(const at::Tensor& indices) const {
  const int place = options.group().place();
  const auto first = split().begin(place), words = split().length(place);
  if (words == 0) {  // a term of no elements, so that the weight has a gradient here as well
    auto sizes = indices.sizes().vec();
    sizes.push_back(options.embedding_dim());
    return at::zeros(sizes, weight.options()) + weight.sum();
  }
  const auto elsewhere = indices.lt(first).logical_or_(indices.ge(first + words));
  const auto padding = options.padding_idx().value_or(-1) - first;
  const bool has_padding = options.padding_idx().has_value() && padding >= 0 && padding < words;
  const auto vectors = at::embedding(weight, (indices - first).masked_fill(elsewhere, 0), has_padding ? padding : -1);
  return vectors.masked_fill(elsewhere.unsqueeze(-1), 0);
}

Placed ParallelEmbeddingImpl::forward(const at::Tensor& indices) {
  const auto padding = options.padding_idx().value_or(-1);
  if (is_dense()) return at::embedding(weight, indices, padding);
  require_words(indices);
  const auto& group = options.group();
  if (sharded_dim() == 0) return reduce(Placed::partial(own_vectors(indices), group));
  return Placed::shard(at::embedding(weight, indices, padding), group, -1, split());
}

std::vector<ShardedParameter> ParallelEmbeddingImpl::shards() const {
  if (is_dense()) return {};
  return {{"weight", options.group(), sharded_dim(), split()}};
}

}  // namespace autopar
