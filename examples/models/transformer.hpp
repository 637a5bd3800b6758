#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include <torch/nn.h>

namespace models {

struct TransformerSize {
  std::int64_t words = 50'304, width = 2048, layers = 24, heads = 16, length = 1024;
  bool causal = true;
  double dropout = 0;              ///< of attention and of what is added to the residuals
  bool written_attention = false;  ///< products, a softmax and dropout in place of libtorch's own kernel
  bool rotary = false;             ///< positions turn queries and keys, and have no table
  bool tied = false;               ///< the head is the table of words
};

/// Rotary positions: elements i and i + d/2 of a head are a plane, turned by place / 10000^(2i/d).
/// @param x  [samples, heads, length, d]
/// @source Su et al., "RoFormer", 2021, §3.2.2; the planes as in GPT-NeoX
inline at::Tensor turned_by_place(const at::Tensor& x) {
  const auto length = x.size(2), half = x.size(3) / 2;
  const auto exact = x.options().dtype(torch::kDouble);
  const auto speeds = torch::pow(10'000.0, torch::arange(half, exact) / -static_cast<double>(half));
  const auto angles = torch::outer(torch::arange(length, exact), speeds);
  const auto cos = angles.cos().to(x.scalar_type()), sin = angles.sin().to(x.scalar_type());
  const auto parts = x.chunk(2, -1);
  return torch::cat({parts[0] * cos - parts[1] * sin, parts[1] * cos + parts[0] * sin}, -1);
}

/// A layer of a transformer: norms first.
struct BlockImpl : torch::nn::Module {
  std::int64_t heads;
  bool causal;
  double dropout;
  bool written_attention;
  bool rotary;
  torch::nn::LayerNorm ln1, ln2;
  torch::nn::Linear qkv, proj, fc1, fc2;

  explicit BlockImpl(const TransformerSize& size)
      : heads(size.heads),
        causal(size.causal),
        dropout(size.dropout),
        written_attention(size.written_attention),
        rotary(size.rotary),
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
  at::Tensor attention(at::Tensor q, at::Tensor k, const at::Tensor& v) const {
    if (rotary) {
      q = turned_by_place(q);
      k = turned_by_place(k);
    }
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
        places(size.rotary ? torch::nn::Embedding(nullptr) : torch::nn::Embedding(size.length, size.width)),
        norm(torch::nn::LayerNormOptions({size.width})),
        head(size.tied ? torch::nn::Linear(nullptr)
                       : torch::nn::Linear(torch::nn::LinearOptions(size.width, size.words).bias(false))) {
    for (std::int64_t i = 0; i < size.layers; ++i) blocks->push_back(Block(size));
    register_module("words", words);
    if (places) register_module("places", places);
    register_module("blocks", blocks);
    register_module("norm", norm);
    if (head) register_module("head", head);
  }
  /// The mean loss. @param text, wanted  [samples, length], words and what is to be predicted for them
  at::Tensor forward(const at::Tensor& text, const at::Tensor& wanted) {
    return torch::nn::functional::cross_entropy(logits(features(text)).flatten(0, 1), wanted.flatten());
  }
  /// Logits [samples, words] of the word that follows each text, of a causal model.
  /// @param last  [samples], the place of the text's last word; what stands behind it is not looked at
  at::Tensor next(const at::Tensor& text, const at::Tensor& last) {
    const auto x = features(text);
    return logits(x.gather(1, last.view({-1, 1, 1}).expand({-1, 1, x.size(2)})).squeeze(1));
  }

 private:
  at::Tensor features(const at::Tensor& text) {
    auto x = words(text);
    if (places) x = x + places(torch::arange(text.size(1), text.options()));
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return norm(x);
  }
  at::Tensor logits(const at::Tensor& x) { return head ? head(x) : torch::linear(x, words->weight); }
};
TORCH_MODULE(Transformer);

/// GPT-2's initial weights: normal with a standard deviation of 0.02, of what is added to the residuals less by the
/// root of their number; no biases.
/// @source Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, §2.3
inline void initialise_as_gpt2(Transformer& net) {
  const torch::NoGradGuard no_grad;
  const double added = 0.02 / std::sqrt(2.0 * static_cast<double>(net->blocks->size()));
  for (auto& item : net->named_parameters()) {
    const bool is_added = item.key().ends_with("proj.weight") || item.key().ends_with("fc2.weight");
    if (item.value().dim() > 1)
      torch::nn::init::normal_(item.value(), 0, is_added ? added : 0.02);
    else if (item.key().ends_with("bias"))
      torch::nn::init::zeros_(item.value());
  }
}

}  // namespace models
