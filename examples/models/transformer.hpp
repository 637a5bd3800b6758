#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include <torch/nn.h>

namespace models {

struct TransformerSize {
  std::int64_t words = 50'304, width = 2048, layers = 24, heads = 16, length = 1024;
  bool causal = true;
  double dropout = 0;              ///< of attention and of what is added to the residuals
  bool written_attention = false;  ///< products, a softmax and dropout in place of libtorch's own kernel
};

/// A layer of a transformer: norms first.
struct BlockImpl : torch::nn::Module {
  std::int64_t heads;
  bool causal;
  double dropout;
  bool written_attention;
  torch::nn::LayerNorm ln1, ln2;
  torch::nn::Linear qkv, proj, fc1, fc2;

  explicit BlockImpl(const TransformerSize& size)
      : heads(size.heads),
        causal(size.causal),
        dropout(size.dropout),
        written_attention(size.written_attention),
        ln1(torch::nn::LayerNormOptions({size.width})),
        ln2(torch::nn::LayerNormOptions({size.width})),
        qkv(size.width, 3 * size.width),
        proj(size.width, size.width),
        fc1(size.width, 4 * size.width),
        fc2(4 * size.width, size.width) {
    register_module("ln1", ln1);
    register_module("ln2", ln2);
    register_module("qkv", qkv);
    register_module("proj", proj);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto samples = x.size(0), length = x.size(1), width = x.size(2);
    const auto parts = qkv(ln1(x)).view({samples, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto attended = attention(parts[0], parts[1], parts[2]);
    const auto y = x + dropped(proj(attended.transpose(1, 2).reshape({samples, length, width})));
    return y + dropped(fc2(torch::gelu(fc1(ln2(y)))));
  }

 private:
  at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const {
    if (!written_attention) {
      return at::scaled_dot_product_attention(q, k, v, {}, is_training() ? dropout : 0.0, causal);
    }
    auto scores = torch::matmul(q * (1 / std::sqrt(static_cast<double>(q.size(3)))), k.transpose(2, 3));
    if (causal) {
      const auto later = torch::ones({q.size(2), k.size(2)}, q.options().dtype(torch::kBool)).triu(1);
      scores = scores.masked_fill(later, -std::numeric_limits<double>::infinity());
    }
    return torch::matmul(dropped(torch::softmax(scores, -1)), v);
  }
  at::Tensor dropped(const at::Tensor& x) const { return torch::dropout(x, dropout, is_training()); }
};
TORCH_MODULE(Block);

/// Predicts a word for each place of a text. GPT where it is causal, a text's encoder where it is not.
struct TransformerImpl : torch::nn::Module {
  torch::nn::Embedding words, places;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;

  explicit TransformerImpl(const TransformerSize& size)
      : words(size.words, size.width),
        places(size.length, size.width),
        norm(torch::nn::LayerNormOptions({size.width})),
        head(torch::nn::LinearOptions(size.width, size.words).bias(false)) {
    for (std::int64_t i = 0; i < size.layers; ++i) blocks->push_back(Block(size));
    register_module("words", words);
    register_module("places", places);
    register_module("blocks", blocks);
    register_module("norm", norm);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& text, const at::Tensor& wanted) {
    auto x = words(text) + places(torch::arange(text.size(1), text.options()));
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return torch::nn::functional::cross_entropy(head(norm(x)).flatten(0, 1), wanted.flatten());
  }
};
TORCH_MODULE(Transformer);

}  // namespace models
